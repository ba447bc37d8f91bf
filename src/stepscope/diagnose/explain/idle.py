"""ARGUS level 5: what a host did while its device neither computed nor communicated.

Fault: a device that runs dry because its host is late, and the function that makes it so.
Paper: ARGUS (2026), section 6.3: "when both compute and communication are simultaneously idle",
people look for the function that contributes to the stall. No rule is given.
What differs: samples of the main thread count for as long as they overlap such times, so that what
a host does beside its busy device is left out, however much it is. The innermost function that
takes up most of the suspect's additional idle time is named. A function that waits is never named.
Cost: one union of the intervals of the suspect and some of its peers.
Cannot see: idle times within passes where no kernels were recorded and nothing else shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.explain.cpu import processor_evidence
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.graph.busy import busy
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric.intervals import Axis, axis_over
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import arrivals
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.frames import LOADER, compiles
from stepscope.diagnose.views.some_steps import of_ranks
from stepscope.diagnose.views.stacks import SAMPLE_NS, Samples
from stepscope.window import NULL, Floats, Ints, Table, Union, union

MOST_PEERS = 8
"""Enough for a median; each costs a pass over its rows. Our simulator."""
LEAST_SAMPLES = 5
"""At ten a second half a second: the error of counting is then below a half. Statistics."""


@dataclass(frozen=True)
class Idle:
    """The function that a host was in while nothing ran on its device."""

    function: str
    idle_ns: float
    """How long nothing ran, as far as it was sampled."""
    mine_ns: float
    """Of this, in the function."""
    peers_ns: float
    """Median of the peers in the same function and time."""
    caller: str = ""
    """If it belongs to Python's library, the innermost caller that does not."""


def while_idle(
    job: Observed, samples: Samples, row: int, peers: Sequence[int], first: int, stop: int
) -> Idle | None:
    """The function of one row's host in columns [first, stop); None where none stands out."""
    rows = np.array([row, *peers[:MOST_PEERS]], np.int64)
    part = _while_idle(job, samples, rows, *job.line.span_of(row, first, stop))
    if part is None or rows.size < 2:
        return None
    own, *others = (_by_function(part, one) for one in rows.tolist())
    usual = np.median(np.stack(others), axis=0)
    at = part.deepest(own - usual)
    idle_ns = [float(part.weight[part.row == one].sum()) for one in rows.tolist()]
    longer = idle_ns[0] - float(np.median(idle_ns[1:]))
    if at is None or own[at] - usual[at] < max(LEAST_SAMPLES * SAMPLE_NS, HALF * longer):
        return None
    frame = part.line_of(at, part.row == row)
    caller = part.caller_of(frame, part.row == row)
    return Idle(frame, idle_ns[0], float(own[at]), float(usual[at]), caller)


def _by_function(samples: Samples, row: int) -> Floats:
    """Nanoseconds in which each function was on the stack, except while it waited for other
    ranks."""
    shares, whole = samples.working(samples.row == row)
    return shares * whole


def _while_idle(
    job: Observed, samples: Samples, rows: Ints, begin_ns: int, end_ns: int
) -> Samples | None:
    """The samples of some rows in a span, weighted by how long nothing ran in them."""
    inside = np.isin(samples.row, rows) & (samples.time_ns < end_ns)
    begin = np.maximum(samples.time_ns, begin_ns)
    end = np.minimum(samples.time_ns + samples.weight.astype(np.int64), end_ns)
    inside &= end > begin
    axis = axis_over(len(job.line.ranks), np.array([begin_ns, end_ns]))
    running = None if axis is None else _running(job, rows, axis)
    if axis is None or running is None or not inside.any():
        return None
    row, begin, end = samples.row[inside], begin[inside], end[inside]
    ran = running.covered(axis.at(row, end)) - running.covered(axis.at(row, begin))
    return replace(samples, row=row, code=samples.code[inside], time_ns=begin,
                   weight=(end - begin - ran).astype(np.float64))  # fmt: skip


def _running(job: Observed, rows: Ints, axis: Axis) -> Union | None:
    """When some rows of the grid computed or communicated; None where it was not recorded."""

    def place(table: Table) -> Ints:
        return job.line.rows(table.ints("rank"))

    window = of_ranks(job.window, job.line.ranks[rows], ("phases", "kernels", "comm_ops"))
    at_work = busy(window, place, axis)
    comm = window.table("comm_ops")
    if at_work is None or comm is None or not comm.has("end_ns"):
        return at_work
    comm = comm.take(comm.ints("end_ns") != NULL)
    row = place(comm)
    start, end = axis.at(row, arrivals(comm)), axis.at(row, comm.ints("end_ns"))
    return union(np.concatenate((at_work.start, start)), np.concatenate((at_work.end, end)))


class IdleFunction:
    """The function in which the host was while its device had nothing to run."""

    name = "idle"
    causes: tuple[Cause, ...] = ("host", "data_loading", "jit_compile")
    needs = Needs("stacks", "phases|kernels", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        if job.samples is None:
            return None
        others = job.peers_of(suspect.row, suspect.phase).tolist()
        idle = while_idle(job, job.samples, suspect.row, others, suspect.first, suspect.stop)
        if idle is None:
            return None
        share = idle.mine_ns / max(suspect.whole_ns, 1.0)
        cause = _cause(idle.function) if 2 * idle.mine_ns >= suspect.whole_ns else None
        return Explained(
            cause, "inferred", (evidence(idle, job.has_devices),), share,
            function=idle.caller or idle.function,
            proven=cause == "jit_compile", context=processor_evidence(job, suspect), always=True,
        )  # fmt: skip


def _cause(function: str) -> Cause:
    if compiles(function):
        return "jit_compile"
    return "data_loading" if LOADER in function else "host"


def evidence(idle: Idle, on_device: bool) -> Evidence:
    """What was measured, in a sentence that names a device only where there is one."""
    ran, whose = "it neither computed nor communicated", "it was in {}, its peers"
    if on_device:
        ran, whose = "nothing ran on its device", "its host was in {}, its peers'"
    detail = (
        f"{ran} for {idle.idle_ns / 1e9:.1f} s; for {idle.mine_ns / 1e9:.1f} s of these "
        f"{whose.format(idle.function)} for {idle.peers_ns / 1e9:.1f} s"
    )
    values = {"idle_ns": idle.idle_ns, "function_ns": idle.mine_ns, "peers_ns": idle.peers_ns}
    return Evidence("idle", detail, values)

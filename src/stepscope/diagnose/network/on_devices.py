"""Whether data moves between devices: with gloo, processors move it, and the time says nothing of
links.

Devices show by their tables and counters, by hosts that run ahead of them, or by how collectives
end. NCCL moves pieces so small that all members end together; gloo's rings move large ones, and
their members end one after the other (`ring_ends`).
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, match
from stepscope.window import NULL, Table

ON_DEVICES = ("kernels", "kernel_summaries", "transfers")
"""Tables that show that data moves between devices; with gloo it moves between CPUs."""
AT_WORK = 0.1
"""If there are only counters: the median rank's device is busy for at least this share of the time.
An idle device reports 0, also in a job that computes on CPUs. Our simulator."""
AHEAD_NS, MOSTLY = 100_000, 0.5
"""A host runs ahead of its device: this share of the operators, or of the phases that a device
timed, starts so much later than it was called. With gloo an operator starts when it is called. Our
choice."""
TOGETHER = 0.03
"""Members end within this part of the transfer, all transfers together. On real data gloo's, of
three and more members, end within 4 % in one operator of ten, within 12 % in half of them; NCCL's
within microseconds. Measured on real data."""
LEAST_MEMBERS, LEAST_NS = 3, 1_000_000
"""Two members end together with gloo, too; shorter transfers are no longer than clocks are exact.
Measured on real data."""
LOOKED_AT = 5
"""Steps in which ends are compared. Our choice."""


def on_devices(job: Observed) -> bool:
    """Whether the recording shows that devices move the job's data."""
    if any(job.window.table(name) is not None for name in ON_DEVICES):
        return True
    busy = stats.median(job.hardware("sm_active", job.line.warm_up, len(job.line.steps)))
    return busy >= AT_WORK or _runs_ahead(job) or _end_together(job)


def _runs_ahead(job: Observed) -> bool:
    """Whether devices start operators, or phases, well after their hosts called or began them."""
    comm, phases = job.window.table("comm_ops"), job.window.table("phases")
    return _starts_late(comm, "enqueue_ns") or _starts_late(phases, "host_start_ns")


def _starts_late(table: Table | None, since: str) -> bool:
    if table is None or not table.has("start_ns", since):
        return False
    start, called = table.ints("start_ns"), table.ints(since)
    known = (start != NULL) & (called != NULL)
    late = start[known] - called[known] > AHEAD_NS
    return bool(late.size) and float(late.mean()) > MOSTLY


@once
def _end_together(job: Observed) -> bool:
    """Whether all members of collectives end at once."""
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "end_ns", "step"):
        return False
    return _all_end_together(_few_steps(job, comm))


def _few_steps(job: Observed, comm: Table) -> Table:
    """The collectives of some steps in the middle of the recording."""
    first = (job.line.warm_up + len(job.line.steps) - LOOKED_AT) // 2
    column = job.line.columns(comm.ints("step"))
    kept = (column >= max(first, 0)) & (column < first + LOOKED_AT)
    ended = (comm.ints("end_ns") != NULL) & (comm.ints("start_ns") != NULL)
    return comm.take(kept & ended & comm.strings("op").equals(*SYNCHRONIZING))


def _all_end_together(comm: Table) -> bool:
    matched = match(comm)
    if not matched.order.size:
        return False
    begins, members = matched.bounds[:-1], np.diff(matched.bounds)
    end = comm.ints("end_ns")[matched.order]
    last = np.maximum.reduceat(end, begins)
    took = last - np.maximum.reduceat(comm.ints("start_ns")[matched.order], begins)
    spread = last - np.minimum.reduceat(end, begins)
    shown = (members >= LEAST_MEMBERS) & (took >= LEAST_NS)
    return bool(shown.any() and spread[shown].sum() <= TOGETHER * took[shown].sum())

"""Reduces a simulated job to what each of stepscope's collectors really writes.

The simulator knows more than any collector: the fabric, the pipeline's schedule, which adapter a
request left through, when each operator began. What nobody records is removed here, so that scores
speak of jobs that users can have. Differences that remain, because the simulator has no such data:

- Phases are times of the device in every set, so `hooks` includes `--native phases`. Parts of
  passes (`--native modules`, one step in 32) are left out.
- In `nccl`, times are exact; NCCL's thread notices starts and ends a little late.
- `kineto` has kernels only if the job was simulated with them (`full` detail), and no stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from stepscope.evaluate.columns import only_tables, with_tables, without_columns, without_tables
from stepscope.evaluate.excerpt import until_unfinished
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.window import NULL, Ints, Mask, Strings, Table, Window

PHASES = (DATA_LOAD, FORWARD, BACKWARD, OPTIMIZER)
"""The phases that hooks and profiler traces have (docs/naming.md, docs/methods/kineto.md)."""
NOT_SAMPLED = ("xid", "nic_rx_errors")
"""Metrics of the simulator that the processor does not sample (docs/job-folder.md)."""
OF_HOSTS = ("nic_tx_bytes_per_s",)
"""Metrics that the processor samples for hosts only; the simulator has them for ranks."""
SAMPLED_NS, EVERY_NS = 500_000_000, 10_000_000_000
"""NCCL's kernel channels are recorded for half a second in ten (docs/nccl.md)."""
REDUCED = ("dp", "edp")
"""Groups of DDP's reducer."""


@dataclass(frozen=True)
class Collectors:
    """A set of collectors: its name on the command line, and what they write."""

    name: str
    help: str
    reduce: Callable[[Window], Window]
    whole_steps: bool = False
    """Whether a step that does not end is not written at all."""


def _hooks(window: Window) -> Window:
    """Calls without times on the device, and phases that the device timed."""
    window = without_tables(window, "transfers", "kernels", "kernel_summaries")
    return _processor(_timed(_phases_by_device(window), _never))


def _cupti(window: Window) -> Window:
    """Kernels only as summaries; without NCCL's operators, none can be assigned to a call."""
    window = without_tables(window, "transfers", "kernels")
    return _processor(_timed(_phases_by_device(window), _never))


def _nccl(window: Window) -> Window:
    window = without_tables(window, "kernels", "kernel_summaries")
    return _processor(_timed(_phases_by_device(_transfers(window)), _sampled))


def _all(window: Window) -> Window:
    window = _transfers(without_tables(window, "kernels"))
    return _processor(_timed(_phases_by_device(window), _every))


def _kineto(window: Window) -> Window:
    """A trace has only kernels that ended, and is written when all its steps have ended: a job that
    stands writes none of the step in which it does."""
    window = until_unfinished(window)
    window = only_tables(window, "steps", "phases", "kernels", "comm_ops")
    window = without_columns(window, "phases", "waits", "cpu_ns", "host_start_ns")
    operators = window.table("comm_ops")
    if operators is not None and operators.has("end_ns"):
        ended = operators.take(operators.ints("end_ns") != NULL)
        window = with_tables(window, {"comm_ops": ended})
    return without_columns(_named_phases(window), "comm_ops", "blocked_ns", "match")


COLLECTORS: Mapping[str, Collectors] = {
    one.name: one
    for one in (
        Collectors("hooks", "hooks with --native phases, and what the processor samples: operators "
                   "are calls without times on the device", _hooks),
        Collectors("cupti", "hooks, and summaries of kernels (--native cupti)", _cupti),
        Collectors("nccl", "hooks, network requests, and times of operators in half a second "
                   "of ten (--native nccl)", _nccl),
        Collectors("all", "everything that --native can record: operators have the times of their "
                   "kernels", _all),
        Collectors("kineto", "traces of PyTorch's profiler: no counters, no network requests",
                   _kineto, whole_steps=True),
    )
}  # fmt: skip
TOPOLOGY = "topology"
"""Added to a set (`all+topology`): the user supplies the switches."""


def collected(window: Window, name: str, topology: bool = False) -> Window:
    """What the collectors of a set write about this job; with the fabric if the user supplies it.

    Neither schedule nor fabric nor the end of the observation is written by any collector.
    """
    fabric = window.job.fabric if topology else None
    window = COLLECTORS[name].reduce(window)
    job = replace(window.job, schedule=None, fabric=fabric, observed_until_ns=None)
    return Window(job, window.tables)


def _named_phases(window: Window) -> Window:
    """Only phases that collectors know; communication is no phase of theirs."""
    phases = window.table("phases")
    if phases is None:
        return window
    return with_tables(window, {"phases": phases.take(phases.strings("phase").equals(*PHASES))})


def _all_done(operators: Table) -> Table:
    if not operators.has("state"):
        return operators
    return operators.with_column("state", Strings(np.zeros(len(operators), np.int32), ("done",)))


def _timed(window: Window, timed: Callable[[Ints], Mask]) -> Window:
    """Operators with the times of those that ended and were `timed`; the others are just calls.

    An end without a start is not written, and an operator that never ended is a call: neither CUPTI
    nor NCCL's channels report it (`processor.operators.joiner`).
    """
    operators = window.table("comm_ops")
    if operators is None:
        return window
    start, end = operators.ints("start_ns"), operators.ints("end_ns")
    known = (start != NULL) & (end != NULL) & timed(end)
    operators = operators.with_column("start_ns", np.where(known, start, NULL))
    operators = operators.with_column("end_ns", np.where(known, end, NULL))
    window = with_tables(window, {"comm_ops": _all_done(operators)})
    return without_columns(window, "comm_ops", "blocked_ns", "match")


def _sampled(end: Ints) -> Mask:
    """Whether NCCL's kernel channels were recorded then."""
    return end % EVERY_NS < SAMPLED_NS


def _every(end: Ints) -> Mask:
    return np.ones(len(end), np.bool_)


def _never(end: Ints) -> Mask:
    return np.zeros(len(end), np.bool_)


def _transfers(window: Window) -> Window:
    """NCCL does not report the adapter of a request."""
    return without_columns(window, "transfers", "nic")


def _phases_by_device(window: Window) -> Window:
    """Phases between two events on the device (docs/phases.md): where an operator was called, it is
    unknown how long the device waited, except for the tail of backward under DDP."""
    window = without_columns(_named_phases(window), "phases", "cpu_ns")
    phases = window.table("phases")
    if phases is None or not phases.has("wait_ns"):
        return window
    called, reduced = _called(window, phases)
    tail = (reduced > 0) & (called == reduced) & phases.strings("phase").equals(BACKWARD)
    # of large jobs the simulator does not record the operators inside of passes
    known = phases.mask("waits") if phases.has("waits") else phases.ints("wait_ns") != 0
    none = (called == 0) & ~known
    wait = np.where(none, 0, np.where(tail, phases.ints("wait_ns"), NULL))
    phases = phases.with_column("wait_ns", wait).with_column("waits", wait != 0)
    return with_tables(window, {"phases": phases})


def _called(window: Window, phases: Table) -> tuple[Ints, Ints]:
    """How many operators were called in each phase, and how many of them by DDP's reducer."""
    operators = window.table("comm_ops")
    nothing = np.zeros(len(phases), np.int64)
    if operators is None:
        return nothing, nothing.copy()
    words = operators.strings("group")
    kinds = [group.kind if group else "" for group in map(window.job.group, words.values)]
    of_data = np.array([*(kind in REDUCED for kind in kinds), False])[words.codes]
    bucket = of_data & operators.strings("op").equals("AllReduce")
    return _count(phases, operators), _count(phases, operators.take(bucket))


def _count(phases: Table, operators: Table) -> Ints:
    """How many of the operators were in each phase of their rank: called or begun in it, because
    the host may be ahead of the device."""
    names = [name for name in ("enqueue_ns", "start_ns") if operators.has(name)]
    moments = {rank: [np.sort(some.ints(name)) for name in names]
               for rank, some in operators.per_rank()}  # fmt: skip
    found = np.zeros(len(phases), np.int64)
    rank = phases.ints("rank")
    order = np.argsort(rank, kind="stable")
    edges = np.flatnonzero(np.diff(rank[order], prepend=-2, append=-2))
    start = phases.ints("start_ns")
    end = start + phases.ints("duration_ns")
    for first, stop in pairwise(edges.tolist()):
        rows = order[first:stop]
        for some in moments.get(int(rank[rows[0]]), ()):
            inside = np.searchsorted(some, end[rows]) - np.searchsorted(some, start[rows])
            found[rows] = np.maximum(found[rows], inside)
    return found


def _processor(window: Window) -> Window:
    """What the processor samples: no states of threads, and only its own counters."""
    window = without_columns(window, "stacks", "active", "gil")
    hardware = window.table("hardware")
    if hardware is None:
        return window
    metric = hardware.strings("metric")
    foreign = metric.equals(*NOT_SAMPLED)
    foreign |= metric.equals(*OF_HOSTS) & (hardware.ints("rank") >= 0)
    return with_tables(window, {"hardware": hardware.take(~foreign)})

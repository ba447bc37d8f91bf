"""Breakdown of the time of each rank and step: compute, communication, copies, waiting.

Paper: none; the categories are those of HolisticTraceAnalysis (Meta, 2022), so that results can be
compared.

    compute   a compute kernel is running                exposed   communication and nothing else
    hidden    communication during compute               copy      only copies or memsets
    idle      nothing is running; compute + exposed + copy + idle = total

Idle time is `host_wait` if the next kernel was launched only after the device had become idle (one
of its `pauses` if that takes longer than launching does, or after a copy to the host, which `reads`
a value before it launches more), `kernel_wait` if it is shorter than the device needs from one
kernel to the next, else `other` (for example, waiting for an event of another stream). A step on
the device runs from its first kernel to the first kernel of the next step, or to its own last one
if the next step was not recorded: windows of a profiler are far apart. On CPU the outermost
operators count as compute, and idle time is `other`; an operator that waits for communication
computes only outside of the waiting (`computing` in `formats.kineto`).
Cost: a few sorts of `kernels`. Cannot see: waiting inside a kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis, axis_over
from stepscope.trace.kernels import is_communication
from stepscope.window import (
    NULL,
    Ints,
    Mask,
    Strings,
    Table,
    Union,
    Window,
    distinct,
    joined,
    known_steps,
    union,
)

KERNEL_WAIT_NS = 30_000
"""`consecutive_kernel_delay` of HolisticTraceAnalysis: 30 microseconds. Paper."""
PAUSE_NS = 1_000_000
"""A host that launches nothing for so long, while its device idles, does something else: to launch
an operator takes 5 to 50 us. Measured on real data (`formats.kineto.launches.QUEUED_NS`)."""
_PASSES_ON = re.compile(r"SendRecv|send|recv|receive|permute", re.I)
_COPY = re.compile(
    r"(?:hip)?Mem(?:cpy|set)|dma|__amd_rocclr_(?:copy|fill)|Copy(?:Host|Device)To|FillBuffer"
)
"""Names of copies and memsets in CUPTI, roctracer and rocprofiler; in ROCm some are kernels."""
_TO_HOST = re.compile(r"(?:hip)?Memcpy ?D(?:evice)?(?:to|2)H|CopyDeviceToHost", re.I)
_CALLS = ("c10d::", "c10d_functional", "_c10d_functional", "record_param_comms")
_WHOLE = -1
"""Instead of a step number: the whole recording."""


@dataclass(frozen=True)
class Breakdown:
    """Tables of times in ns, with the columns that the module docstring describes."""

    ranks: Table
    """One row per rank, from its first kernel to its last."""
    steps: Table
    """One row per rank and step."""


@dataclass(frozen=True)
class _Work:
    """What ran when, for all ranks on one axis."""

    ranks: Ints
    axis: Axis
    compute: Union
    either: Union
    """Compute or communication."""
    communication: Union
    everything: Union
    host_wait: Union
    pauses: Union
    """The parts of `host_wait` in which the host does something else than launch."""
    reads: Union
    """The parts of `pauses` that follow a copy to the host."""
    kernel_wait: Union


def breakdown(window: Window) -> Breakdown | None:
    """The breakdown of a window, or None if neither kernels nor operators were recorded."""
    running = _running(window)
    if running is None:
        return None
    ranks = distinct(running.ints("rank"))
    rank = np.searchsorted(ranks, running.ints("rank"))
    begin, end = running.ints("start_ns"), running.ints("end_ns")
    axis = axis_over(len(ranks), begin, end)
    if axis is None:
        return None
    work = _work(ranks, axis, rank, running)
    spans = _spans(ranks, rank, running)
    whole = spans.ints("step") == _WHOLE
    parts = _parts(work, spans)
    return Breakdown(parts.take(whole), parts.take(~whole))


def _running(window: Window) -> Table | None:
    """Everything that ran, with rank, step, kind, start, end and launch."""
    kernels = window.table("kernels")
    if kernels is not None:
        return _possible(_of_kernels(kernels))
    operators = window.table("host_ops")
    if operators is None:
        return None
    parts = [_of_operators(operators)]
    comm = window.table("comm_ops")
    if comm is not None and comm.has("start_ns", "end_ns", "step"):
        parts.append(_of_comm(comm))
    return _possible(joined(parts))


_COMPUTES, _COMMUNICATES, _COPIES, _READS = 0, 1, 2, 3


def _of_kernels(kernels: Table) -> Table:
    names = kernels.strings("kernel")
    kinds = np.array([_kind(name) for name in names.values] or [0], np.int64)
    start = kernels.ints("start_ns")
    launch = kernels.ints("enqueue_ns") if kernels.has("enqueue_ns") else np.full_like(start, NULL)
    return _table(kernels, kinds[names.codes], start,
                  start + kernels.ints("duration_ns"), launch)  # fmt: skip


def is_computing(name: str) -> bool:
    """Whether a kernel or an outermost operator is compute, by its name."""
    return _kind(name) == _COMPUTES and not name.startswith(_CALLS)


def computing(names: Strings) -> Mask:
    """Which rows of kernels or outermost operators are compute."""
    return names.equals(*filter(is_computing, names.values))


def is_communicating(kernel: str) -> bool:
    """Whether a kernel moves data between ranks, and waits for them, by its name."""
    return _kind(kernel) == _COMMUNICATES


def passes_on(kernel: str) -> bool:
    """Whether a kernel passes data from one rank to another, as between pipeline stages."""
    return is_communicating(kernel) and _PASSES_ON.search(kernel[:64]) is not None


def is_copying(kernel: str) -> bool:
    """Whether a kernel copies or sets memory, by its name."""
    return _kind(kernel) in (_COPIES, _READS)


def copies_to_host(kernel: str) -> bool:
    """Whether a kernel copies memory of the device to its host, by its name."""
    return _TO_HOST.match(kernel) is not None


def _kind(kernel: str) -> int:
    if _COPY.match(kernel):
        return _READS if copies_to_host(kernel) else _COPIES
    return _COMMUNICATES if is_communication(kernel) else _COMPUTES


def _of_operators(operators: Table) -> Table:
    names = operators.strings("name")
    calls = np.array([name.startswith(_CALLS) for name in names.values] or [False], np.bool_)
    own = operators.take(~calls[names.codes])
    start = own.ints("start_ns")
    computes, unknown = np.full_like(start, _COMPUTES), np.full_like(start, NULL)
    return _table(own, computes, start, start + own.ints("duration_ns"), unknown)


def _of_comm(comm: Table) -> Table:
    known = comm.take((comm.ints("start_ns") != NULL) & (comm.ints("end_ns") != NULL))
    start = known.ints("start_ns")
    communicates, unknown = np.full_like(start, _COMMUNICATES), np.full_like(start, NULL)
    return _table(known, communicates, start, known.ints("end_ns"), unknown)


def _table(of: Table, kind: Ints, start: Ints, end: Ints, launch: Ints) -> Table:
    return Table({
        "rank": of.ints("rank"), "step": of.ints("step"), "kind": kind,
        "start_ns": start, "end_ns": end, "launch_ns": launch,
    })  # fmt: skip


def _possible(table: Table) -> Table | None:
    table = table.take((table.ints("rank") >= 0) & (table.ints("end_ns") >= table.ints("start_ns")))
    return table if len(table) else None


def _work(ranks: Ints, axis: Axis, rank: Ints, running: Table) -> _Work:
    kind = running.ints("kind")
    begin, end = axis.at(rank, running.ints("start_ns")), axis.at(rank, running.ints("end_ns"))
    everything = union(begin, end)
    host, pauses, reads, kernel = _gaps(
        axis, everything, rank, begin, end, running.ints("launch_ns"), kind == _READS
    )
    computes, communicates = kind == _COMPUTES, kind == _COMMUNICATES
    either = computes | communicates
    return _Work(
        ranks, axis, union(begin[computes], end[computes]), union(begin[either], end[either]),
        union(begin[communicates], end[communicates]), everything, host, pauses, reads, kernel,
    )  # fmt: skip


def _gaps(
    axis: Axis, busy: Union, rank: Ints, begin: Ints, stop: Ints, launch: Ints, read: Mask
) -> tuple[Union, ...]:
    """Idle gaps of the device: those that wait for the host; of these the ones in which it does
    something else than launch, and of these the ones after copies to it; those between kernels."""
    order, by_end = np.argsort(begin, kind="stable"), np.argsort(stop, kind="stable")
    next_ = order[np.searchsorted(begin[order], busy.start[1:])]
    last = by_end[np.searchsorted(stop[by_end], busy.end[:-1], side="right") - 1]
    start, end = busy.end[:-1], busy.start[1:]
    same = start // axis.span_ns == end // axis.span_ns
    known = launch[next_] != NULL
    launched = np.where(known, axis.at(rank[next_], np.where(known, launch[next_], 0)), -1)
    host = same & (launched > start)
    short = same & ~host & (end - start < KERNEL_WAIT_NS)
    reads = host & read[last]
    kinds = (host, reads | (host & (end - start >= PAUSE_NS)), reads, short)
    return tuple(union(start[kind], end[kind]) for kind in kinds)


def _spans(ranks: Ints, rank: Ints, running: Table) -> Table:
    """The whole recording of each rank, and its steps."""
    step, start, end = (running.ints(name) for name in ("step", "start_ns", "end_ns"))
    order = np.argsort(rank, kind="stable")
    parts = np.split(order, np.searchsorted(rank[order], np.arange(1, len(ranks))))
    rows = [_bounds(one, start[part], end[part], step[part])
            for one, part in zip(ranks.tolist(), parts, strict=True)]  # fmt: skip
    return joined(rows)


def _bounds(rank: int, start: Ints, end: Ints, step: Ints) -> Table:
    known = known_steps(step)
    steps, at = np.unique(step[known], return_inverse=True)
    first = np.full(steps.size, np.iinfo(np.int64).max)
    np.minimum.at(first, at, start[known])
    last = np.full(steps.size, NULL)
    np.maximum.at(last, at, end[known])
    order = np.argsort(first, kind="stable")
    begins = first[order]
    until = np.append(begins[1:], end.max())[: steps.size]
    apart = np.flatnonzero(np.diff(steps[order]) > 1)
    until[apart] = np.minimum(until[apart], last[order][apart])
    return Table({
        "rank": np.full(steps.size + 1, rank),
        "step": np.append(steps[order], _WHOLE),
        "start_ns": np.append(begins, start.min()),
        "end_ns": np.append(until, end.max()),
    })  # fmt: skip


def _parts(work: _Work, spans: Table) -> Table:
    row = np.searchsorted(work.ranks, spans.ints("rank"))
    begin = work.axis.at(row, spans.ints("start_ns"))
    end = work.axis.at(row, spans.ints("end_ns"))

    def inside(one: Union) -> Ints:
        return one.within(begin, end)

    length = end - begin
    compute, either, busy = inside(work.compute), inside(work.either), inside(work.everything)
    host, kernel = inside(work.host_wait), inside(work.kernel_wait)
    idle = length - busy
    return Table({
        "rank": spans.ints("rank"), "step": spans.ints("step"),
        "start_ns": spans.ints("start_ns"), "duration_ns": length,
        "compute_ns": compute, "exposed_ns": either - compute,
        "hidden_ns": inside(work.communication) - (either - compute), "copy_ns": busy - either,
        "idle_ns": idle, "host_wait_ns": host, "pauses_ns": inside(work.pauses),
        "reads_ns": inside(work.reads),
        "kernel_wait_ns": kernel, "other_ns": idle - host - kernel,
    })  # fmt: skip

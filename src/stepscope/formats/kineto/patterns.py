"""The events of a recording by their class, for the patterns of its functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.formats.kineto.comm import ON_CPU
from stepscope.formats.kineto.launches import COPIES, Launched, began, communication_kernels
from stepscope.formats.kineto.names import AUTOGRAD, LOADER, OPTIMIZER_STEP, PROFILER_STEP
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, latest_before, named, outermost
from stepscope.formats.kineto.steps import Steps
from stepscope.patterns import Activity, Span, summarize, table_of
from stepscope.trace import ALLOCATION
from stepscope.window import NULL, Mask, Strings, Table, distinct, joined

_MARKS = (PROFILER_STEP, OPTIMIZER_STEP, LOADER)
_WAIT = (*ON_CPU, "FSDP::")
"""Annotations in which a rank waits for others."""
_TIMES = ("start_ns", "duration_ns")
_COLUMNS = (*_TIMES, "name")
BLOCKED_NS = 100_000
"""A longer call of the runtime is blocked: usual ones take 5 to 20 us. Measured on real data."""
BLOCKED = "Synchronize (call of the runtime)"
"""The function of their time: no operator's. By this word it counts as a wait for the device."""
_ALLOCATE = tuple(
    f"{runtime}{call}"
    for runtime in ("cuda", "hip")
    for call in ("Malloc", "Free", "HostAlloc", "HostMalloc", "HostFree")
)
"""Calls for memory of the device, or pinned memory of the host."""


def patterns(recorded: Recording, steps: Steps, span_ns: tuple[int, int], of: Launched) -> Table:
    """The rows without rank: of the steps, else of the whole recording."""
    first, last = step_numbers(steps) or (NULL, NULL)
    span = window(recorded, steps, span_ns, of)
    return table_of(summarize(activity(recorded), span), first, last)


def window(recorded: Recording, steps: Steps, span_ns: tuple[int, int], of: Launched) -> Span:
    """The time in which a rank executed its steps, else the whole recording.

    A host runs ahead of its device, some ranks' further than others'. So with a device, a window is
    from the end of what was launched before the steps to the end of what was launched in them: then
    those of all ranks hold the same work.
    """
    if not steps.number.size:
        return Span(*span_ns)
    end = int(steps.end_ns.max())
    inside = steps.of(of.counted_ns) != NULL
    last = int(ends(recorded.device)[inside].max(initial=end))
    return Span(began(recorded, steps, of), max(end, last))


def step_numbers(steps: Steps) -> tuple[int, int] | None:
    """The numbers of the first and the last step; None if there are none."""
    if not steps.number.size:
        return None
    return int(steps.number.min()), int(steps.number.max())


def activity(recorded: Recording) -> Activity:
    """The events of the device, and of the threads that work for the training."""
    talks = communication_kernels(recorded.device)
    copies = named(recorded.device, *COPIES)
    python = recorded.python.take(recorded.python.ints("thread") == recorded.main)
    return Activity(
        recorded.device.take(~talks & ~copies),
        recorded.device.take(copies),
        _communication(recorded, recorded.device.take(talks)),
        tuple(_operators(recorded)),
        python if len(python) else _marks(recorded),
    )


def _communication(recorded: Recording, kernels: Table) -> Table:
    """The device's kernels that communicate, and what is executed for it on the processor: in
    threads for it, but sends and receives in the thread that waits for them."""
    calls = recorded.calls.take(named(recorded.calls, *ON_CPU))
    if not len(calls) or not len(kernels):
        return calls if len(calls) else kernels
    return _both(kernels, calls)


def _operators(recorded: Recording) -> Iterator[Table]:
    """Operators of the training thread first, then of the threads of autograd; with what is inside
    of them a wait for the device, or for memory."""
    cpu = recorded.cpu.take(~named(recorded.cpu, *_MARKS))
    threads = cpu.ints("thread")
    backward = distinct(threads[named(cpu, AUTOGRAD)]).tolist()
    waits = _both(blocked(recorded), allocations(recorded))
    for thread in (recorded.main, *(one for one in backward if one != recorded.main)):
        own = cpu.take(threads == thread)
        within = _within(own, waits)
        yield _both(own, waits.take(within)) if within.any() else own
        waits = waits.take(~within)


def blocked(recorded: Recording) -> Table:
    """The calls of the runtime in which a thread is blocked until the device gets on: long ones,
    while the device works. The runtime's threads are not known.
    """
    calls, busy = long_calls(recorded), recorded.device_works
    calls = calls.take(~named(calls, *_ALLOCATE))
    start, length = calls.ints("start_ns"), calls.ints("duration_ns")
    return _called(calls.take(2 * busy.within(start, start + length) > length), BLOCKED)


def allocations(recorded: Recording) -> Table:
    """The calls of the runtime for memory that take long: they wait for the device as well, and
    until they end nothing is launched. PyTorch keeps memory, so after the first steps there are
    none, unless memory is short or in pieces that do not fit."""
    calls = long_calls(recorded)
    return _called(calls.take(named(calls, *_ALLOCATE)), ALLOCATION)


def _called(calls: Table, function: str) -> Table:
    names = Strings(np.zeros(len(calls), np.int32), (function,))
    return Table({**{one: calls.ints(one) for one in _TIMES}, "name": names})


def long_calls(recorded: Recording) -> Table:
    """The calls of the runtime that last so long that they may wait for the device."""
    return recorded.runtime.take(recorded.runtime.ints("duration_ns") > BLOCKED_NS)


def _within(operators: Table, calls: Table) -> Mask:
    """The calls that are inside of an operator."""
    around = operators.take(outermost(operators))
    if not len(around):
        return np.zeros(len(calls), np.bool_)
    at = latest_before(around.ints("start_ns"), calls.ints("start_ns"))
    return np.asarray((at >= 0) & (ends(calls) <= ends(around)[np.maximum(at, 0)]))


def _both(one: Table, other: Table) -> Table:
    """The rows of both, in order of time, those that last longer first."""
    both = joined([Table({name: t.columns[name] for name in _COLUMNS}) for t in (one, other)])
    return both.take(np.lexsort((-both.ints("duration_ns"), both.ints("start_ns"))))


def _marks(recorded: Recording) -> Table:
    """Annotations of the training thread; old exporters write them as operators.

    Not those of communication and of FSDP, which wait for other ranks.
    """
    for table in (recorded.marks, recorded.cpu.take(named(recorded.cpu, *_MARKS))):
        own = (table.ints("thread") == recorded.main) & ~named(table, PROFILER_STEP, *_WAIT)
        if own.any():
            return table.take(own)
    return recorded.marks.take(np.zeros(0, np.intp))

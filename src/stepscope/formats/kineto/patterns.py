"""The events of a recording by their class, for the patterns of its functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.formats.kineto.comm import ON_CPU
from stepscope.formats.kineto.launches import COPIES, Launched, began, communication_kernels
from stepscope.formats.kineto.names import AUTOGRAD, LOADER, OPTIMIZER_STEP, PROFILER_STEP
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, named
from stepscope.formats.kineto.steps import Steps
from stepscope.patterns import Activity, Span, summarize, table_of
from stepscope.window import NULL, Table, distinct, joined

_MARKS = (PROFILER_STEP, OPTIMIZER_STEP, LOADER)
_WAIT = (*ON_CPU, "FSDP::")
"""Annotations in which a rank waits for others."""
_COLUMNS = ("start_ns", "duration_ns", "name")


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
    both = joined([Table({one: t.columns[one] for one in _COLUMNS}) for t in (kernels, calls)])
    return both.take(np.lexsort((-both.ints("duration_ns"), both.ints("start_ns"))))


def _operators(recorded: Recording) -> Iterator[Table]:
    """Operators of the training thread first, then of the threads of autograd."""
    cpu = recorded.cpu.take(~named(recorded.cpu, *_MARKS))
    threads = cpu.ints("thread")
    backward = distinct(threads[named(cpu, AUTOGRAD)]).tolist()
    for thread in (recorded.main, *(one for one in backward if one != recorded.main)):
        yield cpu.take(threads == thread)


def _marks(recorded: Recording) -> Table:
    """Annotations of the training thread; old exporters write them as operators.

    Not those of communication and of FSDP, which wait for other ranks.
    """
    for table in (recorded.marks, recorded.cpu.take(named(recorded.cpu, *_MARKS))):
        own = (table.ints("thread") == recorded.main) & ~named(table, PROFILER_STEP, *_WAIT)
        if own.any():
            return table.take(own)
    return recorded.marks.take(np.zeros(0, np.intp))

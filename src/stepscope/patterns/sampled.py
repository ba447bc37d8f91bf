"""Patterns from sampled call stacks (table `stacks`): other threads, and jobs without a trace.

A sampled function's beta is the share of the window in which its thread was seen in it: for the
training thread in any state, as it is on the critical path then; for other threads only while they
were active, as a thread that waits delays nobody by itself. Where that is unknown, loader workers
count in any state: the function shows whether they wait.
Its mu is the share of its samples in which the thread was active. Functions in C are not seen:
their time is that of their caller. When somebody held the GIL is not known, only for how long while
it was sampled, so that share of the sampled time is taken for the window's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stepscope.patterns.activity import Span
from stepscope.patterns.frames import LOADER_WAIT, Frame, stacked
from stepscope.patterns.rows import PYTHON, Pattern
from stepscope.patterns.use import Series, in_order
from stepscope.trace import GIL
from stepscope.window import Floats, Ints, Mask, Table

MAIN = "MainThread"
INSTANT_NS = 10_000_000
"""A run of identical samples counts as one sample each 10 ms. Our choice: finer than py-spy asks
the system whether a thread is active."""
MOST_INSTANTS = 1_000_000
"""Limit for rows that claim to last for months."""
_PIN_MEMORY, _WORKER = "_pin_memory_loop", "loader worker"
_CPU = "cpu"


@dataclass(frozen=True)
class _Place:
    """A function of a thread, with its caller in the user's code: without lines."""

    thread: str | None
    function: str
    file: str
    caller: str | None
    caller_file: str


@dataclass
class _Seen:
    """The weight of a function's samples; lines with the most of it are reported."""

    weight: float = 0.0
    active: float = 0.0
    unknown: float = 0.0
    samples: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    caller_lines: Counter[int] = field(default_factory=Counter)


def sampled_patterns(stacks: Table, span: Span, training: bool) -> list[Pattern]:
    """The patterns of the threads in the rows of one process.

    Args:
        training: whether the training thread is wanted; a trace knows it better.
    """
    weight = _weights(stacks, span)
    seen: dict[_Place, _Seen] = {}
    threads, frames = stacks.strings("thread"), stacks.strings("frames")
    active = _flags(stacks, "active")
    places: dict[tuple[str | None, str], tuple[_Place, Frame, Frame | None] | None] = {}
    for row in np.flatnonzero(weight > 0).tolist():
        key = (threads[row], frames[row] or "")
        if key not in places:
            places[key] = _place(*key)
        placed = places[key]
        if placed is not None:
            _count(seen.setdefault(placed[0], _Seen()), placed, weight[row], active[row])
    return [pattern for place, one in seen.items()
            if (place.thread is not None or training)
            and (pattern := _pattern(place, one, span)) is not None]  # fmt: skip


def training_use(stacks: Table) -> Series:
    """Whether the training thread was active, at each instant that was sampled."""
    active = _flags(stacks, "active")
    rows = np.flatnonzero(stacks.strings("thread").equals(MAIN) & (active >= 0))
    start, length = stacks.ints("start_ns")[rows], np.maximum(stacks.ints("duration_ns")[rows], 0)
    count = np.maximum(length // INSTANT_NS, 1)
    if count.sum() > MOST_INSTANTS:
        count = np.ones_like(count)
    into = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    at = np.repeat(start, count) + (2 * into + 1) * np.repeat(length // (2 * count), count)
    return in_order(Series(_CPU, at, at, np.repeat(active[rows], count).astype(np.float64)))


def _weights(stacks: Table, span: Span) -> Floats:
    """How much of the window each row stands for, in nanoseconds.

    A run lasts; of snapshots, which do not, each stands for the same part of the window. Snapshots
    beside runs are of moments that the runs contain.
    """
    start, length = stacks.ints("start_ns"), stacks.ints("duration_ns")
    end = start + np.maximum(length, 0)
    inside: Ints = np.minimum(end, span.end_ns) - np.maximum(start, span.start_ns)
    if (length > 0).any():
        threads = stacks.strings("thread")
        held = threads.equals(*(name for name in threads.values if name.startswith(GIL)))
        return np.where(held, _held(start, length, held, span), np.maximum(inside, 0) / 1)
    within: Mask = (start >= span.start_ns) & (start < span.end_ns)
    moments = np.unique(start[within]).size
    return np.where(within, span.length_ns, 0) / max(moments, 1)


def _held(start: Ints, length: Ints, held: Mask, span: Span) -> Floats:
    """How much of the window each row held the GIL, if it was always held as often as on average.

    Sampling lasts from its first row to the end of the window at least.
    """
    if not held.any():
        return np.zeros(length.size)
    lasted = max(span.end_ns - int(start[held].min()), int(length[held].sum()), 1)
    return np.asarray(length * (span.length_ns / lasted))


def _flags(stacks: Table, name: str) -> Ints:
    """1 and 0 for true and false, -1 for unknown."""
    if not stacks.has(name):
        return np.full(len(stacks), -1, np.int64)
    values = stacks.ints(name)
    return np.where((values == 0) | (values == 1), values, -1)


def _place(thread: str | None, text: str) -> tuple[_Place, Frame, Frame | None] | None:
    frames = [stacked(one) for one in text.split(";") if one]
    if not frames:
        return None
    waits = next((at for at, frame in enumerate(frames) if frame.waits_for_loader), None)
    at = len(frames) - 1 if waits is None else waits
    frame = frames[at]
    caller = next((one for one in reversed(frames[:at]) if one.is_own), None)
    name = LOADER_WAIT if waits is not None else frame.function
    place = _Place(
        _thread(thread or "?", frames), name, frame.file,
        caller.function if caller else None, caller.file if caller else "",
    )  # fmt: skip
    return place, frame, caller


def _thread(name: str, frames: list[Frame]) -> str | None:
    """The name of a thread in table `patterns`."""
    if name == MAIN:
        return None
    if _PIN_MEMORY in name or any(frame.function == _PIN_MEMORY for frame in frames):
        return "pin memory"
    return name


def _count(
    seen: _Seen, placed: tuple[_Place, Frame, Frame | None], weight: float, active: int
) -> None:
    _, frame, caller = placed
    seen.weight += weight
    seen.samples += 1
    if active == 1:
        seen.active += weight
    elif active < 0:
        seen.unknown += weight
    seen.lines[frame.line] += int(weight)
    if caller is not None:
        seen.caller_lines[caller.line] += int(weight)


def _pattern(place: _Place, seen: _Seen, span: Span) -> Pattern | None:
    """None if nothing is known of it: whether another thread was active."""
    known = seen.weight - seen.unknown
    loads = place.thread is not None and place.thread.startswith(_WORKER)
    if place.thread is not None and known <= 0 and not loads:
        return None
    weight = seen.weight if place.thread is None or known <= 0 else seen.active
    mu = seen.active / known if known > 0 else None
    return Pattern(
        place.function, PYTHON, min(weight / max(span.length_ns, 1), 1.0), mu,
        None if mu is None else float(np.sqrt(mu * (1 - mu))),
        Frame(place.function, place.file, seen.lines.most_common(1)[0][0]).location,
        _caller(place, seen), place.thread, None, None if mu is None else _CPU, None,
    )  # fmt: skip


def _caller(place: _Place, seen: _Seen) -> str | None:
    if place.caller is None:
        return None
    return Frame(place.caller, place.caller_file, seen.caller_lines.most_common(1)[0][0]).as_caller

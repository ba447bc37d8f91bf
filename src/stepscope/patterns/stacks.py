"""Which function each call stack of the training thread counts for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepscope.patterns.compiled import innermost
from stepscope.patterns.frames import LOADER_WAIT, Frame, traced
from stepscope.window import Ints, Mask, Table, numbered

SHORT_NS = 10_000
"""A function in C that takes less than this per call counts for its caller: what it costs is that
it is called so often, and torch.profiler takes a good part of it. Our choice."""


@dataclass(frozen=True)
class Nested:
    """The innermost calls of one thread: segments of time, and their call stacks."""

    start_ns: Ints
    end_ns: Ints
    stack: Ints
    parent: Ints
    """Of each stack; -1 if there is none."""
    name: Ints
    """Of each stack, the innermost function."""
    calls: Ints
    """Of each stack."""

    @property
    def own_ns(self) -> Ints:
        """The time of each stack itself, without what it calls."""
        own = np.bincount(self.stack, self.end_ns - self.start_ns, self.parent.size)
        return own.astype(np.int64)


def nested(table: Table, names: Ints | None = None) -> Nested:
    """The innermost calls of a table of one thread; `names` replaces its codes of names."""
    start = np.ascontiguousarray(table.ints("start_ns"))
    end = start + table.ints("duration_ns")
    codes = table.strings("name").codes
    named = codes if names is None else names[codes]
    segments, stacks = innermost(
        start.tobytes(), end.tobytes(), named.astype(np.int32, copy=False).tobytes()
    )
    segment = np.frombuffer(segments, np.int64).reshape(-1, 3).T
    stack = np.frombuffer(stacks, np.int64).reshape(-1, 3).T
    return Nested(*map(np.ascontiguousarray, (*segment, *stack)))


@dataclass(frozen=True)
class Functions:
    """Python functions, each with its caller in the user's own code."""

    frames: tuple[Frame, ...]
    function: Ints
    """The place in `frames` of each function."""
    caller: Ints
    """The place in `frames` of its caller; -1 if there is none."""
    calls: Ints
    loads: Mask
    """Whether it was called to load the next batch."""


def named_functions(table: Table) -> tuple[Nested, Functions, Ints]:
    """The nested calls of Python functions, the functions, and which of them each stack is.

    Stacks of the same function and the same caller in the user's code are one function, if both or
    none load data: what differs are frames of libraries between the two.
    """
    frames, codes = _frames(table)
    calls = nested(table, codes)
    counts_for = _counts_for(calls, frames)
    above = np.where(counts_for >= 0, calls.parent[counts_for], -1)
    own = _mask(frame.is_own for frame in frames)
    caller = nearest(calls.parent, own[calls.name], above)
    at, by = calls.name[counts_for], np.where(caller >= 0, calls.name[caller], -1)
    loader = _mask(frame.loads or frame.waits_for_loader for frame in frames)[calls.name]
    loads: Mask = nearest(calls.parent, loader, counts_for) >= 0
    of = numbered(at, by, loads.astype(np.int64))
    first = np.zeros(int(of.max(initial=-1)) + 1, np.int64)
    first[of] = np.arange(of.size)
    itself = counts_for == np.arange(of.size)
    number = np.bincount(of, np.where(itself, calls.calls, 0), first.size).astype(np.int64)
    return calls, Functions(frames, at[first], by[first], number, loads[first]), of


def _frames(table: Table) -> tuple[tuple[Frame, ...], Ints]:
    """The distinct functions of a table, and which of them each of its names is."""
    places: dict[Frame, int] = {}
    names = table.strings("name")
    used = np.zeros(len(names.values), np.bool_)
    used[names.codes] = True
    codes = [places.setdefault(traced(value), len(places)) if here else 0
             for value, here in zip(names.values, used.tolist(), strict=True)]  # fmt: skip
    return tuple(places), np.array(codes, np.int64)


def _counts_for(calls: Nested, frames: tuple[Frame, ...]) -> Ints:
    """For each stack the stack that it counts for: itself, a caller, or the loader's wait."""
    builtin = _mask(frame.is_builtin for frame in frames)[calls.name]
    ours = np.append(_mask(frame.is_ours for frame in frames)[calls.name], False)[calls.parent]
    short = builtin & (calls.parent >= 0) & (ours | (calls.own_ns < SHORT_NS * calls.calls))
    itself = np.arange(calls.parent.size)
    counts_for = nearest(calls.parent, ~short, itself)
    loader = _mask(frame.waits_for_loader for frame in frames)[calls.name]
    if loader.any():
        waiting = nearest(calls.parent, loader, counts_for)
        counts_for = np.where(waiting >= 0, waiting, counts_for)
    return counts_for


def _mask(values: Iterable[bool]) -> Mask:
    return np.fromiter(values, np.bool_)


def nearest(parent: Ints, wanted: Mask, at: Ints) -> Ints:
    """For each place in a forest, itself or the nearest place above that is wanted; -1: none.

    Doubles its steps, so that even a stack a million deep takes twenty rounds.
    """
    if not parent.size:
        return at
    ends = np.append(wanted, True)  # the last one stands for -1
    hop = np.where(ends, np.arange(ends.size), np.append(parent, -1))
    hop[hop < 0] = parent.size
    while not ends[hop].all():
        hop = hop[hop]
    found = hop[at]
    return np.where(found == parent.size, -1, found)


def function_name(frame: Frame) -> str:
    return LOADER_WAIT if frame.waits_for_loader else frame.function

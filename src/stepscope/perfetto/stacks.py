"""Converts samples of a call stack into nested slices: one per function and uninterrupted run.

Lossy: functions that run between two samples are missed, and one that returned and was called again
between them appears uninterrupted. Frames deeper than `DEEPEST` are left out.
"""

from __future__ import annotations

import numpy as np

from stepscope.perfetto.slices import Slices, ends
from stepscope.window import Ints, Mask, Strings, Table

DEEPEST = 200
GAP_NS = 250_000_000
"""At ten samples a second, one or two may be missing without interrupting a function."""


def nested(samples: Table) -> Slices:
    """The samples of one thread as slices, callers before callees."""
    begin = samples.ints("start_ns")
    end = ends(begin, samples.ints("duration_ns"))
    samples = samples.take((end >= begin) & (samples.strings("frames").codes >= 0))
    samples = samples.take(np.argsort(samples.ints("start_ns"), kind="stable"))
    begin = samples.ints("start_ns")
    end = ends(begin, samples.ints("duration_ns"))
    # samples are accurate to 0.1 s only, so each ends where the next begins
    end[:-1] = np.minimum(end[:-1], begin[1:])
    frames, names = _frames(samples.strings("frames"))
    return _merged(begin, end, frames, names)


def _frames(stacks: Strings) -> tuple[Ints, tuple[str, ...]]:
    """Frame numbers as `[sample, depth]`, -1 below the innermost; and the frames' names."""
    numbers: dict[str, int] = {}
    used, codes = np.unique(stacks.codes, return_inverse=True)
    split = [[numbers.setdefault(frame, len(numbers)) for frame in _split(stacks.values[code])]
             for code in used.tolist()]  # fmt: skip
    table = np.full((len(split), max(map(len, split), default=0)), -1, np.int64)
    for row, frames in zip(table, split, strict=True):
        row[: len(frames)] = frames
    return table[codes], tuple(numbers)


def _split(stack: str) -> list[str]:
    return stack.split(";")[:DEEPEST] if stack else []


def _merged(begin: Ints, end: Ints, frames: Ints, names: tuple[str, ...]) -> Slices:
    """Merges samples depth by depth; a change of a frame also ends all deeper ones."""
    stays = begin[1:] - end[:-1] <= GAP_NS
    starts, lasts, chosen, depths = [], [], [], []
    for depth in range(frames.shape[1]):
        frame = frames[:, depth]
        stays = stays & (frame[1:] == frame[:-1])
        first, last = _runs(frame, stays)
        starts.append(begin[first])
        lasts.append(end[last])
        chosen.append(frame[first])
        depths.append(np.full(first.size, depth))
    if not starts:
        return Slices(begin[:0], end[:0], Strings(np.zeros(0, np.int32), names))
    start, stop = np.concatenate(starts), np.concatenate(lasts)
    order = np.lexsort((np.concatenate(depths), -stop, start))
    codes = np.concatenate(chosen)[order].astype(np.int32)
    return Slices(start[order], stop[order], Strings(codes, names))


def _runs(frame: Ints, stays: Mask) -> tuple[Ints, Ints]:
    """The first and last sample of each run of the same frame at this depth."""
    here = frame >= 0
    starts, stops = here.copy(), here.copy()
    starts[1:] &= ~stays
    stops[:-1] &= ~stays
    return np.flatnonzero(starts), np.flatnonzero(stops)

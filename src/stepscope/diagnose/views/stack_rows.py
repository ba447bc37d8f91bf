"""Samples of call stacks, as recorded, in the columns that `stacks` judges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.diagnose.views.frames import PASSES, function_of
from stepscope.diagnose.views.stacks import Samples
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Ints, Mask, Table, Window

MAIN = "MainThread"
OURS = "stepscope-"
"""How the names of our own threads in a rank begin, also behind what py-spy says of the GIL."""


def in_training(stacks: Table) -> Mask:
    """The samples of main threads; of the threads that train, if no main thread does; else all."""
    threads, frames = stacks.strings("thread"), stacks.strings("frames")
    main = threads.equals(MAIN)
    train = np.array([any(path in text for path in PASSES) for text in frames.values], np.bool_)
    trains = np.append(train, False)[frames.codes]  # the last one: no frames
    if trains.any() and not (main & trains).any():
        return np.isin(threads.codes, np.unique(threads.codes[trains]))
    return np.asarray(main | ~main.any())


def beside_training(stacks: Table) -> Mask:
    """The samples of all other threads but our own, which do nothing for the job."""
    threads = stacks.strings("thread")
    ours = threads.equals(*(name for name in threads.values if OURS in name))
    return ~(in_training(stacks) | ours)


def read_samples(
    window: Window, line: Timeline, threads: Callable[[Table], Mask] = in_training
) -> Samples | None:
    """The samples of some threads, of those that train if not said otherwise; None if there are
    none."""
    table = window.table("stacks")
    if table is None:
        return None
    row = line.rows(table.ints("rank"))
    keep = (row >= 0) & (table.strings("frames").codes >= 0) & threads(table)
    if not keep.any():
        return None
    table, row = table.take(keep), row[keep]
    frames = table.strings("frames")
    used, code = np.unique(frames.codes, return_inverse=True)
    index = _index([frames.values[int(one)] for one in used])
    weight = np.maximum(table.ints("duration_ns"), 1).astype(np.float64)
    return Samples(row, code, table.ints("start_ns"), weight, *index, len(used))


def _index(stacks: list[str]) -> tuple[tuple[str, ...], tuple[str, ...], Ints, Ints, Ints, Ints]:
    """The functions of each stack, each once per stack and at its innermost depth."""
    functions: dict[str, int] = {}
    lines: dict[str, int] = {}
    pairs: list[tuple[int, int, int, int]] = []
    for stack, text in enumerate(stacks):
        innermost = {}
        for depth, frame in enumerate(text.split(";")):
            function = functions.setdefault(function_of(frame), len(functions))
            innermost[function] = (depth, lines.setdefault(frame, len(lines)))
        pairs += [(stack, function, *where) for function, where in innermost.items()]
    columns = np.array(pairs, np.int64).reshape(-1, 4).T
    return tuple(functions), tuple(lines), columns[0], columns[1], columns[2], columns[3]

"""Call stacks of the main thread, sampled from the Python functions in a trace.

Lossy: a trace has every call; this takes at most `MOST_SAMPLES` samples, at least a millisecond
apart. Functions that run between two samples are missed.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, latest_before
from stepscope.window import NULL, Ints, Strings, Table, distinct

MOST_SAMPLES = 20_000
LEAST_APART_NS = 1_000_000
_DEEPEST = 128
"""Most frames of a stack; with deep recursion the innermost are kept."""
_MOST_TEXT = 16 << 20
"""Most characters of all distinct stacks together."""
_CLIMBS = 1000
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST_FRAME = 200


def stacks(recorded: Recording) -> Table | None:
    """Runs of identical samples; None if no stacks were recorded."""
    python = recorded.python.take(recorded.python.ints("thread") == recorded.main)
    if not len(python):
        return None
    start, end = python.ints("start_ns"), ends(python)
    span = int(end.max() - start[0])
    period = max(LEAST_APART_NS, -(-span // MOST_SAMPLES))
    times = int(start[0]) + np.arange(max(span // period, 1), dtype=np.int64) * period
    rows = _innermost(python, end, times)
    codes, texts = _texts(python, rows)
    first = np.flatnonzero(np.diff(codes, prepend=-2))
    lasted = np.diff(np.append(first, codes.size)) * period
    table = Table({
        "thread": Strings(np.zeros(first.size, np.int32), ("MainThread",)),
        "start_ns": times[first],
        "duration_ns": lasted,
        "frames": Strings(codes[first].astype(np.int32), texts),
    })  # fmt: skip
    return table.take(codes[first] >= 0)


def _innermost(python: Table, end: Ints, times: Ints) -> Ints:
    """The row of the innermost function running at each moment; -1 if there is none."""
    parent = parents(python)
    at = latest_before(python.ints("start_ns"), times)
    for _ in range(_CLIMBS):
        over = (at >= 0) & (end[np.maximum(at, 0)] <= times)
        if not over.any():
            return at
        at = np.where(over, parent[np.maximum(at, 0)], at)
    return np.where(over, -1, at)


def parents(python: Table) -> Ints:
    """The row of each function's caller, always an earlier one; -1 if unknown."""
    ids, wanted = python.ints("id"), python.ints("parent")
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
    row = order[at]
    known = (ids[row] == wanted) & (wanted != NULL) & (row < np.arange(ids.size))
    return np.where(known, row, -1)


def _texts(python: Table, rows: Ints) -> tuple[Ints, tuple[str, ...]]:
    """A code per sample, and the stack of each code."""
    parent, names = parents(python).tolist(), python.strings("name")
    frames = [frame(value) for value in names.values]
    codes: dict[str, int] = {}
    size = 0
    found: dict[int, int] = {-1: -1}
    for row in distinct(rows).tolist():
        if row in found:
            continue
        text = ";".join(frames[int(names.codes[one])] for one in _callers(row, parent))
        if text not in codes:
            size += len(text)
        found[row] = codes.setdefault(text, len(codes)) if size <= _MOST_TEXT else -1
    return np.array([found[row] for row in rows.tolist()], np.int64), tuple(codes)


def _callers(row: int, parent: list[int]) -> list[int]:
    """The functions on the stack, outermost first."""
    stack: list[int] = []
    while row >= 0 and len(stack) < _DEEPEST:
        stack.append(row)
        row = parent[row]
    return stack[::-1]


def frame(name: str) -> str:
    """`torch/nn/functional.py(2282): linear` as `linear (torch/nn/functional.py:2282)`."""
    name = _ADDRESS.sub("", name[: 4 * _LONGEST_FRAME]).replace(";", ",")
    parts = _FRAME.match(name)
    if parts is None:
        return name[:_LONGEST_FRAME]
    return (
        f"{parts['function'][:_LONGEST_FRAME]} ({parts['file'][-_LONGEST_FRAME:]}:{parts['line']})"
    )

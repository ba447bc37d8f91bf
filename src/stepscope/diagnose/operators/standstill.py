"""Why an absent rank does not continue, from its newest call stack.

A stack shows where a rank is, seldom why. The cause is
- `data_loading` if it is in a data loader;
- `compute` if its host waits for its device: a kernel does not end;
- `unknown` if it is in a communication call of which no operator was recorded;
- `host` if it is idle in a function in which ranks spent time before as well;
- `code` if it is in any other function, or busy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.finding import Cause
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.operators.liveness import LifeSigns
from stepscope.diagnose.views.frames import LOADER, function_of, waits
from stepscope.window import NULL, Table, Window

PYTHON = ".py"
SYNCHRONIZE = "synchronize"
"""The name of torch's functions that wait for a device, a stream or an event."""
COMMUNICATES = ("recv", "send", "p2p")
"""Beginnings of the names of pipeline functions that receive and send."""
WITHIN_PROCESS = ("(threading.py", "/threading.py")
"""Where threads of one process wait for one another, with and without the path of the file."""
ORDINARY = 0.01
"""A function with at least this share of all earlier samples is one that ranks always pass through.
Our simulator."""


def cause_of(window: Window, signs: Sequence[tuple[int, LifeSigns]], since_ns: int) -> Cause:
    """The cause that the stacks of the absent ranks show."""
    stacks = [(rank, sign) for rank, sign in signs if sign.stack]
    if any(loads_data(sign.stack) for _, sign in stacks):
        return "data_loading"
    if stacks and all(waits_for_device(sign.stack) for _, sign in stacks):
        return "compute"
    if stacks and all(_communicates(sign.stack) for _, sign in stacks):
        return "unknown"
    if stacks and all(_stands_still(window, rank, sign, since_ns) for rank, sign in stacks):
        return "host"
    return "code" if stacks or any(sign.activity == "active" for _, sign in signs) else "unknown"


def waits_for_device(stack: Sequence[str]) -> bool:
    """Whether a host waits for its device; False if its stack is unknown."""
    return _name(innermost(stack)) == SYNCHRONIZE


def waits_for_ranks(stack: Sequence[str]) -> bool:
    """Whether a host waits for other ranks, by the innermost function; False if its stack is
    unknown. One that waits for its own loader, or for another thread, waits for none.

    >>> waits_for_ranks(["get (queue.py:180)", "wait (threading.py:331)"])
    False
    """
    frame = innermost(stack)
    return (
        waits(frame)
        and not loads_data(stack)
        and not (any(path in frame for path in WITHIN_PROCESS))
    )


def loads_data(stack: Sequence[str]) -> bool:
    """Whether a host is in a data loader."""
    return any(LOADER in frame.lower() for frame in stack)


def _communicates(stack: Sequence[str]) -> bool:
    """Whether the innermost function communicates with other ranks."""
    return waits_for_ranks(stack) or _name(innermost(stack)).startswith(COMMUNICATES)


def _name(frame: str) -> str:
    """A function's own name, without its class and underscores before it."""
    return frame.split(" ", 1)[0].rsplit(".", 1)[-1].lstrip("_")


def _stands_still(window: Window, rank: int, sign: LifeSigns, since_ns: int) -> bool:
    """Whether a rank is idle in a function in which ranks were also sampled before."""
    table = window.table("stacks")
    if table is None or not _is_idle(table, rank, sign):
        return False
    return _usual(table, innermost(sign.stack), since_ns) >= ORDINARY


def _is_idle(table: Table, rank: int, sign: LifeSigns) -> bool:
    """Whether a rank is idle: by its newest stack sample, else by its CPU time."""
    rows = np.flatnonzero(table.ints("rank") == rank)
    if table.has("active") and rows.size:
        ends = table.ints("start_ns")[rows] + table.ints("duration_ns")[rows]
        active = int(table.ints("active")[rows[np.argmax(ends)]])
        if active != NULL:
            return active == 0
    return sign.activity == "idle"


def _usual(table: Table, frame: str, since_ns: int) -> float:
    """The share of all earlier samples whose innermost Python function is this one."""
    frames = table.strings("frames")
    same = [function_of(innermost(text.split(";"))) == function_of(frame) for text in frames.values]
    before = (table.ints("start_ns") < since_ns) & (frames.codes >= 0)
    weight = np.maximum(table.floats("duration_ns"), 1.0)[before]
    inside = np.array(same, np.bool_)[frames.codes[before]]
    whole = float(weight.sum())
    return float(stats.sums(inside.astype(np.int64), weight, 2)[1]) / whole if whole > 0 else 0.0


def innermost(stack: Sequence[str]) -> str:
    """The innermost Python frame, below which native frames may lie; "" if there is no stack."""
    native = stack[-1] if stack else ""
    return next((frame for frame in reversed(stack) if PYTHON in frame), native)

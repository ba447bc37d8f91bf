"""Why a rank that others miss stands where it stands, by its newest call stack.

A stack tells where, seldom why; what it cannot tell is `unknown`. Other code than anybody ran
before is `code`; standing still where ranks always pass is the host's; a host that waits for its
device, which came to no operator, has a kernel that does not end; and a rank that stands in a
communication call, which no operator was recorded of, may have met a fault of any kind there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.finding import Cause
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.operators.liveness import Signs
from stepscope.diagnose.views.stacks import LOADER, function_of, waits
from stepscope.window import NULL, Table, Window

PYTHON = ".py"
SYNCHRONIZE = "synchronize"
"""What torch calls waiting for a device, a stream or an event."""
COMMUNICATES = ("recv", "send", "p2p")
"""How functions of pipelines begin that receive and send."""
ORDINARY = 0.01
"""Share of all samples before: the place is one where ranks always pass."""


def cause_of(window: Window, signs: Sequence[tuple[int, Signs]], since_ns: int) -> Cause:
    """The cause that the stacks of the missed ranks show."""
    stacks = [(rank, sign) for rank, sign in signs if sign.stack]
    if any(LOADER in frame.lower() for _, sign in stacks for frame in sign.stack):
        return "data_loading"
    if stacks and all(waits_for_device(sign.stack) for _, sign in stacks):
        return "compute"
    if stacks and all(_communicates(sign.stack) for _, sign in stacks):
        return "unknown"
    if stacks and all(_stands_still(window, rank, sign, since_ns) for rank, sign in stacks):
        return "host"
    return "code" if stacks or any(sign.doing == "active" for _, sign in signs) else "unknown"


def waits_for_device(stack: Sequence[str]) -> bool:
    """Whether a host stands in a wait for its device; not where nobody knows its stack."""
    return _name(innermost(stack)) == SYNCHRONIZE


def _communicates(stack: Sequence[str]) -> bool:
    """Whether the innermost function is one by which ranks meet."""
    frame = innermost(stack)
    return waits(frame) or _name(frame).startswith(COMMUNICATES)


def _name(frame: str) -> str:
    """A function's own name, without its class and underscores before it."""
    return frame.split(" ", 1)[0].rsplit(".", 1)[-1].lstrip("_")


def _stands_still(window: Window, rank: int, sign: Signs, since_ns: int) -> bool:
    """Whether a rank uses no processor in a place where ranks were seen before."""
    table = window.table("stacks")
    if table is None or not _is_idle(table, rank, sign):
        return False
    return _usual(table, innermost(sign.stack), since_ns) >= ORDINARY


def _is_idle(table: Table, rank: int, sign: Signs) -> bool:
    """By its newest sample, or where that does not tell by its processor time."""
    rows = np.flatnonzero(table.ints("rank") == rank)
    if table.has("active") and rows.size:
        ends = table.ints("start_ns")[rows] + table.ints("duration_ns")[rows]
        active = int(table.ints("active")[rows[np.argmax(ends)]])
        if active != NULL:
            return active == 0
    return sign.doing == "idle"


def _usual(table: Table, frame: str, since_ns: int) -> float:
    """The share of all earlier samples in which a function was the innermost of a program."""
    frames = table.strings("frames")
    here = [function_of(innermost(text.split(";"))) == function_of(frame) for text in frames.values]
    before = (table.ints("start_ns") < since_ns) & (frames.codes >= 0)
    weight = np.maximum(table.floats("duration_ns"), 1.0)[before]
    inside = np.array(here, np.bool_)[frames.codes[before]]
    whole = float(weight.sum())
    return float(stats.sums(inside.astype(np.int64), weight, 2)[1]) / whole if whole > 0 else 0.0


def innermost(stack: Sequence[str]) -> str:
    """The innermost frame of the program; native frames lie below it. Empty of no stack."""
    native = stack[-1] if stack else ""
    return next((frame for frame in reversed(stack) if PYTHON in frame), native)

"""Patterns as rows of table `patterns`, at most 30 KB of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.patterns.activity import Span
from stepscope.trace import TABLES
from stepscope.window import NULL, Column, Strings, Table

PYTHON, OPERATOR, KERNEL, COLLECTIVE, COPY = "python", "operator", "kernel", "collective", "copy"

LEAST_BETA = 0.001
"""Smaller shares are left out: a tenth of what EROICA judges (0.01). Our choice."""
MOST_BYTES = 30_000
"""Of a worker's rows: paper (EROICA), figure 11."""
_NUMBERS_BYTES = 72
"""The nine numbers of a row."""


@dataclass(frozen=True)
class Pattern:
    """What one function did in the window; None: unknown, or there is none."""

    function: str
    kind: str
    beta: float
    mu: float | None = None
    sigma: float | None = None
    location: str | None = None
    caller: str | None = None
    thread: str | None = None
    phase: str | None = None
    resource: str | None = None
    calls: int | None = None

    @property
    def size_bytes(self) -> int:
        texts = (self.function, self.kind, self.location, self.caller, self.thread,
                 self.phase, self.resource)  # fmt: skip
        return _NUMBERS_BYTES + sum(len(text.encode()) for text in texts if text)


@dataclass(frozen=True)
class Patterns:
    """The patterns of a window, and what is left out."""

    span: Span
    rows: tuple[Pattern, ...]
    left_out: int = 0
    """How many functions with time on the critical path are left out."""
    left_out_beta: float = 0.0
    """The sum of their shares of the window."""


def kept(found: Patterns) -> Patterns:
    """The patterns with the largest shares, within the limits."""
    ordered = sorted(found.rows, key=lambda one: (-one.beta, one.function, one.caller or ""))
    size, number = 0, 0
    for one in ordered:
        size += one.size_bytes
        if one.beta < LEAST_BETA or size > MOST_BYTES:
            break
        number += 1
    rest = ordered[number:]
    return Patterns(
        found.span, tuple(ordered[:number]), found.left_out + len(rest),
        found.left_out_beta + sum(one.beta for one in rest),
    )  # fmt: skip


def table_of(patterns: Patterns, first_step: int = NULL, last_step: int = NULL) -> Table:
    """The rows without `rank`."""
    rows, span = patterns.rows, patterns.span
    shared = {
        "window_start_ns": span.start_ns, "window_ns": span.length_ns,
        "first_step": first_step, "last_step": last_step,
    }  # fmt: skip
    columns: dict[str, Column] = {}
    for name, kind in TABLES["patterns"].columns.items():
        if name == "rank":
            continue
        values = [shared[name]] * len(rows) if name in shared else [getattr(r, name) for r in rows]
        columns[name] = _column(kind, values)
    return Table(columns)


def _column(kind: str, values: list[Any]) -> Column:
    if kind == "str":
        return Strings.of(values)
    if kind == "double":
        return np.array([np.nan if value is None else value for value in values], np.float64)
    return np.array([NULL if value is None else value for value in values], np.int64)

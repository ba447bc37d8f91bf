"""Words the comparison of a job with a healthy one: what it spends more or less time on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.shown import Change
from stepscope.report import units


class Row(NamedTuple):
    """One phase or kernel, with its time per step."""

    what: str
    before: str
    now: str
    difference: str


def heading(diagnosis: Diagnosis) -> str:
    """`Beside job llama-0412, steps 5-59: a step took 1.03 s, and takes 1.72 s here (+67%)`; empty
    where no job was given."""
    found = diagnosis.compared
    if found is None:
        return ""
    before, now = units.duration(found.before_ns), units.duration(found.now_ns)
    change = found.now_ns / found.before_ns - 1 if found.before_ns > 0 else 0.0
    other = f"job {found.job_id}, {units.span(found.steps)}"
    return f"Beside {other}: a step took {before}, and takes {now} here ({_signed(change)})"


def rows(diagnosis: Diagnosis) -> Iterator[Row]:
    """What a typical rank spends more or less time on per step, the largest change first."""
    for one in diagnosis.compared.changes if diagnosis.compared else ():
        difference = units.duration(one.now_ns - one.before_ns)
        sign = "" if one.now_ns < one.before_ns else "+"
        yield Row(_what(one), units.duration(one.before_ns), units.duration(one.now_ns),
                  sign + difference)  # fmt: skip


def _what(one: Change) -> str:
    return one.name if one.kind == "rest" else f"{one.kind} {one.name}"


def _signed(change: float) -> str:
    return ("+" if change >= 0 else "-") + units.percent(abs(change))

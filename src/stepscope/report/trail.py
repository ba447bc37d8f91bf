"""Why each candidate was named or not: the rules that were applied, and the one that ended it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.diagnose.finding import Candidate, Decision, Diagnosis, Verdict
from stepscope.report.plain import printable

MAX_CANDIDATES = 12
"""Candidates shown without a request for a rank; further ones are counted."""


def render_trail(diagnosis: Diagnosis, rank: int | None = None) -> str:
    """The decision trail of all candidates, or of those that concern one rank."""
    wanted = [one for one in diagnosis.candidates if rank is None or rank in one.ranks]
    lines = list(_heading(wanted, rank))
    for one in wanted[:MAX_CANDIDATES]:
        lines += ["", *_candidate(one, diagnosis.verdicts)]
    if len(wanted) > MAX_CANDIDATES:
        lines += ["", f"{len(wanted) - MAX_CANDIDATES} more candidates: ask for one by its rank"]
    return printable("\n".join(lines) + "\n", kept="\n")


def decision_line(one: Decision) -> str:
    """`yes  costs-enough  0.8 of at least 0.02: without it steps would take 79.7 % less`."""
    numbers = _numbers(one)
    return f"{'yes' if one.fired else 'no ':3}  {one.rule}{f'  {numbers}' if numbers else ''}" + (
        f": {one.says}" if one.says else ""
    )


def _heading(wanted: Sequence[Candidate], rank: int | None) -> Iterator[str]:
    if rank is not None and not wanted:
        yield f"rank {rank} was not considered: only its operators' order could be judged"
        return
    named = sum(one.verdict is not None for one in wanted)
    considered = [one for one in wanted if one.verdict is None]
    who = "Everybody who was considered" if rank is None else f"What was considered of rank {rank}"
    yield f"{who}: {named} named, {len(considered)} not named"


def _candidate(one: Candidate, verdicts: Sequence[Verdict]) -> Iterator[str]:
    if one.verdict is not None:
        verdict = verdicts[one.verdict]
        yield f"{one.who}: named in verdict {one.verdict + 1}, {verdict.summary}"
        if verdict.agreement:
            yield f"  {verdict.agreement}"
    else:
        ended, named = one.ended_by, any(set(one.ranks) & set(each.ranks) for each in verdicts)
        outcome = "another suspicion, let go" if named else "not named"
        yield f"{one.who}: {outcome}" + (f", ended by {ended.rule}" if ended else "")
    for decision in one.decisions:
        yield f"  {decision_line(decision)}"


def _numbers(one: Decision) -> str:
    if one.value is None:
        return ""
    value = number(one.value)
    return value if one.limit is None else f"{value} of at least {number(one.limit)}"


def number(value: float | None) -> str:
    """Three significant digits; empty if there is no number."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

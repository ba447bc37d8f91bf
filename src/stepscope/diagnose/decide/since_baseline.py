"""Keeps to the job itself what was found in it and in the healthy steps before it.

What ends in the healthy steps is no fault of this job. What begins there, by a few steps of noise
or because it is as slow in both, is shown from this job's first step on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from stepscope.diagnose.decide.verdict import ranked
from stepscope.diagnose.finding import Diagnosis, Finding, Span, Unsteady, Verdict
from stepscope.diagnose.shown import Entry, Ledger
from stepscope.diagnose.views.timeline import Timeline

Kind = TypeVar("Kind", bound=Finding)


def of_job(line: Timeline, findings: Iterable[Kind]) -> list[Kind]:
    """Those that do not end before the job begins, from its first step on."""
    first, begin_ns = int(line.steps[line.first_own]), int(line.begins_ns[line.first_own])
    return [replace(one, steps=_from(one.steps, first), lost_of=_from(one.lost_of, first),
                    time_ns=_from(one.time_ns, begin_ns))
            for one in findings if one.steps is None or one.steps[1] >= first]  # fmt: skip


def unsteady_in_job(line: Timeline, found: Iterable[Unsteady]) -> list[Unsteady]:
    """Long steps of the job itself, and rises that are there in it."""
    known = []
    for one in found:
        spikes = tuple(column for column in one.spikes if column >= line.first_own)
        split = None if one.split is None else max(one.split, line.first_own)
        if spikes or split is not None:
            known.append(replace(one, spikes=spikes, split=split))
    return known


def advised(line: Timeline, verdict: Verdict) -> Verdict:
    """With the healthy job, and not the first steps of this one, as what to compare with."""
    first = f"before step {line.steps[line.first_own]}"
    return replace(verdict, advice=verdict.advice.replace(first, "of the healthy job"))


def with_those_alone(found: Diagnosis, alone: Diagnosis) -> Diagnosis:
    """The diagnosis, and what is found in the job without a healthy one: what is slow in both is no
    change, and a fault all the same. Suspects do not count where somebody is accused."""
    more = [one for one in alone.verdicts
            if not any(_are_same(one, known) for known in found.verdicts)
            and not (one.is_suspect and found.accused)]  # fmt: skip
    verdicts = ranked([*found.verdicts, *more])
    joined = replace(found, verdicts=verdicts, ledger=_both(found, alone, verdicts))
    if found.state not in ("healthy", "unknown"):
        return joined
    return replace(joined, state=alone.state, windows=alone.windows, unaccounted=alone.unaccounted)


def _both(found: Diagnosis, alone: Diagnosis, verdicts: tuple[Verdict, ...]) -> Ledger | None:
    """One ledger of the verdicts of both; where they claim more than was lost, each gets less."""
    one, other = found.ledger, alone.ledger
    if one is None or other is None:
        return one
    entries = [Entry(verdicts.index(diagnosis.verdicts[entry.verdict]), entry.fraction)
               for diagnosis, ledger in ((found, one), (alone, other)) for entry in ledger.lost
               if diagnosis.verdicts[entry.verdict] in verdicts]  # fmt: skip
    by_verdict = {entry.verdict: entry.fraction for entry in reversed(entries)}
    needed_ns = min(one.needed_ns, other.needed_ns)
    given, most = sum(by_verdict.values()), 1 - needed_ns / max(one.step_ns, 1)
    scale = min(most / given, 1.0) if given > 0 else 1.0
    lost = tuple(Entry(at, scale * part) for at, part in sorted(by_verdict.items()))
    return replace(one, needed_ns=needed_ns, lost=lost,
                   unexplained_fraction=round(max(most - scale * given, 0.0), 6))  # fmt: skip


def _are_same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts name the same ranks, or of all ranks the same cause or function."""
    if one.ranks or other.ranks:
        return bool(set(one.ranks) & set(other.ranks)) and one.kind == other.kind
    same_function = one.function is not None and one.function == other.function
    return same_function or one.cause == other.cause


def _from(span: Span | None, first: int) -> Span | None:
    return None if span is None else (max(span[0], first), max(span[1], first))

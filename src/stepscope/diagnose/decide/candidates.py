"""All candidates for a verdict, with the decisions that led to one or not."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.finding import Candidate, Finding, Verdict
from stepscope.diagnose.words.advice import name_ranks


def candidates(verdicts: Sequence[Verdict], let_go: Sequence[Finding]) -> tuple[Candidate, ...]:
    """Candidates with a verdict in its order, then those that were rejected."""
    accused = [
        Candidate(_who(one), one.ranks, at, one.decisions) for at, one in enumerate(verdicts)
    ]
    others = [Candidate(_who(one), one.ranks, None, one.decisions) for one in let_go]
    return (*accused, *others)


def _who(one: Finding | Verdict) -> str:
    if one.ranks:
        return name_ranks(one.ranks)
    return f"group {one.group}" if one.group else "all ranks"

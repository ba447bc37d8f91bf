"""Hangs of which no open operator was recorded: phases, kernels, calls or steps that just end.

Fault: as `hang`, where only phases, kernels or steps were recorded.
Paper: EROICA (2026), case 3, finds the rank whose stack is elsewhere than all others'.
Ours: nobody writes rows any more, although somebody watched for much longer than a step takes; the
culprit is the rank that holds up the others by its position or its stack (`behind`).
Cost: the rows of the newest four steps. Cannot see: which rank it is where all stand at one place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stepscope.diagnose.finding import Cause, Decision, Stuck
from stepscope.diagnose.operators.behind import Holders, holders
from stepscope.diagnose.operators.liveness import (
    IDLE_NS,
    IDLE_STEPS,
    LifeSigns,
    Liveness,
    StepTiming,
    allowed_ns,
    allowed_of_all_ns,
    is_saving,
    last_progress_ns,
    watched_until_ns,
)
from stepscope.diagnose.operators.positions import Position, Positions, positions
from stepscope.diagnose.operators.standstill import cause_of
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import Window

STOPPED, SEEN, BEHIND = 0.97, 0.8, 0.7
"""Confidence if the process of the rank is stopped, if its stack is elsewhere, and if it is only
behind the others. As in `hang`."""
WITHIN, BETWEEN = 0.6, 0.4
"""Confidence if nobody is known to be behind, within a step and between two: after a step, ranks
may save or evaluate for long, or training may be over. Our judgement."""
SUSPECT = 0.4
"""Confidence if the rank may as well wait for data, or for ranks that were not recorded. Our
judgement."""


def find_silence(window: Window) -> Stuck | None:
    """The hang of a job whose ranks no longer write any rows, or None."""
    until_ns, progress_ns = watched_until_ns(window), last_progress_ns(window)
    if until_ns is None or until_ns - progress_ns <= IDLE_NS:
        return None
    found = positions(window)
    if found is None or until_ns - progress_ns <= IDLE_STEPS * found.timing.step_ns:
        return None
    liveness = Liveness(window, progress_ns)
    signs = {rank: liveness.of(rank) for rank in sorted(found.of)}
    silence = _Silence(window, found, signs, progress_ns, until_ns)
    return None if silence.is_outside else silence.of_stopped() or silence.of_holders()


class _Silence:
    """A time in which no rank made progress."""

    def __init__(
        self, window: Window, found: Positions, signs: Mapping[int, LifeSigns],
        since_ns: int, until_ns: int,
    ) -> None:  # fmt: skip
        self._window, self._found, self._signs = window, found, signs
        self._since_ns, self._until_ns = since_ns, until_ns

    def of_stopped(self) -> Stuck | None:
        """The hang because of a few processes that are stopped or dead while the others live."""
        stopped = frozenset(rank for rank, one in self._signs.items() if one.stopped_ns is not None)
        if not stopped or 2 * len(stopped) >= len(self._signs):
            return None
        why = "its process is stopped or dead"
        return self._finding(stopped, "host", STOPPED, why)

    def of_holders(self) -> Stuck | None:
        """The hang because of ranks that hold up the others, or for an unknown reason."""
        stacks = {rank: one.stack for rank, one in self._signs.items()}
        held = holders(self._window, self._found.of, stacks)
        waited = self._until_ns - self._since_ns
        if waited <= self._allowed(held, self._found.timing):
            return None
        if held.by_stack or held.clear:
            sure = SEEN if held.by_stack else BEHIND
            return self._finding(held.ranks, self._cause(held.ranks), sure, held.why)
        if len(held.ranks) == 1:
            return self._finding(held.ranks, self._cause(held.ranks), SUSPECT, held.why)
        return self._finding((), "unknown", WITHIN if self._has_begun else BETWEEN, held.why)

    @property
    def is_outside(self) -> bool:
        """Whether operators or kernels were recorded, and none since the last step ended."""
        tables = self._window.tables
        finer = "comm_ops" in tables or "kernels" in tables
        return finer and "steps" in tables and not self._has_begun

    @property
    def _has_begun(self) -> bool:
        """Whether any rank is known to be in the middle of a step."""
        found = self._found.of.values()
        return any(one.has_begun for one in found) or len({one.step for one in found}) > 1

    def _allowed(self, held: Holders, timing: StepTiming) -> float:
        """How long no rank may make progress before the job counts as hung."""
        activities = [self._signs[rank].activity for rank in held.ranks]
        if any(is_saving(one.stack) for one in self._signs.values()):
            activities.append("saving")
        allowed = max((allowed_ns(one, timing) for one in activities), default=0.0)
        return allowed if held.by_stack or held.clear else max(allowed, allowed_of_all_ns(timing))

    def _cause(self, ranks: Collection[int]) -> Cause:
        signs = [(rank, self._signs[rank]) for rank in sorted(ranks)]
        if any(one.stack for _, one in signs):
            return cause_of(self._window, signs, self._since_ns)
        work = [self._found.of[rank].work for rank in ranks]
        return "data_loading" if all(one and loads(one[0][0]) for one in work) else "unknown"

    def _finding(self, ranks: Collection[int], cause: Cause, sure: float, why: str) -> Stuck:
        where = self._where(ranks)
        waiting = sorted(self._signs.keys() - set(ranks))
        waited = (self._until_ns - self._since_ns) / 1e9
        detail = f"nothing was recorded of any rank for {waited:.0f} s: {why}"
        step_ns = self._found.timing.step_ns
        says = f"seconds in which no rank made progress; a step takes {step_ns / 1e9:.2g} s"
        decisions = [Decision("no-progress", True, waited, None, says)]
        if ranks:
            says = f"{name_ranks(ranks)} holds up the others: {why}"
            decisions.append(Decision("explained-backwards", True, says=says))
        return Stuck(
            method="hang", cause=cause, detail=detail, ranks=tuple(sorted(ranks)),
            steps=(where.step, where.step), time_ns=(self._since_ns, self._until_ns),
            victims=len(waiting), score=sure, decisions=tuple(decisions),
            values={"waiting": len(waiting), "victims": len(waiting),
                    "age_ns": self._until_ns - self._since_ns, "step_ns": step_ns},
        )  # fmt: skip

    def _where(self, ranks: Collection[int]) -> Position:
        """The position of a culprit, or of the rank that is furthest behind."""
        found = self._found.of
        return min((found[rank] for rank in ranks or found), key=lambda one: one.step)

"""How fast a job goes, by the ranks of this host: when it becomes slower, and when it blocks.

Slower is what `degradation.robust` calls so, of the median of the ranks here. Blocked is EROICA's
second condition (section 4.1: no event for five average iterations), which a checkpoint fulfils as
well; so nothing counts before `SILENT_SECONDS`, or within twice the longest pause that the job has
made before. Evaluation loads batches, so it is not silent.

Pure: times are given. Steps that ranks profile are left out: they take longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from stepscope.degradation.robust import Rise, RobustRise
from stepscope.processor.state.steps import BLOCKED_AFTER, Step

SILENT_SECONDS = 30.0
"""Shorter silence is no blockage: the first checkpoint comes unannounced. Our choice."""
PAUSES = 2.0
"""Times the longest pause so far. Our choice."""
SETTLING_STEPS = 5
"""Left out after profiled ones: files are written, and hooks removed. Our choice."""
SOON = 0.85
"""A slow job is taken to become at most this much faster in the seconds until a window; if it does,
ranks miss the window. With no such limit, a job that takes twice as long has its window after twice
the time. Our choice."""
_MOST_WAITING = 64
"""Steps that wait for a rank: it may have left."""


@dataclass(frozen=True)
class Now:
    """Where a job is."""

    step: int
    """The newest step that a rank here has finished."""
    ended_ns: int
    """When it did, by the wall clock of this host."""
    step_s: float
    """The shortest that the next steps are expected to take, so that nobody is late."""
    slow_step_s: float
    """The longest."""


@dataclass
class Pace:
    """Takes the steps of a job's ranks on this host."""

    _rise: RobustRise = field(default_factory=RobustRise)
    _newest: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The last step of each rank, and when it ended."""
    _waiting: dict[int, list[float]] = field(default_factory=dict)
    _left_out: tuple[int, int] = (0, -1)
    _longest_s: float = 0.0
    _recent_s: float = 0.0
    _ended_ns: int = 0
    _step: int = -1

    def add(self, rank: int, offset_ns: int, steps: list[Step]) -> Rise | None:
        """Takes steps that a rank has finished; whether the job is slower now than it was."""
        for step in steps:
            self._add(rank, step.step, step.start_ns + step.duration_ns + offset_ns)
        return self._judge()

    def leave(self, rank: int) -> None:
        """Nobody waits for the steps of this rank any more."""
        self._newest.pop(rank, None)

    def leave_out(self, first: int, last: int) -> None:
        """These steps are profiled; what is usual afterwards is learnt anew."""
        self._left_out = (first, last + SETTLING_STEPS)
        self._rise.restart()

    @property
    def now(self) -> Now | None:
        """Where the job is; None before its second step."""
        if self._step < 0 or not self._recent_s:
            return None
        usual_s = self._rise.usual or self._recent_s
        shortest_s = min(self._recent_s, max(usual_s, SOON * self._recent_s))
        return Now(self._step, self._ended_ns, shortest_s, max(usual_s, self._recent_s))

    def patience_s(self, average_s: float) -> float:
        """Silence that is longer than this is a blockage."""
        return max(BLOCKED_AFTER * average_s, PAUSES * self._longest_s, SILENT_SECONDS)

    def _add(self, rank: int, step: int, ended_ns: int) -> None:
        before = self._newest.get(rank)
        self._newest[rank] = (step, ended_ns)
        if step > self._step:
            self._step, self._ended_ns = step, ended_ns
        if before is not None and step == before[0] + 1 and ended_ns >= before[1]:
            self._waiting.setdefault(step, []).append((ended_ns - before[1]) / 1e9)

    def _judge(self) -> Rise | None:
        """Judges the steps that all ranks have finished."""
        complete = min((step for step, _ in self._newest.values()), default=0)
        newest = max(self._waiting, default=0)
        due = sorted(s for s in self._waiting if s <= complete or s < newest - _MOST_WAITING)
        found = None
        for step in due:
            period_s = median(self._waiting.pop(step))
            self._recent_s = period_s if not self._recent_s else _smoothed(self._recent_s, period_s)
            self._longest_s = max(self._longest_s, period_s)
            first, last = self._left_out
            if not first <= step <= last:
                found = self._rise.add(period_s) or found
        return found


def _smoothed(before_s: float, period_s: float) -> float:
    """Follows the step time within ten steps; a pause counts as little as a step may."""
    return before_s + 0.2 * (min(period_s, 2 * before_s) - before_s)

"""When a stalled job is sampled: immediately, then at growing intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.processor.instructions import Stalled

PART = 0.05
"""The interval as a part of the stall's duration so far, which is then reported this exactly."""
LONGEST_SECONDS = 1.0
"""The interval at which counters are sampled anyway."""


@dataclass
class Stalls:
    """Since when each job has been stalled, and when it is to be sampled again."""

    _since: dict[str, float] = field(default_factory=dict)
    _due_at: dict[str, float] = field(default_factory=dict)

    def has(self, job: str) -> bool:
        """Whether the job was stalled at the last call of `due`."""
        return job in self._since

    def due(self, stalled: Sequence[Stalled], now: float) -> list[Stalled]:
        """Which of the stalled jobs, given completely, are to be sampled now."""
        jobs = {one.job for one in stalled}
        self._since = {job: self._since.get(job, now) for job in jobs}
        looked_at = [one for one in stalled if now >= self._due_at.get(one.job, now)]
        self._due_at = {job: at for job, at in self._due_at.items() if job in jobs}
        for one in looked_at:
            pause = PART * (now - self._since[one.job])
            self._due_at[one.job] = now + min(pause, LONGEST_SECONDS)
        return looked_at

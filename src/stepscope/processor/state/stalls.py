"""How often a job that does not get on is looked at: at once, then ever more rarely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.processor.instructions import Stalled

PART = 0.05
"""A look waits for this part of the time the stall has lasted: what is told of it is as exact."""
LONGEST_SECONDS = 1.0
"""As often as counters are sampled anyway."""


@dataclass
class Stalls:
    """Since when each job has stalled, and when it is due to be looked at again."""

    _since: dict[str, float] = field(default_factory=dict)
    _due_at: dict[str, float] = field(default_factory=dict)

    def has(self, job: str) -> bool:
        """Whether it had stalled when last looked at."""
        return job in self._since

    def due(self, stalled: Sequence[Stalled], now: float) -> list[Stalled]:
        """Those of the stalled jobs, all that there are, which are to be looked at now."""
        jobs = {one.job for one in stalled}
        self._since = {job: self._since.get(job, now) for job in jobs}
        looked_at = [one for one in stalled if now >= self._due_at.get(one.job, now)]
        self._due_at = {job: at for job, at in self._due_at.items() if job in jobs}
        for one in looked_at:
            pause = PART * (now - self._since[one.job])
            self._due_at[one.job] = now + min(pause, LONGEST_SECONDS)
        return looked_at

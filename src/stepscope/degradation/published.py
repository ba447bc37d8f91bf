"""EROICA's rule for a degraded job, as published.

Paper: Guan et al., "EROICA: Online Performance Troubleshooting for Large-scale Model Training",
NSDI 2026, section 4.1. N -> `AVERAGED`. A job is degraded if "the average duration of the recent N
iterations exceeds the recent shortest iteration time by more than 5%".

We read "the recent shortest iteration time" as the shortest average of N iterations. Read as the
shortest single iteration, the rule holds nearly always: with 3 % noise the shortest of 50 is 7 %
below their mean. `shortest_of=1` is that reading.
"""

from __future__ import annotations

from collections import deque

AVERAGED = 50
"""N of EROICA."""
RISE = 1.05
"""EROICA: "by more than 5%"."""
RECENT = 2_000
"""Iterations that count as recent; the paper names none. Our choice: as far back as the default."""


class PublishedRise:
    """Takes the durations of iterations in order."""

    def __init__(self, shortest_of: int = AVERAGED) -> None:
        self._shortest_of = shortest_of
        self._durations: deque[float] = deque(maxlen=AVERAGED)
        self._shortest: deque[tuple[int, float]] = deque()
        """Ascending minima of the recent past: iteration and average."""
        self._count = 0

    def add(self, duration: float) -> float | None:
        """The ratio of the two times if the job is degraded now, else None."""
        self._durations.append(duration)
        self._count += 1
        if self._count >= self._shortest_of:
            self._note(self._mean_of(self._shortest_of))
        if self._count < AVERAGED:
            return None
        ratio = self._mean_of(AVERAGED) / self._shortest[0][1]
        return ratio if ratio > RISE else None

    def _mean_of(self, count: int) -> float:
        return sum(list(self._durations)[-count:]) / count

    def _note(self, average: float) -> None:
        while self._shortest and self._shortest[-1][1] >= average:
            self._shortest.pop()
        self._shortest.append((self._count, average))
        while self._shortest[0][0] <= self._count - RECENT:
            self._shortest.popleft()

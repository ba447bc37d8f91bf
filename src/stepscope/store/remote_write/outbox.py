"""Queues samples to send, and decides on retries and drops, without a network or a clock.

Lossy in two places, both counted: the oldest samples are dropped when more than `most` wait, and
samples that a server rejects as invalid are not sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stepscope.store.remote_write.encode import Sample

MOST_SAMPLES = 50_000
"""7 MB, measured: for a host with 8 ranks and 300 series, 40 minutes without a server."""
_AT_ONCE = 2_000
"""Prometheus itself sends 500 to 2,000 per request; this makes 40 KB."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Outbox:
    """Samples in order of time, oldest first: servers reject out-of-order samples of a series."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._most = most
        self._waiting: deque[Sample] = deque()
        self._failures = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def in_trouble(self) -> bool:
        """Whether the last attempt failed."""
        return self._failures > 0

    def add(self, samples: Sequence[Sample]) -> None:
        self._waiting.extend(samples)
        while len(self._waiting) > self._most:
            self._waiting.popleft()
            self.dropped += 1

    def next(self) -> list[Sample]:
        """The oldest waiting samples, enough for one request; they stay queued until `sent`."""
        return [self._waiting[n] for n in range(min(_AT_ONCE, len(self._waiting)))]

    def sent(self, samples: Sequence[Sample]) -> None:
        """Removes samples that the server accepted."""
        self._take(samples)
        self._failures = 0

    def refused(self, samples: Sequence[Sample]) -> None:
        """Drops samples that the server rejected for good."""
        self.dropped += self._take(samples)
        self._failures = 0

    def failed(self, asked_s: float | None = None) -> float:
        """Records a failed attempt; returns the seconds to wait before the next."""
        self._failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self._failures - 1), _LONGEST_PAUSE_S)
        return pause_s if asked_s is None else min(max(asked_s, pause_s), _LONGEST_PAUSE_S)

    def _take(self, samples: Sequence[Sample]) -> int:
        """Removes samples, except those that were dropped meanwhile; returns their number."""
        taken = 0
        for sample in samples:
            if self._waiting and self._waiting[0] is sample:
                self._waiting.popleft()
                taken += 1
        return taken

"""A suspect: one rank that takes longer than its peers, where and when, before blame is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.window import Ints

INFLATED = 0.1
"""A phase with this share of the excess counts as inflated too. Our simulator."""


@dataclass(frozen=True)
class Suspect:
    """A rank slower than its peers from column `first` to before `stop`."""

    row: int
    phase: str | None
    phases: tuple[str, ...]
    """Every phase in which it is slower; empty if only its pauses count."""
    first: int
    stop: int
    effect: float
    z: float
    needed: float
    excess_ns: float
    """Time per step, over its phases, that the rank takes longer than its peers."""
    slowdown: float
    inflated: int
    """How many phases carry a share of the excess."""
    spikes: tuple[int, ...] = ()
    """The columns in which it is slow; empty: all from `first` to `stop`."""
    alone: bool = False
    """Whether it is suspected for the length of one spike, and not for how many there are."""
    worst: tuple[int, int] | None = None
    """The run of spike columns with most of the excess: the first, and the one after the last."""
    worst_ns: float = 0.0
    """Its excess per step there."""
    all_runs: Suspect | None = None
    """The suspect in all its spikes, where this is its worst run of them only."""
    by_past: bool = False
    """Whether it was compared with its own past, because no other rank does the same work."""
    ordinary: bool = False
    """Whether ranks with experts differ by as much without a fault (`decide.experts`)."""

    @property
    def usual(self) -> str:
        """What its own time was compared with, in words."""
        if not self.by_past:
            return "its peers"
        return "its usual steps" if self.spikes else "its earlier steps"

    @property
    def columns(self) -> slice | Ints:
        """The columns in which it is slow."""
        return np.array(self.spikes, np.int64) if self.spikes else slice(self.first, self.stop)

    @property
    def whole_ns(self) -> float:
        """Its excess in all steps together."""
        return self.excess_ns * (self.stop - self.first)

    @property
    def at_its_worst(self) -> Suspect:
        """The suspect in its worst run of spikes only, so that measurements are not diluted."""
        if self.worst is None:
            return self
        first, stop = self.worst
        return replace(self, first=first, stop=stop, excess_ns=self.worst_ns, spikes=(),
                       all_runs=self)  # fmt: skip


def dominant(shares: dict[str, float]) -> str | None:
    """The phase that carries most of the excess, if one does."""
    phase = max(shares, key=lambda name: shares[name])
    return phase if 2 * shares[phase] > sum(shares.values()) else None

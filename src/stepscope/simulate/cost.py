"""What a fault costs: compares the job with the same job without the fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stepscope.simulate.engine import NEVER
from stepscope.window import Ints


@dataclass(frozen=True)
class Span:
    """When each host began a step and finished it, `[stage, rank within the stage]`."""

    start: Ints
    done: Ints

    @property
    def end_ns(self) -> int:
        return int(self.done.max())

    @cached_property
    def lasted_ns(self) -> int:
        """The time from the first host's start to the last host's end."""
        return self.end_ns - int(self.start.min())


@dataclass(frozen=True)
class Cost:
    """How many times longer the steps with the fault took, how much longer the job took, and which
    share of the time of these steps that is.

    None if there is nothing to compare.
    """

    slowdown: float | None
    lost_ns: int | None
    lost_fraction: float | None


def cost_of(played: Sequence[Span], healthy: Sequence[Span], active: Sequence[int]) -> Cost:
    """Compares the steps that both jobs finished; a step lasts from one step's end to the next."""
    both = [(one.end_ns, other.end_ns) for one, other in zip(played, healthy, strict=False)]
    ends = [(0, 0), *((one, other) for one, other in both if max(one, other) < NEVER)]
    if len(ends) == 1:
        return Cost(None, None, None)
    steps = [step for step in active if step + 1 < len(ends)]
    took, usual = (sum(ends[step + 1][at] - ends[step][at] for step in steps) for at in (0, 1))
    lost_ns = ends[-1][0] - ends[-1][1]
    return Cost(took / usual if usual else None, lost_ns, _share(lost_ns, took))


def _share(lost_ns: int, took_ns: int) -> float | None:
    """The share of the time that would be saved; 0 if the next steps make up for the loss."""
    return min(max(lost_ns / took_ns, 0.0), 1.0) if took_ns else None

"""Ranks that take longer than their peers by evidence in bits, one suspect per rank.

Fault: a rank slower than its peers throughout, or in a stretch of steps.
Paper: none; see `lasting`, which has one score in bits instead of the gates of `argus-l2`. It runs
by name, beside the default, until it has been judged on as many real jobs. What it finds in the
phases of one rank is merged here: the costliest phase gives the range and the evidence.
Cost: a selection per group and step, and a few cumulative sums, for each phase.
Cannot see: ranks that are slow in single steps (`transient`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.lasting import Lasting, lasting
from stepscope.diagnose.detect.slowdown import shares_of, slowdown_in, slowdown_of
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import INFLATED, Suspect, dominant
from stepscope.window import Floats

LEAST_BITS = 2.0
"""Reached by 2 of 2,520 synthetic healthy jobs, both with 30 % noise (docs/methods/lasting.md). Our
simulator."""


class LastingRanks:
    """Ranks that take longer than their peers, by evidence in bits instead of limits."""

    name = "lasting"
    needs = Needs("phases|comm_ops|steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        found: dict[int, list[_Slow]] = {}
        for phase, told in measured(job):
            for row in np.flatnonzero(told.bits > LEAST_BITS).tolist():
                found.setdefault(row, []).append(_Slow.of(row, phase, told))
        for row in sorted(found):
            yield slowdown_of(job, self.name, _suspect(job, found[row]))


def measured(job: Observed) -> Iterator[tuple[str | None, Lasting]]:
    """Each phase, and all together (None), with the evidence about each rank."""
    skip = job.line.warm_up
    parts: list[tuple[str | None, Floats]] = [*zip(job.own.phases, job.own.own, strict=True)]
    if len(parts) > 1:
        parts.append((None, job.total))
    for phase, own in parts:
        told = lasting(own[:, skip:], job.groups(phase), job.line.typical_ns)
        if told is not None:
            yield phase, told.shifted(skip)


@dataclass(frozen=True)
class _Slow:
    """One rank in one phase."""

    row: int
    phase: str | None
    bits: float
    first: int
    stop: int
    whole_ns: float

    @classmethod
    def of(cls, row: int, phase: str | None, told: Lasting) -> _Slow:
        first, stop = int(told.first[row]), int(told.stop[row])
        whole_ns = float(told.excess_ns[row]) * (stop - first)
        return cls(row, phase, float(told.bits[row]), first, stop, whole_ns)


def _suspect(job: Observed, found: Sequence[_Slow]) -> Suspect:
    """Merges what was found of a rank: the costliest phase gives the range."""
    main = max(found, key=lambda one: one.whole_ns)
    row, first, stop = main.row, main.first, main.stop
    flagged = tuple(one.phase for one in found if one.phase is not None)
    whole = len(flagged) < len(found) or not flagged
    shares = shares_of(job, row, first, stop, job.own.phases if whole else flagged)
    phase = dominant(shares) if shares else main.phase
    carried = sum(shares.values())
    slowdown = slowdown_in(job, row, phase, slice(first, stop), carried)
    inflated = sum(value >= INFLATED * carried for value in shares.values())
    bits = max(one.bits for one in found)
    return Suspect(
        row, phase, tuple(shares), first, stop, float(np.log(slowdown)), bits, LEAST_BITS, carried,
        slowdown, inflated,
    )  # fmt: skip

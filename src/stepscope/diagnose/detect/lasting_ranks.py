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
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.detect.lasting import Lasting, lasting
from stepscope.diagnose.detect.slowdown import slowdown_of, suspect_of
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect

LEAST_BITS = 2.0
"""Reached by 2 of 2,520 synthetic healthy jobs, both with 30 % noise (docs/methods/lasting.md). Our
simulator."""


class LastingRanks:
    """Ranks that take longer than their peers, by evidence in bits instead of limits."""

    name = "lasting"
    needs = Needs("phases|comm_ops|steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        found: dict[int, list[_Slow]] = {}
        for phase, evidence in measured(job):
            for row in np.flatnonzero(evidence.bits > LEAST_BITS).tolist():
                found.setdefault(row, []).append(_Slow.of(row, phase, evidence))
        for row in sorted(found):
            yield slowdown_of(job, self.name, _suspect(job, found[row]))


def measured(job: Observed) -> Iterator[tuple[str | None, Lasting]]:
    """Each phase, and all together (None), with the evidence about each rank."""
    skip = job.line.warm_up
    for phase, own in job.parts():
        evidence = lasting(own[:, skip:], job.groups(phase), job.line.typical_ns)
        if evidence is not None:
            yield phase, evidence.shifted(skip)


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
    def of(cls, row: int, phase: str | None, evidence: Lasting) -> _Slow:
        first, stop = int(evidence.first[row]), int(evidence.stop[row])
        whole_ns = float(evidence.excess_ns[row]) * (stop - first)
        return cls(row, phase, float(evidence.bits[row]), first, stop, whole_ns)


def _suspect(job: Observed, found: Sequence[_Slow]) -> Suspect:
    """Merges what was found of a rank: the costliest phase gives the range."""
    main = max(found, key=lambda one: one.whole_ns)
    row, first, stop = main.row, main.first, main.stop
    bits = max(one.bits for one in found)
    phases = [one.phase for one in found]
    suspect = suspect_of(job, row, (first, stop), main.phase, phases)
    effect = float(np.log(suspect.slowdown))
    return replace(suspect, effect=effect, z=bits, needed=LEAST_BITS)

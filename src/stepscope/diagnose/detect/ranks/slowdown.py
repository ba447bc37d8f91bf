"""A suspect as a finding, with the decision on its own time (blame rule 1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stepscope.diagnose.finding import Decision, Slowdown, Span
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import INFLATED, Suspect, dominant
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import Ints

OWN_TIME = "own-time"
"""The name of blame rule 1 (`decide.rules`)."""


def slowdown_of(job: Observed, method: str, suspect: Suspect) -> Slowdown:
    """What a method found of one rank; its cause and cost are worked out later."""
    line = job.line
    return Slowdown(
        method, "unknown", "", (int(line.ranks[suspect.row]),),
        steps=line.span(suspect.first, suspect.stop),
        time_ns=line.span_ns(suspect.first, suspect.stop), slowdown=suspect.slowdown,
        lost_ns=suspect.excess_ns, suspect=suspect, decisions=(_own_time(method, suspect),),
    )  # fmt: skip


def suspect_of(
    job: Observed, row: int, columns: Span, phase: str | None, found_in: Collection[str | None]
) -> Suspect:
    """A rank that is slow in columns [first, stop), with what it takes there beyond its peers.

    Args:
        phase: where it costs most.
        found_in: every phase in which it was found to be slow; None: all together.
    """
    first, stop = columns
    flagged = tuple(one for one in found_in if one is not None)
    whole = len(flagged) < len(found_in)
    shares = _shares(job, row, first, stop, job.own.phases if whole else flagged)
    phase = dominant(shares) if shares else phase
    carried = sum(shares.values())
    slowdown = slowdown_in(job, row, phase, slice(first, stop), carried)
    inflated = sum(value >= INFLATED * carried for value in shares.values())
    return Suspect(row, phase, tuple(shares), first, stop, 0.0, 0.0, 0.0, carried, slowdown,
                   inflated)  # fmt: skip


def suspect_in(job: Observed, row: int, columns: Ints, alone: bool = False) -> Suspect:
    """A rank that is slow in single columns, with what it takes there beyond its peers.

    Args:
        alone: whether the length of one of them counts, and not how many there are.
    """
    first, stop = int(columns[0]), int(columns[-1]) + 1
    shares = _shares_in(job, row, columns)
    worst, worst_ns = _heaviest_run(job, row, columns, tuple(shares))
    phase, carried = dominant(shares), sum(shares.values())
    slowdown = slowdown_in(job, row, phase, columns, carried)
    return Suspect(
        row, phase, tuple(shares), first, stop, 0.0, 0.0, 0.0,
        carried * columns.size / (stop - first), slowdown, len(shares),
        tuple(map(int, columns)), alone, worst, worst_ns,
    )  # fmt: skip


def slowdown_in(
    job: Observed, row: int, phase: str | None, columns: slice | Ints, excess_ns: float
) -> float:
    """How many times as long as its peers the rank takes in the phase.

    Excess in no phase, or in no single one, is compared with all that its peers do: times outside
    of phases are not recorded, and what the rank takes longer there may be waiting of its peers'.
    Where only the excess in a phase is known, the time that peers do something in it is at most as
    long as they are in it, so the ratio is the least possible.
    """
    if phase in (None, *UNNAMED):
        peers_ns = stats.median(job.peer_median(job.total, phase, row)[columns])
        peers_ns += sum(_peers_in(job, row, other, columns) for other in job.own.lasted)
        return 1 + excess_ns / max(peers_ns, 1.0)
    own = job.own.of(phase)
    own_ns = stats.median(own[row, columns])
    peers_ns = stats.median(job.peer_median(own, phase, row)[columns])
    if phase in job.own.lasted:
        return 1 + (own_ns - peers_ns) / max(_peers_in(job, row, phase, columns), 1.0)
    return own_ns / max(peers_ns, 1.0)


def _peers_in(job: Observed, row: int, phase: str, columns: slice | Ints) -> float:
    """How long per step peers are in a phase of which only the excess is known."""
    return stats.median(job.peer_median(job.own.lasted[phase], phase, row)[columns])


def _shares(
    job: Observed, row: int, first: int, stop: int, phases: Sequence[str]
) -> dict[str, float]:
    """Mean excess per step of each of the phases in which the rank has any."""
    shares = {}
    for phase in phases:
        values = job.excess_of(phase, row)[first:stop]
        typical = float(stats.block_means(values[None], max(len(values), 1))[0].sum())
        if np.isfinite(typical) and typical > 0:
            shares[phase] = typical
    return shares


def _heaviest_run(
    job: Observed, row: int, columns: Ints, phases: tuple[str, ...]
) -> tuple[tuple[int, int], float]:
    """The neighbouring columns that carry most of the excess, and how much per step."""
    whole = sum((np.nan_to_num(job.excess_of(phase, row)) for phase in phases),
                np.zeros(len(job.line.steps)))  # fmt: skip
    heaviest = max(stats.runs_of(columns), key=lambda run: float(whole[run].sum()))
    return (int(heaviest[0]), int(heaviest[-1]) + 1), float(whole[heaviest].mean())


def _shares_in(job: Observed, row: int, columns: Ints) -> dict[str, float]:
    """Mean excess per spike of the phases that carry a share of it, and always of the worst."""
    means = {phase: float(np.nan_to_num(job.excess_of(phase, row)[columns]).mean())
             for phase in job.own.phases}  # fmt: skip
    whole = sum(max(mean, 0.0) for mean in means.values())
    worst = max(means, key=lambda phase: means[phase])
    return {phase: mean for phase, mean in means.items()
            if phase == worst or mean > INFLATED * whole}  # fmt: skip


def _own_time(method: str, suspect: Suspect) -> Decision:
    where = f" in {suspect.phase}" if suspect.phase else ""
    whose = f"that of {suspect.usual}" if suspect.by_past else "its peers' own time"
    says = f"{method}: {suspect.slowdown:.2f} times {whose}{where}"
    if not suspect.phases:
        return Decision(OWN_TIME, True, None, None, f"{says}, because of garbage collection")
    says += f"; z {suspect.z:.1f}, noise reaches {suspect.needed:.1f}"
    return Decision(OWN_TIME, True, suspect.z, suspect.needed, says)

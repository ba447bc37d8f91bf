"""Chooses one finding per rank from those of all methods: lasting, transient, or by pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.decide.cause import Reason
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect

MOST = 0.5
"""Part of a rank's spikes that a lasting slowness must explain to replace them; and part of two
ranks' spikes in the same steps from which they have one cause. Our simulator."""


@dataclass(frozen=True)
class Chosen:
    """The findings that are kept, one per rank, and those that others explain."""

    kept: tuple[Slowdown, ...]
    explained: tuple[Slowdown, ...]


def choose(found: Sequence[Slowdown]) -> Chosen:
    """For each rank the finding that explains most of its excess.

    A lasting slowdown replaces a storm of collections with no larger excess. Spikes with more than
    twice the excess of a lasting slowdown replace it.
    """
    storms = {row(one): one for one in found if _is_storm(one)}
    spikes = (one for one in found if _suspect(one).spikes)
    spiking = {row(one): one for one in sorted(spikes, key=lambda one: _suspect(one).whole_ns)}
    lasting = {row(one): one for one in found if not _is_storm(one) and not _suspect(one).spikes}
    slow = [
        one for at, one in lasting.items() if at not in storms or _outweighs(one, storms[at], 1)
    ]
    rows = {row(one) for one in slow}
    slow += [one for at, one in storms.items() if at not in rows]
    known = {row(one): one for one in slow}
    often = [one for at, one in spiking.items()
             if at not in known or not _outweighs(known[at], one, MOST)]  # fmt: skip
    rows = {row(one) for one in often}
    kept = (*(one for one in slow if row(one) not in rows), *often)
    standing = {row(one): one for one in kept}
    explained = tuple(_explained_by(one, standing[row(one)]) for one in found if one not in kept)
    return Chosen(kept, explained)


def _suspect(one: Slowdown) -> Suspect:
    assert one.suspect is not None
    return one.suspect


def row(one: Slowdown) -> int:
    """The rank's row of the grid."""
    return _suspect(one).row


def _is_storm(one: Slowdown) -> bool:
    return not _suspect(one).phases


def _outweighs(one: Slowdown, other: Slowdown, part: float) -> bool:
    """Whether one carries at least this part of the other's excess."""
    return _suspect(one).whole_ns >= part * _suspect(other).whole_ns


def _explained_by(one: Slowdown, kept: Slowdown) -> Slowdown:
    needed = _suspect(kept).whole_ns / (MOST if _suspect(one).spikes else 1.0)
    says = f"seconds of excess, as {kept.method} explains the same rank"
    decision = Decision("one-per-rank", False, _suspect(one).whole_ns / 1e9, needed / 1e9, says)
    return replace(one, decisions=(*one.decisions, decision))


def in_common(
    job: Observed, culprits: Sequence[Suspect], reasons: Sequence[Reason]
) -> list[Reason]:
    """The reason for each culprit; ranks of a host with spikes at once share the heaviest one.

    A spike of a host hits each rank in whatever it does at that time, so each shows only a part.
    """
    shared = [_most_weighty([(other.whole_ns, reason)
                             for other, reason in zip(culprits, reasons, strict=True)
                             if other is one or _at_once(job, one, other)])
              for one in culprits]  # fmt: skip
    return [replace(one, beside=own.beside) for one, own in zip(shared, reasons, strict=True)]


def _most_weighty(reasons: Sequence[tuple[float, Reason]]) -> Reason:
    """Of the cause that carries most excess, the reason with most."""
    weight: dict[str, float] = {}
    for whole_ns, reason in reasons:
        weight[reason.cause] = weight.get(reason.cause, 0.0) + whole_ns
    cause = max(weight, key=lambda one: weight[one])
    return max((one for one in reasons if one[1].cause == cause), key=lambda one: one[0])[1]


def _at_once(job: Observed, one: Suspect, other: Suspect) -> bool:
    spikes, others = set(one.spikes), set(other.spikes)
    host = job.window.host_of(int(job.line.ranks[one.row]))
    return (
        len(spikes & others) > MOST * len(spikes | others) and host is not None
        and host == job.window.host_of(int(job.line.ranks[other.row]))
    )  # fmt: skip

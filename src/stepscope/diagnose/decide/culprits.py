"""Chooses one finding per rank from those of all methods: lasting, transient, or by pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.decide.cause import Reason
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect, dominant
from stepscope.diagnose.thresholds import HALF


@dataclass(frozen=True)
class Chosen:
    """The findings that are kept, one per rank, and those that others explain."""

    kept: tuple[Slowdown, ...]
    explained: tuple[Slowdown, ...]


def choose(found: Sequence[Slowdown]) -> Chosen:
    """For each rank the finding that explains most of its excess.

    A lasting slowdown replaces a storm of collections with no larger excess. Spikes with more than
    twice the excess of a lasting slowdown replace it, and with half of it if the rank is slow in
    less than half of its steps.
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
    often = [one for at, one in spiking.items() if at not in known or _replaces(one, known[at])]
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


def _replaces(spikes: Slowdown, lasting: Slowdown) -> bool:
    if not _outweighs(lasting, spikes, HALF):
        return True
    return _is_now_and_then(lasting, spikes) and _outweighs(spikes, lasting, HALF)


def _is_now_and_then(one: Slowdown, spikes: Slowdown) -> bool:
    """Whether a rank that is slow on average is so in less than half of its steps, and in the
    others by less than half as much: of what lasts, noise lifts some steps above a limit."""
    lasting, often = _suspect(one), _suspect(spikes)
    within = [step for step in often.spikes if lasting.first <= step < lasting.stop]
    others = lasting.stop - lasting.first - len(within)
    spike_ns = often.whole_ns / len(often.spikes)
    rest_ns = (lasting.whole_ns - len(within) * spike_ns) / max(others, 1)
    return bool(lasting.phases) and len(within) < others and rest_ns < HALF * spike_ns


def _explained_by(one: Slowdown, kept: Slowdown) -> Slowdown:
    needed = _suspect(kept).whole_ns / (HALF if _suspect(one).spikes else 1.0)
    says = f"seconds of excess, as {kept.method} explains the same rank"
    decision = Decision("one-per-rank", False, _suspect(one).whole_ns / 1e9, needed / 1e9, says)
    return replace(one, decisions=(*one.decisions, decision))


def in_common(
    job: Observed, culprits: Sequence[Suspect], reasons: Sequence[Reason]
) -> list[Reason]:
    """The reason for each culprit; ranks of a host with spikes at once, or all of them slow, share
    the heaviest one.

    What slows a host down hits each rank in whatever it does at that time, so each shows only a
    part.
    """
    shared = []
    for one in culprits:
        same = [(other, reason) for other, reason in zip(culprits, reasons, strict=True)
                if other is one or _at_once(job, one, other)]  # fmt: skip
        shared.append(_most_weighty(same if one.spikes else _as_together(job, same)))
    return [replace(one, beside=own.beside) for one, own in zip(shared, reasons, strict=True)]


def _as_together(job: Observed, same: list[tuple[Suspect, Reason]]) -> list[tuple[Suspect, Reason]]:
    """Those that are slow in the phase, or in all phases, in which all of them together are: half
    of the excess of one rank may happen to be in one."""
    shares: dict[str, float] = dict.fromkeys(job.own.phases, 0.0)
    for phase in shares:
        for one, _ in same:
            excess = stats.median(job.excess_of(phase, one.row)[one.columns])
            shares[phase] += max(excess, 0.0)
    most = dominant(shares) if shares else None
    return [pair for pair in same if pair[0].phase == most] or same


def _most_weighty(reasons: Sequence[tuple[Suspect, Reason]]) -> Reason:
    """Of the cause that carries most excess, the reason with most."""
    weight: dict[str, float] = {}
    for one, reason in reasons:
        weight[reason.cause] = weight.get(reason.cause, 0.0) + one.whole_ns
    cause = max(weight, key=lambda one: weight[one])
    return max((one for one in reasons if one[1].cause == cause), key=lambda one: one[0].whole_ns)[
        1
    ]


def _at_once(job: Observed, one: Suspect, other: Suspect) -> bool:
    spikes, others = set(one.spikes), set(other.spikes)
    host = job.window.host_of(int(job.line.ranks[one.row]))
    if host is None or host != job.window.host_of(int(job.line.ranks[other.row])):
        return False
    if not spikes and not others:
        return _is_slow(job, one.row)
    return len(spikes & others) > HALF * len(spikes | others)


def _is_slow(job: Observed, row: int) -> bool:
    """Whether all ranks of a row's host are in the slow cluster, where ranks have two speeds."""
    slow = job.slow_side(None)
    return any(bool(slow[rows].all()) for rows in job.host_rows if row in rows)

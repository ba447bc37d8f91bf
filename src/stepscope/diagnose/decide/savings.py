"""The time that culprits would save at their peers' speed, and the pieces of a step that shrink.

What pauses of a suspect cost is measured, by how much longer steps are with them
(`detect.gc_pauses`). Nothing between the two has to be known: neither in which phase a pause was,
nor who waited for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.detect.ranks.gc_pauses import pause_cost_ns
from stepscope.diagnose.graph.covers import GC, pause_covers
from stepscope.diagnose.graph.pieces import Pieces
from stepscope.diagnose.graph.step_graph import StepGraph
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.unrecorded import unrecorded_groups
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import Floats, Ints, Mask

PAUSES, NO_PHASE = "pauses", "no phase"
"""In place of a phase: pauses, in whatever phase; and all times in no phase together."""

FEW_PEERS = 8
"""The nearest peers whose pieces of a step tell where a culprit takes longer. Our choice."""

ELSEWHERE = 0.25
"""Share of its excess that a rank must have elsewhere in a phase than if the whole of it were slow.
Our choice."""

Savings = Mapping[tuple[int, str], Floats]
"""By row of the grid and phase: ns saved in each column, negative where peers were slower."""


def savings(job: Observed, culprits: Sequence[Suspect]) -> Savings:
    """Own time of each culprit beyond its innocent peers', in its slow phases and columns."""
    found: dict[tuple[int, str], Floats] = {}
    for one in culprits:
        for phase, saved in _excesses(job, one, culprits):
            key = one.row, NO_PHASE if phase in UNNAMED else phase
            found.setdefault(key, np.zeros(len(job.line.steps)))[one.columns] += saved
    return found


def _excesses(
    job: Observed, one: Suspect, culprits: Sequence[Suspect]
) -> Iterator[tuple[str, Floats]]:
    """The excess in each slow phase, or by pauses, in the culprit's columns.

    A peer that is slow in another phase is as good as any; one that is slow in the same is better
    than none.
    """
    part = one.columns
    for phase in one.phases:
        peers = job.peers_of(one.row, phase)
        guilty = [other.row for other in culprits if phase in other.phases]
        well = peers[~np.isin(peers, guilty)]
        well = well if well.size else peers
        if well.size:
            own = job.own.of(phase)
            yield phase, np.nan_to_num(own[one.row, part] - stats.column_median(own[well][:, part]))
    if not one.phases and one.phase is not None:
        yield one.phase, np.nan_to_num(job.excess_of(one.phase, one.row)[part])
    elif not one.phases and job.pauses is not None:
        others = np.delete(job.pauses[:, part], one.row, axis=0)
        yield PAUSES, job.pauses[one.row, part] - np.median(others, axis=0)


def served_ns(job: Observed, guilty: Collection[int]) -> Floats:
    """`[rank, step]`: the time in no phase of ranks with another role than all culprits. One role
    waits for the other by design, so nothing says that it is work."""
    found = np.zeros_like(job.total)
    unnamed = [np.nan_to_num(own) for phase, own in job.own.items() if phase in UNNAMED]
    if guilty and unnamed and job.has_roles:
        for rows in job.roles:
            if not np.isin(rows, [*guilty]).any():
                found[rows] = np.sum(unnamed, axis=0)[rows]
    return found


def unrecorded_rows(job: Observed) -> list[Ints]:
    """Rows of the grid that meet in operators within passes which were not recorded."""
    rows = [job.line.rows(np.array(group.ranks)) for group in unrecorded_groups(job.window)]
    return [members[members >= 0] for members in rows]


def coupled(groups: Sequence[Ints], guilty: Mask) -> Mask:
    """Some ranks, and those that they hold up in groups that were not recorded.

    All of them arrive late together in recorded operators, so no one of them is late there against
    another.
    """
    late, before = guilty.copy(), -1
    while int(late.sum()) > before:
        before = int(late.sum())
        for rows in groups:
            late[rows] |= late[rows].any()
    return late


@dataclass(frozen=True)
class Shrinking:
    """The pieces of a graph that are own work of culprits, or of ranks in unrecorded groups."""

    job: Observed
    pieces: Pieces
    paused: Floats
    """How much of each piece its rank paused."""
    held_up: Mapping[int, Ints]
    """By culprit, the rows that it holds up in unrecorded operators."""
    peers: Mapping[int, Ints]
    """By culprit, the rows of its nearest innocent peers."""

    @classmethod
    def of(cls, job: Observed, graph: StepGraph, culprits: Sequence[int]) -> Shrinking:
        """The pieces of some rows of the grid."""
        groups = unrecorded_rows(job)
        held_up = {row: _held_up(groups, len(job.line.ranks), row) for row in culprits}
        peers = {row: _innocent(job, row, culprits) for row in culprits}
        rows = np.concatenate([np.array(culprits, np.int64), *held_up.values(), *peers.values()])
        pieces = Pieces.of(job.window, graph, rows)
        pauses = pause_covers(job.window, graph.lanes)
        paused = np.zeros(pieces.lane.size)
        if pauses is not None:
            paused = pauses.within(pieces.lane, pieces.begin_ns, pieces.end_ns)[GC]
        return cls(job, pieces, paused, held_up, peers)

    def saved(self, savings: Savings) -> tuple[Ints, Ints]:
        """The time saved in each row of the graph, and in each lane at its end."""
        pieces = self.pieces
        amount = np.zeros(pieces.lane.size)
        for (who, phase), part in self._parts(savings).items():
            own = pieces.row == who
            slow = (who, phase) in savings and phase != PAUSES
            place = self._where_longer if slow else self._evenly
            amount[own] += place(who, phase, part)
        graph, count = pieces.graph, pieces.rows.size
        rows = np.zeros(graph.op.size, np.int64)
        ends = np.zeros(len(graph.lanes), np.int64)
        rows[pieces.rows] = np.rint(amount[:count])
        ends[pieces.lanes] = np.rint(amount[count:])
        return rows, ends

    def _evenly(self, who: int, phase: str, part: Floats) -> Floats:
        """That part of what each of the rank's pieces takes of a phase."""
        own = self.pieces.row == who
        return np.asarray(self._in(phase)[own] * part[self.pieces.at[own]])

    def _where_longer(self, who: int, phase: str, part: Floats) -> Floats:
        """As much in each step, but where the rank falls behind its peers in a phase: a slow layer
        is in one part of it, and what waits for data at the start of a step does nothing else at
        its end. It must be the same part in most steps: with inputs of any length each falls behind
        anywhere. Evenly if not, or where its pieces are not those of its peers.
        """
        evenly, until = self._evenly(who, phase, part), self._until.get(phase)
        if until is None:
            return evenly
        pieces, steps = self.pieces, self.pieces.graph.lanes.columns.size
        own = pieces.row == who
        at, place = pieces.at[own], pieces.place[own]
        behind = pieces.beyond(until, own, self.peers[who])
        last = np.flatnonzero(own) >= pieces.rows.size
        spent, whole = np.zeros(steps), np.zeros(steps)
        spent[at[last]], whole[at[last]] = until[own][last], behind[last]
        known = np.bincount(at, ~np.isfinite(behind), steps) == 0
        known &= (part > 0) & (whole > HALF * part * spent)
        usual = known[at]
        even = until[own] / np.maximum(spent[at], 1.0)
        share = _alike_in_most(place[usual], behind[usual] / whole[at[usual]], even[usual])
        if share is None:
            return evenly
        reached = np.where(last, 1.0, share[np.minimum(place, share.size - 1)])
        placed = np.zeros(pieces.lane.size)
        placed[own] = reached * (part * spent)[at]
        return np.where(usual, pieces.since_gate(placed)[own], evenly)

    @cached_property
    def _until(self) -> Mapping[str, Floats]:
        """By phase what each lane has spent in it by the end of each piece."""
        phases = (NO_PHASE, *self.pieces.inside)
        return {phase: self.pieces.until(self._in(phase)) for phase in phases}

    def _in(self, phase: str) -> Floats:
        """How much of each piece a phase takes."""
        if phase == PAUSES:
            return self.paused
        if phase == NO_PHASE:
            return self.pieces.unnamed_ns
        return self.pieces.inside.get(phase, np.zeros(self.pieces.lane.size))

    def _parts(self, savings: Savings) -> dict[tuple[int, str], Floats]:
        """By row and phase the part of it that is saved in each column of the graph."""
        columns = self.pieces.graph.lanes.columns
        found: dict[tuple[int, str], Floats] = {}
        for row in sorted({row for row, _ in savings}):
            saved_ns = [saved[columns] for (one, _), saved in savings.items() if one == row]
            whole = np.maximum(saved_ns, 0.0).sum(axis=0)
            for other in self.held_up[row].tolist():
                for phase, part in self._parts_held_up(other, whole).items():
                    found[other, phase] = np.maximum(part, found.get((other, phase), 0.0))
        own = {(row, phase): _divided(saved[columns], self._own(row, phase))
               for (row, phase), saved in savings.items()}  # fmt: skip
        return {**found, **own}

    def _own(self, row: int, phase: str) -> Floats:
        """Own time in each column of the graph."""
        columns, known = self.pieces.graph.lanes.columns, self.job.own
        if phase == PAUSES and self.job.pauses is not None:
            return np.asarray(self.job.pauses[row, columns])
        parts = [own[row, columns] for name, own in known.items()
                 if phase == name or (phase == NO_PHASE and name in UNNAMED)]  # fmt: skip
        return np.nan_to_num(parts).sum(axis=0) if parts else np.zeros(columns.size)

    def _parts_held_up(self, row: int, saved: Floats) -> dict[str, Floats]:
        """The parts saved by a rank that waits within its phases, limited to what it waited."""
        steps = self.pieces.graph.lanes.columns.size
        lasted = {
            name: spent[row * steps : (row + 1) * steps]
            for name, spent in self.pieces.whole.items()
        }
        waited = {name: np.maximum(spent - self._own(row, name), 0.0)
                  for name, spent in lasted.items()}  # fmt: skip
        part = _divided(saved, sum(waited.values(), np.zeros(steps)))
        return {name: part * _divided(waited[name], spent) for name, spent in lasted.items()}


def _held_up(groups: Sequence[Ints], rows: int, row: int) -> Ints:
    guilty = np.arange(rows) == row
    return np.flatnonzero(coupled(groups, guilty) & ~guilty)


def _alike_in_most(place: Ints, share: Floats, even: Floats) -> Floats | None:
    """By place in a step the usual share of its excess that a rank has until then; None where steps
    differ, where it is as if all of it were slow, or where the rank would give back what it fell
    behind: other stages of a pipeline have other passes at the same place."""
    size = int(place.max(initial=-1)) + 1
    usual = stats.medians_of(place, share, size)
    scatter = stats.medians_of(place, np.abs(share - usual[place]), size)
    elsewhere = np.abs(usual - stats.medians_of(place, even, size)).max(initial=0.0)
    given_back = (np.maximum.accumulate(usual) - usual).max(initial=0.0)
    unlike = max(scatter.max(initial=0.0), given_back)
    return usual if elsewhere >= ELSEWHERE > unlike else None


def _innocent(job: Observed, row: int, culprits: Sequence[int]) -> Ints:
    """The nearest peers of a culprit that are none."""
    peers = job.nearest_peers(row, None, FEW_PEERS + len(culprits))
    return peers[~np.isin(peers, culprits)][:FEW_PEERS]


def _divided(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.where(whole > 0, np.minimum(part / np.maximum(whole, 1.0), 1.0), 0.0))


def lost_to_pauses(job: Observed, one: Suspect, culprits: Sequence[Suspect]) -> Floats | None:
    """What each step loses to pauses of a rank that only these make a suspect, beyond its peers'.

    None where steps are not longer with them, or nothing shows how long they would be without:
    steps before or after it in which another culprit is slow do not.
    """
    if one.phases or job.pauses is None or len(job.pauses) < 2:
        return None
    peers = stats.column_median(np.delete(job.pauses, one.row, axis=0))
    beyond, skip = np.maximum(job.pauses[one.row] - peers, 0.0), job.line.warm_up
    columns = np.arange(beyond.size)
    others = np.isin(columns, np.concatenate([columns[each.columns] for each in culprits]))
    period = np.where(others & ~np.isin(columns, columns[one.columns]), np.nan,
                      job.line.job_period_ns)  # fmt: skip
    found, lost = pause_cost_ns(period[skip:], beyond[skip:]), beyond * 0.0
    lost[skip:][one.first - skip : one.stop - skip] = found[one.first - skip : one.stop - skip]
    return lost if lost.sum() > 0 else None

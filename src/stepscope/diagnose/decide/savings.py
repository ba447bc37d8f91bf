"""The time that culprits would save at their peers' speed, and the pieces of a step that shrink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.covers import GC, pause_covers, phase_covers
from stepscope.diagnose.graph.step_graph import StepGraph
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.unrecorded import unrecorded_groups
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import NULL, Floats, Ints, Mask

PAUSES, NO_PHASE = "pauses", "no phase"
"""In place of a phase: pauses, in whatever phase; and all times in no phase together."""

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
    """Of each slow phase, or of pauses, in the culprit's columns.

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
            own = job.own.own[job.own.phases.index(phase)]
            yield phase, np.nan_to_num(own[one.row, part] - stats.column_median(own[well][:, part]))
    if not one.phases and one.phase is not None:
        yield one.phase, np.nan_to_num(job.excess_of(one.phase, one.row)[part])
    elif not one.phases and job.pauses is not None:
        others = np.delete(job.pauses[:, part], one.row, axis=0)
        yield PAUSES, job.pauses[one.row, part] - np.median(others, axis=0)


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
    graph: StepGraph
    rows: Ints
    """Of the graph, one piece each."""
    lanes: Ints
    """The ends of these are pieces as well."""
    lane: Ints
    """Of all pieces."""
    lasted: Floats
    inside: Mapping[str, Floats]
    """By phase, how much of each piece lies in it."""
    paused: Floats
    """How much of each piece its rank paused."""
    whole: Mapping[str, Floats]
    """By phase how long it lasts in each lane of the graph."""
    held_up: Mapping[int, Ints]
    """By culprit, the rows that it holds up in unrecorded operators."""

    @classmethod
    def of(cls, job: Observed, graph: StepGraph, culprits: Sequence[int]) -> Shrinking:
        """The pieces of some rows of the grid."""
        groups = unrecorded_rows(job)
        held_up = {row: _held_up(groups, len(job.line.ranks), row) for row in culprits}
        lanes = _lanes(graph, np.concatenate([np.array(culprits, np.int64), *held_up.values()]))
        own_lanes = np.zeros(len(graph.lanes), np.bool_)
        own_lanes[lanes] = True
        rows = np.flatnonzero(own_lanes[graph.lane])
        lane = np.concatenate((graph.lane[rows], lanes))
        begin = np.concatenate((graph.since_ns[rows], graph.tail_since_ns[lanes]))
        end = np.concatenate((graph.arrive_ns[rows], graph.finish_ns[lanes]))
        covers = phase_covers(job.window, graph.lanes, lanes)
        inside: Mapping[str, Floats] = {}
        whole: dict[str, Floats] = {}
        if covers is not None:
            inside = covers.within(lane, begin, end)
            long = covers.within(lanes, graph.begin_ns[lanes], graph.finish_ns[lanes])
            for name, spent in long.items():
                whole[name] = stats.sums(lanes, spent, len(graph.lanes))
        lasted = np.maximum(end - begin, 0).astype(np.float64)
        pauses = pause_covers(job.window, graph.lanes)
        paused = np.zeros(lane.size) if pauses is None else pauses.within(lane, begin, end)[GC]
        return cls(job, graph, rows, lanes, lane, lasted, inside, paused, whole, held_up)

    def saved(self, savings: Savings) -> tuple[Ints, Ints]:
        """The time saved in each row of the graph, and in each lane at its end."""
        amount = np.zeros(self.lane.size)
        row, at = self.graph.lanes.row(self.lane), self.graph.lanes.at(self.lane)
        for (who, phase), part in self._parts(savings).items():
            own = row == who
            amount[own] += self._in(phase)[own] * part[at[own]]
        rows = np.zeros(self.graph.op.size, np.int64)
        ends = np.zeros(len(self.graph.lanes), np.int64)
        rows[self.rows] = np.rint(amount[: self.rows.size])
        ends[self.lanes] = np.rint(amount[self.rows.size :])
        return rows, ends

    def _in(self, phase: str) -> Floats:
        """How much of each piece a phase takes."""
        nothing = np.zeros(self.lane.size)
        if phase == PAUSES:
            return self.paused
        if phase == NO_PHASE:
            return np.asarray(np.maximum(self.lasted - sum(self.inside.values(), nothing), 0.0))
        return self.inside.get(phase, nothing)

    def _parts(self, savings: Savings) -> dict[tuple[int, str], Floats]:
        """By row and phase the part of it that is saved in each column of the graph."""
        columns = self.graph.lanes.columns
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
        """Of each column of the graph."""
        columns, known = self.graph.lanes.columns, self.job.own
        if phase == PAUSES and self.job.pauses is not None:
            return np.asarray(self.job.pauses[row, columns])
        parts = [own[row, columns] for name, own in zip(known.phases, known.own, strict=True)
                 if phase == name or (phase == NO_PHASE and name in UNNAMED)]  # fmt: skip
        return np.nan_to_num(parts).sum(axis=0) if parts else np.zeros(columns.size)

    def _parts_held_up(self, row: int, saved: Floats) -> dict[str, Floats]:
        """The parts saved by a rank that waits within its phases, limited to what it waited."""
        steps = self.graph.lanes.columns.size
        lasted = {
            name: spent[row * steps : (row + 1) * steps] for name, spent in self.whole.items()
        }
        waited = {name: np.maximum(spent - self._own(row, name), 0.0)
                  for name, spent in lasted.items()}  # fmt: skip
        part = _divided(saved, sum(waited.values(), np.zeros(steps)))
        return {name: part * _divided(waited[name], spent) for name, spent in lasted.items()}


def _held_up(groups: Sequence[Ints], rows: int, row: int) -> Ints:
    guilty = np.arange(rows) == row
    return np.flatnonzero(coupled(groups, guilty) & ~guilty)


def _lanes(graph: StepGraph, rows: Ints) -> Ints:
    """The lanes of some rows of the grid, without steps that were not run."""
    steps = graph.lanes.columns.size
    lanes = (np.unique(rows)[:, None] * steps + np.arange(steps)).ravel()
    run = (graph.begin_ns[lanes] != NULL) & (graph.finish_ns[lanes] != NULL)
    return np.asarray(lanes[run])


def _divided(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.where(whole > 0, np.minimum(part / np.maximum(whole, 1.0), 1.0), 0.0))

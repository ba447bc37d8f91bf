"""The passes of microbatches of all steps, in a dense form: who ran which, from when to when.

A *pass* is forward, backward, or backward for weights, in one stage for one microbatch. Pipelines
that share layers (tensor or context parallel) are the *members* of one *replica* and run each pass
together, as VenusTrace (Jiao et al., 2025), section 3.3, treats a tensor parallel group as a whole.
The n-th pass of a kind and microbatch on one rank is in its n-th stage, forward in order and
backward in reverse, because a microbatch goes through all stages in order.
Cost: one sort of the passes. Cannot see: groups whose pipelines differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.views.pipeline import ONE_LAYER, PASSES, is_wave
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import FORWARD, WEIGHT, ProcessGroup
from stepscope.window import NULL, Ints, Mask, Table, Window, occurrence

MOST_ROWS = 4_000_000
"""Passes that are read at most: one step of 16,384 ranks with 64 microbatches has two million. Our
choice."""


@dataclass(frozen=True)
class Layout:
    """The place of each rank: `ranks[member, replica, position]` in the pipeline."""

    ranks: Ints

    @property
    def members(self) -> int:
        return int(self.ranks.shape[0])

    @property
    def replicas(self) -> int:
        return int(self.ranks.shape[1])

    @property
    def positions(self) -> int:
        return int(self.ranks.shape[2])


@dataclass(frozen=True)
class Passes:
    """Times of passes, `[pass, member, replica, column]`; NULL if a pass was not run.

    A pass has the number (kind * stages + stage) * microbatches + microbatch.
    """

    layout: Layout
    line: Timeline
    columns: Ints
    """The columns of the grid of steps that were read."""
    stages: int
    microbatches: int
    wave: bool
    start_ns: Ints
    end_ns: Ints
    wait_ns: Ints
    """How long each waited for others meanwhile; NULL if unknown."""
    place: Ints
    """The number of each pass in its rank's order of that step; -1 if it was not run."""

    def __len__(self) -> int:
        return int(self.start_ns.shape[0])

    @property
    def ran(self) -> Mask:
        return np.asarray(self.end_ns != NULL)

    def kind(self, number: int) -> str:
        return PASSES[number // (self.stages * self.microbatches)]

    def stage(self, number: int) -> int:
        return number // self.microbatches % self.stages

    def microbatch(self, number: int) -> int:
        return number % self.microbatches

    def position(self, number: int) -> int:
        """Where in the pipeline a pass's stage is."""
        chunk, at = divmod(self.stage(number), self.layout.positions)
        return self.layout.positions - 1 - at if self.wave and chunk % 2 else at

    def ranks_of(self, number: int, replica: int) -> Ints:
        """The ranks that run a pass together."""
        return self.layout.ranks[:, replica, self.position(number)]

    def input_of(self, number: int) -> int:
        """The pass whose output a pass needs; -1: it needs none.

        Forward follows the stage before, backward the stage after, and the last stage's forward;
        gradients of weights follow the same stage's other ones.
        """
        kind, stage = PASSES[number // (self.stages * self.microbatches)], self.stage(number)
        per_kind = self.stages * self.microbatches
        if kind == FORWARD:
            return number - self.microbatches if stage > 0 else -1
        if kind == WEIGHT:
            return number - per_kind
        return number + self.microbatches if stage < self.stages - 1 else number - per_kind


def read_passes(window: Window, line: Timeline, columns: Ints) -> Passes | None:
    """The passes of some columns of the grid; None if none was recorded, or places are unknown."""
    table, layout = window.table("phases"), layout_of(window)
    if table is None or layout is None or not table.has("microbatch", "step", "start_ns"):
        return None
    table, kind = _of_kinds(table)
    at = np.full(len(line.steps) + 1, -1)
    at[columns] = np.arange(columns.size)
    column, where = at[line.columns(table.ints("step"))], _where(layout, table.ints("rank"))
    known = (column >= 0) & (where >= 0)
    if not known.any():
        return None
    return _dense(window, line, layout, columns, table.take(known), kind[known],
                  column[known], where[known])  # fmt: skip


def layout_of(window: Window) -> Layout | None:
    """Which ranks run passes together, and which are replicas of each other."""
    pipelines = window.job.groups_of_kind("pp") or tuple(
        ProcessGroup("", "pp", (rank,)) for rank in window.ranks
    )
    pipelines = tuple(one for one in pipelines if one.ranks)
    if not pipelines or len({len(one.ranks) for one in pipelines}) > 1:
        return None
    together = _together(window, pipelines)
    if len({len(one) for one in together}) > 1:
        together = [[at] for at in range(len(pipelines))]
    ranks = np.array([[pipelines[at].ranks for at in one] for one in together], np.int64)
    return Layout(np.ascontiguousarray(ranks.transpose(1, 0, 2)))


def _together(window: Window, pipelines: Sequence[ProcessGroup]) -> list[list[int]]:
    """Pipelines that share layers, by the groups of their first stages."""
    of = {pipeline.ranks[0]: at for at, pipeline in enumerate(pipelines)}
    found = {at: [at] for at in of.values()}
    for group in window.job.groups_of_kind(*ONE_LAYER):
        members = [of[rank] for rank in group.ranks if rank in of]
        whole = list(dict.fromkeys(at for one in members for at in found[one]))
        found.update(dict.fromkeys(whole, whole))
    return [one for at, one in found.items() if one[0] == at]


def _of_kinds(table: Table) -> tuple[Table, Ints]:
    names = table.strings("phase")
    code = np.array([*(PASSES.index(name) if name in PASSES else -1 for name in names.values), -1])
    kind = code[names.codes]
    kept = (kind >= 0) & (table.ints("microbatch") >= 0) & (table.ints("start_ns") != NULL)
    return table.take(kept), kind[kept]


def _where(layout: Layout, rank: Ints) -> Ints:
    """The place of each rank in the layout, as one number; -1 if it has none."""
    size = int(max(layout.ranks.max(), rank.max(initial=0))) + 1
    place = np.full(size, -1)
    place[layout.ranks.ravel()] = np.arange(layout.ranks.size)
    return place[rank]


def _dense(window: Window, line: Timeline, layout: Layout, columns: Ints, table: Table,
           kind: Ints, column: Ints, where: Ints) -> Passes:  # fmt: skip
    start, number = table.ints("start_ns"), table.ints("microbatch")
    lane = where * columns.size + column
    microbatches, wave = int(number.max()) + 1, is_wave(window)
    again = occurrence((lane * len(PASSES) + kind) * microbatches + number, start)
    chunks = int(again[kind == 0].max(initial=0)) + 1
    chunk = np.where(kind == 0, again, np.maximum(chunks - 1 - again, 0)) % chunks
    positions = layout.positions
    back = (chunk % 2 == 1) & wave
    at = where % positions
    stage = chunk * positions + np.where(back, positions - 1 - at, at)
    stages, kinds = chunks * positions, int(kind.max()) + 1
    of = (kind * stages + stage) * microbatches + number
    shape = (kinds * stages * microbatches, layout.members, layout.replicas, columns.size)
    cell = (of * layout.members * layout.replicas + where // positions) * columns.size + column

    def filled(values: Ints, missing: int) -> Ints:
        whole = np.full(int(np.prod(shape)), missing)
        whole[cell] = values
        return whole.reshape(shape)

    wait = table.ints("wait_ns") if table.has("wait_ns") else np.full(len(table), NULL)
    return Passes(
        layout, line, columns, stages, microbatches, wave,
        filled(start, NULL), filled(start + table.ints("duration_ns"), NULL), filled(wait, NULL),
        filled(occurrence(lane, start), -1),
    )  # fmt: skip


def spread(window: Window, columns: Ints) -> Ints:
    """As many of the last columns as may be read at once."""
    table = window.table("phases")
    if table is None or not columns.size:
        return columns
    kept = int(MOST_ROWS * (int(columns.max()) + 1) / max(len(table), 1))
    return columns[-max(kept, 1) :]

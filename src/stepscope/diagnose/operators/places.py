"""Where in the schedule a rank stands still: pass, pipeline stage and microbatch.

A row of `phases` is written when its pass has ended. So a rank is in the first pass that it ran in
each step before and has not ended in this one, in its own order: 1F1B, interleaved, zero-bubble or
any other.
Paper: VenusTrace (Jiao et al., 2025), sections 3.3 and 5.4: the first incomplete node of the trace
graph, "the forward pass of the third batch". There the order comes from the job's configuration.
Cost: the rows of the newest four steps of the ranks in question.
Cannot see: a rank that stands still between its last pass and its next step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stepscope.diagnose.finding import Place
from stepscope.diagnose.operators.positions import Position, Row, positions
from stepscope.diagnose.views.communication import loads
from stepscope.diagnose.views.pipeline import is_wave
from stepscope.trace import BACKWARD, FORWARD, WEIGHT
from stepscope.window import Window

PASSES = (FORWARD, BACKWARD, WEIGHT)
NAMED = 4
"""Ranks whose places a sentence has room for. Our choice."""

_WORDS = {FORWARD: "forward pass", BACKWARD: "backward pass", WEIGHT: "backward pass for weights"}


def places(window: Window, ranks: Collection[int]) -> tuple[Place, ...]:
    """Where each of these ranks stands still, as far as its passes show that."""
    phases = window.table("phases")
    if phases is None or not phases.has("microbatch", "step", "start_ns", "duration_ns"):
        return ()
    theirs = {name: table.take(np.isin(table.ints("rank"), list(ranks)))
              for name in ("phases", "steps")
              if (table := window.table(name)) is not None}  # fmt: skip
    found = positions(Window(window.job, theirs))
    if found is None:
        return ()
    wave = is_wave(window)
    return tuple(place for _, one in sorted(found.of.items())
                 if (place := _place(window, one, wave)) is not None)  # fmt: skip


def _place(window: Window, one: Position, wave: bool) -> Place | None:
    left = one.work
    if not left or loads(left[0][0]):
        return None
    ahead = [row for row in left if row[0] in PASSES]
    if not ahead or ahead[0][1] < 0:
        return None
    phase, microbatch = ahead[0]
    stage = _stage(window, one, ahead, wave)
    return Place(one.rank, phase, stage, microbatch, 1 + max(at for _, at in one.expected))


def _stage(window: Window, one: Position, ahead: Sequence[Row], wave: bool) -> int | None:
    """The stage of the first pass ahead; a rank may have several."""
    groups = [group for group in window.job.groups_of_kind("pp") if one.rank in group.ranks]
    if not groups:
        return None
    stages, at = len(groups[0].ranks), groups[0].ranks.index(one.rank)
    left, of_each = ahead.count(ahead[0]), one.expected.count(ahead[0])
    chunks = one.expected.count((FORWARD, ahead[0][1]))
    before = of_each - left
    chunk = before if ahead[0][0] == FORWARD else max(chunks - 1 - before, 0)
    return stage_of(at, chunk, stages, wave)


def stage_of(at: int, chunk: int, stages: int, wave: bool) -> int:
    """The stage of a rank's chunk: stages go round the ranks, or in a wave there and back."""
    back = wave and chunk % 2 == 1
    return chunk * stages + (stages - 1 - at if back else at)


def in_words(found: Sequence[Place]) -> str:
    """`in the forward pass of microbatch 3, stage 2`, of one rank or of all alike; else of each."""
    distinct = dict.fromkeys(_words(one) for one in found)
    if len(distinct) < 2:
        return next(iter(distinct), "")
    return "; ".join(f"rank {one.rank} {_words(one)}" for one in found[:NAMED])


def _words(one: Place) -> str:
    of = f" of microbatch {one.microbatch}" if one.microbatches > 1 else ""
    stage = "" if one.stage is None else f" in stage {one.stage}"
    return f"in the {_WORDS[one.phase]}{of}{stage}"

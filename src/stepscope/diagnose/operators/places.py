"""Where in the schedule a rank is stuck: pass, pipeline stage and microbatch.

A row of `phases` is written when its pass has ended. So a rank is in the first pass that it ran in
each step before and has not ended in this one, in its own order: 1F1B, interleaved, zero-bubble or
any other.
Paper: VenusTrace (Jiao et al., 2025), sections 3.3 and 5.4: the first incomplete node of the trace
graph, "the forward pass of the third batch". There the order comes from the job's configuration.
Cost: the rows of the newest four steps of the ranks in question.
Cannot see: a rank that stands still between its last pass and its next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from stepscope.diagnose.finding import Place
from stepscope.diagnose.operators.positions import Position, positions
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.views.pipeline import PASSES, is_wave
from stepscope.diagnose.views.some_steps import of_ranks
from stepscope.trace import BACKWARD, FORWARD, WEIGHT
from stepscope.window import Window

NAMED = 4
"""Ranks whose places a sentence has room for. Our choice."""

PASS_WORDS = {
    FORWARD: "forward pass",
    BACKWARD: "backward pass",
    WEIGHT: "backward pass for weights",
}


def places(window: Window, ranks: Collection[int]) -> tuple[Place, ...]:
    """The place where each of these ranks is stuck, as far as its passes show it."""
    found = located(window, ranks)
    wave = is_wave(window) if found else False
    known = ((one, ahead(window, one, wave)) for _, one in sorted(found.items()))
    return tuple(left[0] for one, left in known if left and not loads(one.work[0][0]))


def located(window: Window, ranks: Collection[int]) -> dict[int, Position]:
    """How far each of these ranks got in its passes; empty if microbatches are not known."""
    phases = window.table("phases")
    if phases is None or not phases.has("microbatch", "step", "start_ns", "duration_ns"):
        return {}
    found = positions(of_ranks(window, ranks, ("phases", "steps")))
    return {} if found is None else found.of


def ahead(window: Window, one: Position, wave: bool) -> tuple[Place, ...]:
    """The passes that a rank has still to do in its step, in its order, with their stages.

    Of the passes of one kind and microbatch the first ones have ended; forward is in the order of
    the stages, and backward in reverse.
    """
    left = [row for row in one.missing if row[0] in PASSES and row[1] >= 0]
    group = next((group for group in window.job.groups_of_kind("pp") if one.rank in group.ranks),
                 None)  # fmt: skip
    number, of_each = 1 + max((at for _, at in one.expected), default=0), Counter(one.expected)
    still = Counter(left)
    out: list[Place] = []
    for row in left:
        stage = None
        if group is not None:
            chunk = of_each[row] - still[row]
            if row[0] != FORWARD:
                chunk = max(of_each[FORWARD, row[1]] - 1 - chunk, 0)
            stage = stage_of(group.ranks.index(one.rank), chunk, len(group.ranks), wave)
        still[row] -= 1
        out.append(Place(one.rank, row[0], stage, row[1], number))
    return tuple(out)


def stage_of(at: int, chunk: int, stages: int, wave: bool) -> int:
    """The stage of a rank's chunk: stages are assigned to ranks round robin, or there and back in a
    wave."""
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
    return f"in the {PASS_WORDS[one.phase]}{of}{stage}"

"""The residual graph of a hang: passes that could have begun, and never ended.

Paper: VenusTrace (Jiao et al., 2025), section 3.3, "incomplete graph": the first incomplete node,
and then the rank of its groups with missing calls. It finds one, and leaves several hangs, and
hangs after a slowdown, to future work (section 6).
Ours: a pass is *held* if it has not ended although its rank's pass before and its input have. In a
job that stands still every other pass waits for a held one. A rank whose last output is still on
its way to a held rank waits for that, so it holds up nobody. Only what has ended counts and not how
long anything took, so neither several hangs nor a slowdown before matter.
Cost: the passes of the newest four steps.
Cannot see: what happens after the last pass; which of several ranks that compute one pass together,
if none made fewer calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import Cause, Place
from stepscope.diagnose.operators.liveness import (
    Liveness,
    allowed_ns,
    last_progress_ns,
    now_ns,
    step_timing,
    watched_until_ns,
)
from stepscope.diagnose.operators.places import ahead, in_words, located
from stepscope.diagnose.operators.requests import stuck_connection
from stepscope.diagnose.operators.standstill import cause_of
from stepscope.diagnose.operators.unrecorded import linked
from stepscope.diagnose.operators.wait_state import WaitState, read_wait_state
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.views.pipeline import ONE_LAYER, is_wave
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import NULL, Window

_Pass = tuple[str, str, int | None, int]
"""Pipeline, phase, stage and microbatch."""
_WAY = {FORWARD: 1, BACKWARD: -1}
"""Stages to the one that needs a pass's output."""


@dataclass(frozen=True)
class Held:
    """Ranks that hold up a job: in a pass that does not end, or whose data does not move."""

    ranks: tuple[int, ...]
    places: tuple[Place, ...]
    cause: Cause
    group: str | None = None
    """The group whose data does not move."""

    @property
    def words(self) -> str:
        return in_words(self.places)


@dataclass(frozen=True)
class Residual:
    """Everything that holds up a job that is stuck."""

    held: tuple[Held, ...]
    step: int
    since_ns: int
    until_ns: int


@dataclass(frozen=True)
class Left:
    """The work that ranks still have to do in the step in which the job is stuck."""

    step: int
    ahead: Mapping[int, tuple[Place, ...]]
    """By rank; only those that have not finished that step."""
    loading: frozenset[int]
    """Ranks that are still getting their batch."""
    pipeline: Mapping[int, str]
    to_come: frozenset[_Pass]

    def needs_input(self, one: Place) -> bool:
        """Whether what a pass needs has still to be computed, by another stage."""
        if one.stage is None or one.phase not in _WAY:
            return False
        before = one.stage - _WAY[one.phase]
        return (self.pipeline[one.rank], one.phase, before, one.microbatch) in self.to_come

    def has_output_pending(self, rank: int, ready: Mapping[int, Place]) -> bool:
        """Whether a rank that can begin a pass may still be sending to one that holds it up."""
        mine = self.ahead[rank][0]
        return any(self._sends_to(mine, other) for other in ready.values() if other.rank != rank)

    def _sends_to(self, mine: Place, other: Place) -> bool:
        """Whether the other rank, in the next stage, still has passes to come whose input this rank
        has computed, besides the one that it is in."""
        if self.pipeline.get(mine.rank) != self.pipeline.get(other.rank):
            return False
        rest = self.ahead[other.rank][1:]
        return any(self._comes_from(one, mine.stage) for one in rest)

    def _comes_from(self, one: Place, stage: int | None) -> bool:
        """Whether the input of a pass was computed, in this stage."""
        if one.stage is None or stage is None or one.phase not in _WAY:
            return False
        return one.stage - _WAY[one.phase] == stage and not self.needs_input(one)


def stuck_passes(window: Window) -> Residual | None:
    """The passes that hold up the job; None if it is not stuck, or none does."""
    until, since = watched_until_ns(window) or now_ns(window), last_progress_ns(window)
    timing = step_timing(window)
    if until is None or until - since <= allowed_ns("unknown", timing):
        return None
    left = still_to_do(window)
    if left is None:
        return None
    held = tuple(_held(window, left, read_wait_state(window, until, timing), since))
    return Residual(held, left.step, since, until) if held else None


def still_to_do(window: Window) -> Left | None:
    """The residual graph; None if no microbatches were recorded."""
    found = located(window, window.ranks)
    if not found:
        return None
    step, wave = min(one.step for one in found.values()), is_wave(window)
    here = {rank: one for rank, one in found.items() if one.step == step}
    left = {rank: ahead(window, one, wave) for rank, one in here.items()}
    pipeline = {rank: group.id for group in window.job.groups_of_kind("pp") for rank in group.ranks}
    loading = frozenset(rank for rank, one in here.items() if one.work and loads(one.work[0][0]))
    to_come = frozenset((pipeline.get(rank, ""), one.phase, one.stage, one.microbatch)
                        for rank, passes in left.items() for one in passes
                        if rank in pipeline)  # fmt: skip
    return Left(step, left, loading, pipeline, to_come)


def ready_passes(left: Left) -> dict[int, Place]:
    """By rank, the passes that could have begun: the pass before and their input have ended."""
    return {rank: passes[0] for rank, passes in left.ahead.items()
            if passes and not left.needs_input(passes[0])}  # fmt: skip


def _held(window: Window, left: Left, state: WaitState | None, since_ns: int) -> Iterator[Held]:
    ready = ready_passes(left)
    roots = frozenset[int]() if state is None else state.roots
    waiting = frozenset[int]() if state is None else state.waiting - roots
    free = {rank: one for rank, one in ready.items() if rank not in waiting}
    if not free:
        yield from _data_that_does_not_move(window, state)
        return
    if state is None:
        free = {rank: one for rank, one in free.items()
                if not left.has_output_pending(rank, free)} or free  # fmt: skip
    elif roots & free.keys():
        free = {rank: one for rank, one in free.items() if rank in roots}
    liveness = Liveness(window, since_ns)
    for together in _together(window, tuple(free)):
        chosen = with_fewest_calls(window, left.step, together)
        signs = [(rank, liveness.of(rank)) for rank in chosen]
        where = tuple(free[rank] for rank in chosen if rank not in left.loading)
        yield Held(chosen, where, cause_of(window, signs, since_ns))


def _data_that_does_not_move(window: Window, state: WaitState | None) -> Iterator[Held]:
    """If every rank whose pass could begin waits in an operator: the operator that all entered is
    stuck."""
    if state is None or not state.complete:
        return
    stuck = stuck_connection(window, state.waiting)
    first = min(state.complete, key=lambda one: one.since_ns)
    ranks = (stuck.rank,) if stuck is not None else (first.sender,) if first.sender >= 0 else ()
    yield Held(ranks, (), "network", first.group or None)


def _together(window: Window, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """The ranks by pass that they compute together."""
    groups = window.job.groups_of_kind(*ONE_LAYER)
    left, found = set(ranks), list[tuple[int, ...]]()
    for rank in ranks:
        if rank in left:
            whole = linked(groups, frozenset((rank,))) & left
            found.append(tuple(sorted(whole)))
            left -= whole
    return found


def with_fewest_calls(window: Window, step: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """Of the ranks that compute one pass together, those that called the fewest operators in a
    step."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("step") or len(ranks) == 1:
        return tuple(ranks)
    inside = [group.id for group in window.job.groups_of_kind(*ONE_LAYER)]
    kept = (comm.ints("step") == step) & comm.strings("group").equals(*inside)
    if comm.knows("start_ns"):
        kept &= comm.ints("start_ns") != NULL  # what a host called ahead, its device did not reach
    calls = np.array([int(((comm.ints("rank") == rank) & kept).sum()) for rank in ranks])
    return tuple(rank for rank, made in zip(ranks, calls.tolist(), strict=True)
                 if made == calls.min())  # fmt: skip

"""Flight recorder dumps of programs in which one rank leaves out a call, makes one too many or
calls in another order: who did it, in groups of any size and with rings that wrapped.

A program is a list of steps; each rank runs its own copy, and a collective completes once all
members of the group have called it, whatever it was for them. So the tests know the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.finding import Diagnosis

from ..formats.flight_recorder.recorders import MS, Groups, Recorder, a_job, everyone
from .dumps import BACKENDS, GRID, diagnosis_of, the_verdict, without

Call = tuple[str, str]
"""A family of groups, and what is called in the rank's group of that family."""
STEPS: tuple[tuple[Call, ...], ...] = (
    (("tp", "all_reduce"), ("dp", "all_reduce")),
    (("tp", "all_reduce"), ("tp", "all_reduce"), ("dp", "all_reduce")),
    (*[("tp", "all_reduce")] * 3, ("dp", "all_reduce"), ("0", "all_reduce")),
)
"""What one step calls: in some programs all calls look alike, in others they wait for the world."""
KNOWN = 3
"""Steps after which the common order is known."""


def mesh(data: int, tensor: int) -> Groups:
    """Tensor groups of neighbours, and data groups across them."""
    world = range(data * tensor)
    rows = {f"tp{at}": ("tp", tuple(world[at * tensor : (at + 1) * tensor])) for at in range(data)}
    columns = {f"dp{at}": ("dp", tuple(world[at::tensor])) for at in range(tensor)}
    return {**rows, **columns}


@dataclass
class Running:
    """All ranks at once, each in its own program, until nobody gets any further."""

    ranks: list[Recorder]
    programs: Mapping[int, list[Call]]
    sleeps: Mapping[int, int]
    """From which of its calls on a rank makes no more."""

    def run(self) -> frozenset[int]:
        """The ranks that wait in the end."""
        at = dict.fromkeys(self.programs, 0)
        waits: dict[int, tuple[str, int]] = {}
        moved = True
        while moved:
            moved = False
            for rank, program in self.programs.items():
                limit = self.sleeps.get(rank, len(program))
                if rank in waits or at[rank] >= limit:
                    continue
                family, name = program[at[rank]]
                one = self.ranks[rank]
                group = _group_of(one, family)
                one.call(name, group, "scheduled")
                waits[rank] = group, one.seqs[group, False]
                at[rank] += 1
                moved = True
            for place in set(waits.values()):
                moved |= self._complete(place, waits)
        return frozenset(waits)

    def _complete(self, place: tuple[str, int], waits: dict[int, tuple[str, int]]) -> bool:
        members = self.ranks[0].groups[place[0]][1]
        if not all(waits.get(rank) == place for rank in members):
            return False
        for rank in members:
            del waits[rank]
            entry = self.ranks[rank].entries[-1]
            entry["retired"] = True
            if self.ranks[rank].backend != "gloo":
                entry["state"] = "completed"
        return True


@dataclass(frozen=True)
class Story:
    groups: Groups
    step: tuple[Call, ...]
    backend: str
    culprit: int
    fault: str
    at: int
    """The step of the fault."""
    call: int
    """The call within that step."""
    steps: int
    lost: int
    """Steps at the beginning that the rings have lost."""


def play(story: Story) -> tuple[list[Recorder], frozenset[int]]:
    world = 1 + max(rank for _, ranks in story.groups.values() for rank in ranks)
    ranks = a_job(world, story.backend, story.groups)
    programs = {rank: list(story.step) * story.steps for rank in range(world)}
    place = story.at * len(story.step) + story.call
    mine, sleeps = programs[story.culprit], {}
    if story.fault == "skips":
        del mine[place]
    elif story.fault == "once more":
        mine.insert(place, mine[place])
    elif story.fault == "sleeps":
        sleeps[story.culprit] = place
    waiting = Running(ranks, programs, sleeps).run()
    for one in ranks:
        one.first_record = story.lost * len(story.step)
    return ranks, waiting


@st.composite
def stories(draw: st.DrawFn) -> Story:
    data, tensor = draw(st.sampled_from([(2, 2), (4, 2), (2, 4), (3, 3)]))
    lost = draw(st.integers(0, 4))
    steps = lost + draw(st.integers(KNOWN + 1, 12))
    step = draw(st.sampled_from(STEPS))
    return Story(
        mesh(data, tensor), step, draw(st.sampled_from(["nccl", "gloo"])),
        draw(st.integers(0, data * tensor - 1)),
        draw(st.sampled_from(["skips", "once more", "sleeps"])),
        draw(st.integers(lost + KNOWN, steps - 1)), draw(st.integers(0, len(step) - 1)),
        steps, lost,
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(stories())
def test_only_the_rank_that_left_the_common_order_is_named(story: Story) -> None:
    ranks, waiting = play(story)
    assert waiting, "every such fault leaves somebody waiting"
    with TemporaryDirectory() as folder:
        diagnosis = diagnosis_of(Path(folder), ranks)
    assert _named(diagnosis) == [(story.culprit,)]


@BACKENDS
def test_a_pair_is_compared_with_equal_pairs(tmp_path: Path, backend: str) -> None:
    """Rank 2 enters a barrier where ranks 0 and 1 entered what rank 3 does."""
    ranks = a_job(4, backend, GRID)
    for group in GRID:
        everyone(ranks, "all_reduce", group, times=3)
    everyone(ranks[:2], "all_reduce", "tp0")
    ranks[2].call("barrier", "tp1", "scheduled")
    ranks[3].call("all_reduce", "tp1", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks, verdict.group) == ("mismatch", (2,), "tp-tp1")


@BACKENDS
def test_a_pair_of_which_one_makes_a_call_too_many(tmp_path: Path, backend: str) -> None:
    """No other groups tell who is odd, but the other pair is finished, too."""
    pairs: Groups = {"a": ("tp", (0, 1)), "b": ("tp", (2, 3))}
    ranks = a_job(4, backend, pairs)
    for group in pairs:
        everyone(ranks, "all_reduce", group, times=5)
    ranks[2].call("all_reduce", "b", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.cause) == ((2,), "code")
    assert "rank 2 waits alone in AllReduce 6 of tp-b: no rank in an equal place" in verdict.summary


def test_one_rank_calls_the_world_before_its_pair(tmp_path: Path) -> None:
    """Rank 3 waits for it in the pair, it for rank 3 in the world: a circle with one culprit."""
    ranks = a_job(4, groups=GRID)
    for _ in range(5):
        for group in ("tp0", "tp1", "0"):
            everyone(ranks, "all_reduce", group)
    everyone(ranks, "all_reduce", "tp0")
    everyone(without(ranks, 3), "all_reduce", "0", state="scheduled")
    ranks[3].call("all_reduce", "tp1", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("mismatch", "code", (2,))
    assert "before operator 6 of world-0, rank 2 made 0 calls in tp-tp1" in verdict.summary


def test_ranks_with_another_program_are_no_witnesses(tmp_path: Path) -> None:
    """Stage 0 calls its tensor group twice a step, stage 1 once; rank 2 of stage 1 stops."""
    ranks = a_job(4, groups=GRID)
    for _ in range(6):
        everyone(ranks, "all_reduce", "tp0", times=2)
        everyone(ranks, "all_reduce", "tp1")
        for group in ("dp0", "dp1"):
            everyone(ranks, "all_reduce", group)
    ranks[3].call("all_reduce", "tp1", "started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("unknown", (2,))


PIPE: Groups = {"pp": ("PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))}


def _passes(ranks: list[Recorder], times: int) -> None:
    """Forward and backward passes through all stages, then a collective."""
    for _ in range(times):
        for before, after in ((0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)):
            ranks[before].send(after, "pp")
            ranks[after].recv(before, "pp")
        everyone(ranks, "all_reduce")


def test_a_receive_from_a_rank_that_never_was_a_peer(tmp_path: Path) -> None:
    """Stage 2 waits for stage 0; stage 1, which sends to it as ever, is a victim."""
    ranks = a_job(4, groups=PIPE)
    _passes(ranks, 4)
    ranks[0].send(1, "pp")
    ranks[1].recv(0, "pp")
    ranks[1].send(2, "pp", state="started")
    ranks[2].recv(0, "pp", state="started")
    ranks[3].recv(2, "pp", state="scheduled")
    ranks[0].recv(1, "pp", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks, verdict.victims) == (
        "hang",
        "code",
        (2,),
        3,
    )
    assert "Recv from rank 0 of pp-pp, with which it never exchanged a message before" in (
        verdict.summary)  # fmt: skip


def _send_left_out(ranks: list[Recorder]) -> None:
    """Stage 1 goes on to its receive from stage 2, which waits for its send."""
    ranks[0].send(1, "pp")
    ranks[1].recv(0, "pp")
    ranks[1].recv(2, "pp", state="scheduled")
    ranks[2].recv(1, "pp", state="scheduled")
    ranks[2].send(3, "pp", state="scheduled")
    ranks[3].recv(2, "pp", state="scheduled")
    ranks[0].recv(1, "pp", state="scheduled")


def test_a_send_that_was_left_out_shows_in_the_own_steps_of_its_rank(tmp_path: Path) -> None:
    """No other rank has the same program. All wait for one another."""
    ranks = a_job(4, groups=PIPE)
    _passes(ranks, 4)
    _send_left_out(ranks)
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks, verdict.victims) == ("code", (1,), 3)
    assert ("it called Recv from rank 2 of pp-pp where it had called Send to rank 2 of pp-pp "
            "before") in verdict.summary  # fmt: skip


def test_steps_that_several_ranks_changed_accuse_nobody(tmp_path: Path) -> None:
    """A new exchange has two ends, and both differ from their steps before."""
    ranks = a_job(4, groups=PIPE)
    _passes(ranks, 4)
    ranks[0].send(3, "pp")
    ranks[3].recv(0, "pp")
    _send_left_out(ranks)
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("code", ())


def test_one_step_is_no_order(tmp_path: Path) -> None:
    ranks = a_job(4, groups=PIPE)
    _passes(ranks, 1)
    _send_left_out(ranks)
    assert the_verdict(tmp_path, ranks).ranks == ()


def test_in_the_first_step_every_peer_is_new(tmp_path: Path) -> None:
    ranks = a_job(4, groups=PIPE)
    for before, after in ((0, 1), (1, 2)):
        ranks[before].send(after, "pp")
        ranks[after].recv(before, "pp")
    ranks[3].recv(2, "pp", state="started")
    assert the_verdict(tmp_path, ranks).ranks == (2,)


def _unrecorded_pipelines(culprit: int) -> list[Recorder]:
    """Two replicas of two stages of two tensor ranks over gloo, which records no sends.

    The culprit stops, so its tensor partner waits for it, its pipeline's other stage for a message
    and the other replica for all of these.
    """
    groups = mesh(4, 2) | {f"dp{at}": ("dp", (at, at + 4)) for at in range(4)}
    ranks = a_job(8, "gloo", groups)
    for _ in range(4):
        for one in ranks:
            one.call("all_reduce", f"tp{one.rank // 2}")
            one.call("all_reduce", f"dp{one.rank % 4}")
    ranks[culprit ^ 1].call("all_reduce", f"tp{culprit // 2}", "scheduled")
    other = [one for one in ranks if one.rank // 4 != culprit // 4]
    for one in other:
        one.call("all_reduce", f"tp{one.rank // 2}")
        one.call("all_reduce", f"dp{one.rank % 4}", "scheduled")
    return ranks


@pytest.mark.parametrize("culprit", range(8))
def test_a_group_that_is_absent_as_a_whole_is_a_victim(tmp_path: Path, culprit: int) -> None:
    verdict = the_verdict(tmp_path, _unrecorded_pipelines(culprit))
    assert (verdict.ranks, verdict.victims) == ((culprit,), 5)


def test_absent_ranks_that_may_wait_for_unrecorded_sends_are_suspects(tmp_path: Path) -> None:
    """Nothing tells them apart, and gaps in gloo's own count show that there were sends."""
    ranks = a_job(4, "gloo")
    for _ in range(5):
        everyone(ranks, "all_reduce")
        for one in ranks:
            one.called["0"] += 2  # a send and a receive
    everyone(ranks[:2], "all_reduce", state="scheduled")
    diagnosis = diagnosis_of(tmp_path, ranks)
    (verdict,) = diagnosis.verdicts
    assert (verdict.ranks, verdict.confidence) == ((2, 3), 0.45)


def test_a_stage_that_sleeps_accuses_no_rank_that_reached_the_collective(tmp_path: Path) -> None:
    """Stage 2 of four sleeps: stage 0 has sent all it had and waits alone in the all-reduce."""
    ranks = a_job(4, "gloo")
    for _ in range(6):
        for one in ranks:
            one.called["0"] = one.called.get("0", 0) + (3 if one.rank in (0, 3) else 6)
        everyone(ranks, "all_reduce")
    ranks[0].called["0"] += 3
    everyone(ranks[:1], "all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.confidence) == ((1, 2, 3), 0.45)
    assert "each of them may itself wait for another rank" in verdict.summary


def test_a_rank_that_waits_in_an_unrecorded_receive_is_a_suspect(tmp_path: Path) -> None:
    """Rank 0 leaves out a send and goes on; rank 1 waits for it, and nothing shows that."""
    ranks = a_job(3, "gloo")
    for _ in range(7):
        everyone(ranks, "all_reduce")
        for one in ranks[:2]:
            one.called["0"] += 1
    ranks[0].called["0"] -= 1
    everyone([ranks[0], ranks[2]], "all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.confidence) == ((1,), 0.45)
    assert "it may itself wait for another rank" in verdict.summary
    lost = the_verdict(tmp_path / "lost", without(ranks, 1))
    assert (lost.ranks, lost.confidence) == ((1,), 0.45)


def _quiet(calls: int, sends: int, *, counts: bool = True) -> list[Recorder]:
    """All collectives completed over gloo, with so many unrecorded sends after each."""
    ranks = a_job(3, "gloo")
    for _ in range(calls):
        everyone(ranks, "barrier")
        for one in ranks:
            one.called["0"] += sends
    for entry in (entry for one in ranks for entry in one.entries if not counts):
        del entry["op_id"]
    return ranks


@pytest.mark.parametrize(
    "ranks",
    [_quiet(1, 0), _quiet(20, 2), _quiet(20, 0, counts=False)],
    ids=["a barrier and nothing else", "sends between barriers", "nobody counted"],
)
def test_dumps_without_sends_cannot_tell_that_nothing_hangs(
    tmp_path: Path, ranks: list[Recorder]
) -> None:
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert (diagnosis.outcome, diagnosis.verdicts) == ("unknown", ())
    assert "gloo records no sends and receives" in diagnosis.unaccounted
    assert diagnosis_of(tmp_path / "moments after", ranks, age_ns=2 * MS).outcome == "healthy"


def test_collectives_with_nothing_between_show_that_there_are_no_sends(tmp_path: Path) -> None:
    assert diagnosis_of(tmp_path, _quiet(20, 0)).outcome == "healthy"


def test_a_ring_that_covers_the_wait_shows_that_a_rank_is_absent(tmp_path: Path) -> None:
    """Its last calls are in another group; older ones, in the group where others wait, are lost."""
    ranks = a_job(4, groups=GRID)
    for group in ("dp0", "dp1", "tp0", "tp1"):
        everyone(ranks, "all_reduce", group, times=3)
    everyone(ranks, "all_reduce", "tp1", times=40)
    everyone(ranks, "all_reduce", "dp1")
    ranks[0].call("all_reduce", "dp0", "scheduled")
    ranks[0].entries[-1]["time_created_ns"] += 60_000 * MS
    ranks[2].first_record = 10
    assert the_verdict(tmp_path, ranks).ranks == (2,)


def _named(diagnosis: Diagnosis) -> list[tuple[int, ...]]:
    return [verdict.ranks for verdict in diagnosis.verdicts]


def _group_of(one: Recorder, family: str) -> str:
    named = (name for name in one.groups if name.startswith(family))
    return next(name for name in named if one.rank in one.groups[name][1])

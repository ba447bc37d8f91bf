"""What flight recorder dumps tell of a job that stands still, or does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.runner import diagnose
from stepscope.report.html import render_html
from stepscope.report.json import to_json
from stepscope.report.text import render_text

from ..formats.flight_recorder.recorders import (
    HOUR,
    MS,
    Groups,
    Recorder,
    a_job,
    everyone,
    window_of,
)

BACKENDS = pytest.mark.parametrize("backend", ["nccl", "gloo"])


def diagnosis_of(folder: Path, ranks: list[Recorder], age_ns: int = HOUR) -> Diagnosis:
    return diagnose(window_of(folder, ranks, age_ns))


def the_verdict(folder: Path, ranks: list[Recorder], age_ns: int = HOUR) -> Verdict:
    diagnosis = diagnosis_of(folder, ranks, age_ns)
    (verdict,) = diagnosis.verdicts
    assert diagnosis.state == "hang"
    return verdict


def without(ranks: list[Recorder], *gone: int) -> list[Recorder]:
    return [one for one in ranks if one.rank not in gone]


@BACKENDS
def test_a_finished_job_is_healthy(tmp_path: Path, backend: str) -> None:
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=20)
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert (diagnosis.state, diagnosis.verdicts, diagnosis.ranks) == ("healthy", (), 4)


@BACKENDS
def test_the_rank_that_never_came_is_named_with_its_last_frames(
    tmp_path: Path, backend: str
) -> None:
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("hang", "unknown", (2,))
    assert (verdict.victims, verdict.group, verdict.confidence) == (3, "world-0", 0.9)
    assert verdict.summary == (
        "rank 2 hangs: 3 ranks wait in AllReduce 6 of world-0 for rank 2, which never entered it; "
        "last seen in before_all_reduce (train.py:5)"
    )
    assert verdict.stack[0] == "<module> (/job/train.py:99)"
    assert verdict.stack[-1].startswith("all_reduce (")


def test_a_rank_that_never_called_anything(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(without(ranks, 1), "all_reduce", state="scheduled")
    assert the_verdict(tmp_path, ranks).ranks == (1,)


def test_reports_say_it(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 2), "all_reduce", state="started")
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert "never entered it; last seen in" in render_text(diagnosis)
    assert "before_all_reduce" in render_html(diagnosis)
    assert to_json(diagnosis)["verdicts"][0]["ranks"] == [2]


@BACKENDS
@pytest.mark.parametrize(
    ("odd", "what"),
    [
        pytest.param({"name": "all_gather", "out": (4, 4)}, "operator", id="operator"),
        pytest.param({"name": "all_reduce", "size": (5,)}, "size", id="size"),
        pytest.param({"name": "all_reduce", "dtype": "Half"}, "dtype", id="type"),
    ],
)
def test_the_rank_that_called_something_else(
    tmp_path: Path, backend: str, odd: dict[str, object], what: str
) -> None:
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 3), "all_reduce", state="scheduled")
    ranks[3].call(state="scheduled", **odd)  # type: ignore[arg-type]
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("mismatch", "code", (3,))
    assert f"members of world-0 disagree at operator 6 in {what}: rank 3" in verdict.summary
    assert verdict.victims == 3
    assert verdict.stack


def test_a_mismatch_that_everyone_survived_is_no_hang(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 3), "all_reduce")
    ranks[3].call("broadcast")
    everyone(ranks, "all_reduce", times=5)
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert [verdict.kind for verdict in diagnosis.verdicts] == ["mismatch"]
    assert diagnosis.state == "healthy"


def test_a_rank_that_left_one_call_out_disagrees_from_there_on(tmp_path: Path) -> None:
    ranks = a_job(4)
    for step in range(5):
        for bucket in (100, 70, 30):
            late = step == 4 and bucket == 70
            everyone(without(ranks, 1) if late else ranks, "all_reduce", size=(bucket,),
                     state="scheduled" if step == 4 and bucket != 100 else "completed")  # fmt: skip
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks) == ("mismatch", (1,))
    assert "rank 1 all_reduce [30] Float; ranks 0, 2 and 3 all_reduce [70] Float" in verdict.summary


@pytest.mark.parametrize(
    ("call", "sizes", "outs"),
    [
        ("all_to_all", [(2,), (6,), (4,), (4,)], [(6,), (2,), (4,), (4,)]),
        ("all_gather", [(2,), (6,), (4,), (4,)], [(16,)] * 4),
        ("_reduce_scatter_base", [(16,)] * 4, [(4,)] * 4),
        ("scatter", [(4, 4), (), (), ()], [(4,)] * 4),
        ("gather", [(4,)] * 4, [(4, 4), (), (), ()]),
        ("all_reduce", [(2, 8), (16,), (4, 4), (16,)], [(16,)] * 4),
        ("barrier", [(1,), (2,), (1,), (1,)], [(1,)] * 4),
    ],
)
def test_sizes_that_may_differ(
    tmp_path: Path, call: str, sizes: list[tuple[int, ...]], outs: list[tuple[int, ...]]
) -> None:
    ranks = a_job(4)
    for one, size, out in zip(ranks, sizes, outs, strict=True):
        one.call(call, size=size, out=out)
        for side, shape in (("input", size), ("output", out)):
            if not shape:
                one.entries[-1][f"{side}_sizes"] = one.entries[-1][f"{side}_dtypes"] = []
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_an_all_to_all_that_does_not_add_up_has_no_single_culprit(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=3)
    for one in ranks:
        one.call("all_to_all", size=(4,), out=(5 if one.rank == 2 else 4,), state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks) == ("mismatch", ())


def test_names_of_one_operator_are_no_mismatch(tmp_path: Path) -> None:
    ranks = a_job(2)
    ranks[0].call("all_gather", size=(4,), out=(2, 4))
    ranks[1].call("_all_gather_base", size=(4,), out=(8,))
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


GRID: Groups = {
    "tp0": ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1)),
    "tp1": ("TENSOR_MODEL_PARALLEL_GROUP", (2, 3)),
    "dp0": ("DATA_PARALLEL_GROUP", (0, 2)),
    "dp1": ("DATA_PARALLEL_GROUP", (1, 3)),
}


def test_waiting_is_followed_from_group_to_group(tmp_path: Path) -> None:
    """3 never comes to tp1: 2 waits there, 0 for 2 in dp0, 1 for 0 in tp0."""
    ranks = a_job(4, groups=GRID)
    for group in GRID:
        everyone(ranks, "all_reduce", group, times=3)
    ranks[2].call("all_reduce", "tp1", "started")
    ranks[0].call("all_reduce", "dp0", "started")
    ranks[1].call("all_reduce", "tp0", "started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.group, verdict.victims) == ((3,), "tp-tp1", 3)


def test_gloo_dumps_do_not_say_who_is_in_a_group(tmp_path: Path) -> None:
    ranks = a_job(4, "gloo", GRID)
    for group in GRID:
        everyone(ranks, "all_reduce", group, times=3)
    ranks[2].call("all_reduce", "tp1", "scheduled")
    ranks[0].call("all_reduce", "dp0", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.victims) == ((3,), 2)


PIPE: Groups = {"pp": ("PIPELINE_MODEL_PARALLEL_GROUP", (1, 3, 5, 7))}


def test_a_receive_that_nobody_answers(tmp_path: Path) -> None:
    """The pipeline waits from back to front for rank 1, the first stage."""
    ranks = a_job(8, groups=PIPE)
    for before, after in ((1, 3), (3, 5), (5, 7)):
        ranks[before].send(after, "pp")
        ranks[after].recv(before, "pp")
        ranks[after].recv(before, "pp", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.victims, verdict.group) == ((1,), 3, "pp-pp")
    assert "Recv from rank 1 of pp-pp for rank 1, which never posted the Send" in verdict.summary


def test_a_batch_of_sends_is_as_far_as_its_last_entry_says(tmp_path: Path) -> None:
    """The members of a batch stay `scheduled` for ever; only the entry `coalesced` learns."""
    ranks = a_job(2, groups={"pp": ("pp", (0, 1))})
    for _ in range(3):
        for one, peer in ((ranks[0], 1), (ranks[1], 0)):
            one.send(peer, "pp", state="scheduled")
            one.recv(peer, "pp", state="scheduled", same_seq=True)
            one.call("coalesced", "pp", p2p=True, same_seq=True)
    assert diagnosis_of(tmp_path / "healthy", ranks).verdicts == ()
    ranks[0].recv(1, "pp", state="scheduled")
    ranks[0].call("coalesced", "pp", "started", p2p=True, same_seq=True)
    assert the_verdict(tmp_path / "stuck", ranks).ranks == (1,)


def test_a_send_and_its_receive_of_another_size(tmp_path: Path) -> None:
    ranks = a_job(2, groups={"pp": ("pp", (0, 1))})
    ranks[0].send(1, "pp", size=(8,), state="scheduled")
    ranks[1].recv(0, "pp", size=(9,), state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks) == ("mismatch", ())


def test_coalesced_collectives_are_one(tmp_path: Path) -> None:
    ranks = a_job(4)
    for one in ranks:
        for _ in range(2):
            one.call("all_gather", size=(4,), out=(16,), state="scheduled")
            one.call("all_gather", size=(2,), out=(8,), state="scheduled", same_seq=True)
            one.call("coalesced", same_seq=True)
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_everyone_entered_and_nobody_left_is_the_network(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks, verdict.victims) == (
        "hang", "network", (), 4)  # fmt: skip
    assert "all 4 ranks entered AllReduce 6 of world-0 and nobody left" in verdict.summary


def test_some_left_is_the_network_too(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks[:2], "all_reduce")
    everyone(ranks[2:], "all_reduce", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert "2 of 4 ranks left AllReduce 6" in verdict.summary


def test_a_device_that_never_begins_what_others_began(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 1), "all_reduce", state="started")
    ranks[1].call("all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks, verdict.victims) == ("compute", (1,), 3)


def test_gloo_where_all_entered_is_not_enough(tmp_path: Path) -> None:
    """A live job looks the same, and gloo's states do not tell."""
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="scheduled")
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_a_rank_without_a_dump_that_all_wait_for(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="started")
    verdict = the_verdict(tmp_path, without(ranks, 3))
    assert (verdict.ranks, verdict.cause, verdict.victims) == ((3,), "unknown", 3)
    assert verdict.confidence == 0.5
    assert "there is no dump of rank 3" in verdict.summary
    assert verdict.advice.startswith("fetch the dumps of rank 3, or see")


def test_a_rank_without_a_dump_is_no_culprit_where_another_explains_it(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 1), "all_reduce", state="started")
    verdict = the_verdict(tmp_path, without(ranks, 3))
    assert (verdict.ranks, verdict.victims) == ((1,), 2)


def test_a_lost_dump_of_a_healthy_job_accuses_nobody(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    assert diagnosis_of(tmp_path, without(ranks, 3)).verdicts == ()


def test_one_dump_of_many_tells_little(tmp_path: Path) -> None:
    ranks = a_job(8)
    everyone(ranks, "all_reduce", state="started")
    verdict = the_verdict(tmp_path, ranks[:1])
    assert (verdict.ranks, verdict.cause) == ((), "unknown")
    assert "only 1 of 8 ranks have a dump" in verdict.summary


def test_gathered_sizes_tell_of_a_last_rank_without_a_dump(tmp_path: Path) -> None:
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_gather", out=(4, 4))
    everyone(ranks, "all_reduce", state="scheduled")
    assert the_verdict(tmp_path, without(ranks, 3)).ranks == (3,)


@BACKENDS
def test_rings_that_lost_their_oldest_entries(tmp_path: Path, backend: str) -> None:
    ranks = a_job(4, backend)
    ranks[1].call("barrier")
    everyone(without(ranks, 1), "barrier")
    everyone(ranks, "all_reduce", times=50)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    for one, lost in zip(ranks, (40, 20, 45, 3), strict=True):
        one.first_record = lost
    assert the_verdict(tmp_path, ranks).ranks == (2,)


def test_a_group_that_a_wrapped_ring_forgot_accuses_nobody(tmp_path: Path) -> None:
    ranks = a_job(4, groups=GRID)
    everyone(ranks, "barrier")
    for one in ranks:
        one.call("all_reduce", "tp0" if one.rank < 2 else "tp1")
    everyone(ranks, "all_reduce", "dp0", times=30)
    for one in (ranks[0], ranks[2]):
        one.first_record = 5
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_a_wrapped_ring_of_sends(tmp_path: Path) -> None:
    ranks = a_job(2, groups={"pp": ("pp", (0, 1))})
    for _ in range(20):
        ranks[0].send(1, "pp")
        ranks[1].recv(0, "pp")
    ranks[1].recv(0, "pp", state="started")
    ranks[0].first_record, ranks[1].first_record = 3, 8
    assert the_verdict(tmp_path, ranks).ranks == (0,)


def test_ranks_that_ran_ahead_are_no_mismatch(tmp_path: Path) -> None:
    """NCCL: the host enqueues what the device will do later. Rank 1 is behind, and only that."""
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    for one in without(ranks, 1):
        for size in range(1, one.rank + 3):
            one.call("all_reduce", size=(size,), state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks) == ("hang", (1,))
    assert "AllReduce 6" in verdict.summary


@BACKENDS
def test_dumps_of_a_live_job_are_no_hang(tmp_path: Path, backend: str) -> None:
    """Written a moment after the last call, by a rank that is a call behind at that moment."""
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=20)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    assert diagnosis_of(tmp_path, ranks, age_ns=200 * MS).verdicts == ()
    assert the_verdict(tmp_path, ranks, age_ns=1500 * MS).confidence == 0.6
    verdict = the_verdict(tmp_path, ranks, age_ns=15_000 * MS)
    assert verdict.confidence == 0.9
    assert verdict.time_ns is not None
    assert verdict.time_ns[1] - verdict.time_ns[0] == pytest.approx(15_000 * MS, rel=0.01)


def test_a_job_that_paused_as_long_before_is_given_longer(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=20)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    for one in ranks:
        for entry in one.entries[15:]:
            entry["time_created_ns"] += 20_000 * MS  # it saved a checkpoint
    assert diagnosis_of(tmp_path, ranks, age_ns=25_000 * MS).verdicts == ()
    assert the_verdict(tmp_path, ranks, age_ns=31_000 * MS).ranks == (2,)


@BACKENDS
def test_a_dump_that_is_older_than_the_others_accuses_nobody(tmp_path: Path, backend: str) -> None:
    """The others completed operators that need rank 2: so it came to them after its dump."""
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=20)
    everyone(without(ranks, 2), "all_reduce", times=3)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_gloo_operators_that_failed_are_retired_too(tmp_path: Path) -> None:
    """Rank 2 left; the others got an error from their last operator and dumped then."""
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 2), "all_reduce")
    verdict = the_verdict(tmp_path, ranks, age_ns=10 * MS)
    assert (verdict.ranks, verdict.confidence) == ((2,), 0.6)


def test_recorders_that_tell_nothing_but_the_order(tmp_path: Path) -> None:
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_reduce", times=5, state="scheduled")
    assert diagnosis_of(tmp_path / "healthy", ranks).verdicts == ()
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    assert the_verdict(tmp_path / "stuck", ranks).ranks == (2,)


def test_one_rank_alone_in_what_nobody_else_called(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    ranks[0].call("barrier", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.cause) == ((0,), "code")
    assert "rank 0 is alone in Barrier 6 of world-0" in verdict.summary


def test_two_groups_in_another_order(tmp_path: Path) -> None:
    both: Groups = {"a": ("data", (0, 1, 2, 3)), "b": ("model", (0, 1, 2, 3))}
    ranks = a_job(4, groups=both)
    for group in both:
        everyone(ranks, "all_reduce", group, times=2)
    everyone(without(ranks, 3), "all_reduce", "a", state="scheduled")
    ranks[3].call("all_reduce", "b", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("mismatch", "code", (3,))
    assert "in the other order" in verdict.summary


def test_receives_in_a_circle(tmp_path: Path) -> None:
    ranks = a_job(3, groups={"pp": ("pp", (0, 1, 2))})
    for one in ranks:
        one.recv((one.rank + 1) % 3, "pp", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("hang", "code", ())


def test_renumbering_ranks_only_renumbers_the_verdict(tmp_path: Path) -> None:
    for culprit in range(4):
        ranks = a_job(4)
        everyone(ranks, "all_reduce", times=5)
        everyone(without(ranks, culprit), "all_reduce", state="started")
        verdict = the_verdict(tmp_path / str(culprit), ranks)
        assert (verdict.ranks, verdict.victims) == ((culprit,), 3)


@dataclass(frozen=True)
class Story:
    """A program of collectives that one rank stops in; who waits for whom is played, not known."""

    groups: Groups
    program: tuple[str, ...]
    """The group of each operator, in the order in which every member calls them."""
    culprit: int
    stops_at: int
    backend: str
    lost: tuple[int, ...]
    """How many of its oldest entries each ring lost."""


@st.composite
def stories(draw: st.DrawFn) -> Story:
    size = draw(st.integers(2, 6))
    members = st.sets(st.integers(0, size - 1), min_size=2)
    listed = draw(st.lists(members, min_size=1, max_size=4))
    groups: Groups = {f"g{at}": ("dp", tuple(sorted(one))) for at, one in enumerate(listed)}
    names = sorted(groups)
    drawn = draw(st.lists(st.sampled_from(names), min_size=3, max_size=25))
    program = (*names, *names, *drawn)  # every dump speaks of each of its rank's groups
    stops_at = draw(st.integers(2 * len(names), len(program)))
    return Story(
        groups, program, draw(st.integers(0, size - 1)), stops_at,
        draw(st.sampled_from(["nccl", "gloo"])),
        tuple(draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))),
    )  # fmt: skip


def play(story: Story) -> tuple[list[Recorder], set[int]]:
    """The recorders when nothing moves any more, and the ranks that wait."""
    ranks = a_job(len(story.lost), story.backend, story.groups)
    stuck: set[int] = set()
    for at, group in enumerate(story.program):
        members = set(story.groups[group][1])
        if story.culprit in members and at >= story.stops_at:
            stuck_here = members - stuck - {story.culprit}
            state = "scheduled"
        else:
            stuck_here = members - stuck if members & stuck else set()
            state = "scheduled" if members & stuck else "completed"
        for rank in sorted(members - stuck):
            if rank != story.culprit or at < story.stops_at:
                ranks[rank].call("all_reduce", group, state)
        stuck |= stuck_here - ({story.culprit} if at >= story.stops_at else set())
    for one, lost in zip(ranks, story.lost, strict=True):
        mine = sum(one.rank in members for _, members in story.groups.values())
        one.first_record = min(lost, mine)  # every group was used twice before
    return ranks, stuck


@settings(max_examples=150, deadline=None)
@given(stories())
def test_whoever_stops_is_named_and_nobody_else(story: Story) -> None:
    ranks, stuck = play(story)
    with TemporaryDirectory() as folder:
        diagnosis = diagnosis_of(Path(folder), ranks)
    named = [verdict.ranks for verdict in diagnosis.verdicts]
    assert named == ([(story.culprit,)] if stuck else [])
    assert not stuck or diagnosis.verdicts[0].victims == len(stuck)


@settings(max_examples=100, deadline=None)
@given(stories(), st.data())
def test_a_lost_dump_never_lets_a_victim_be_named(story: Story, data: st.DataObject) -> None:
    """The culprit, or the rank without a dump if it may be the reason for all that is seen."""
    ranks, _ = play(story)
    lost = data.draw(st.sampled_from(range(len(ranks))))
    with TemporaryDirectory() as folder:
        diagnosis = diagnosis_of(Path(folder), without(ranks, lost))
    for verdict in diagnosis.verdicts:
        assert set(verdict.ranks) <= {story.culprit, lost}
        assert lost not in verdict.ranks or verdict.cause == "unknown"

"""Flight recorder dumps of which some are lost, truncated, or too old."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..formats.flight_recorder.recorders import (
    HOUR,
    MS,
    Groups,
    Recorder,
    a_job,
    everyone,
)
from .dumps import BACKENDS, GRID, diagnosis_of, the_verdict, without


def test_a_rank_without_a_dump_that_all_wait_for(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="started")
    verdict = the_verdict(tmp_path, without(ranks, 3))
    assert (verdict.ranks, verdict.cause, verdict.victims) == ((3,), "unknown", 3)
    assert verdict.confidence == 0.5
    assert "there is no dump of rank 3" in verdict.summary
    assert verdict.advice.startswith("fetch the dumps of rank 3, or check")


def test_a_rank_without_a_dump_is_no_culprit_if_another_explains_the_hang(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 1), "all_reduce", state="started")
    verdict = the_verdict(tmp_path, without(ranks, 3))
    assert (verdict.ranks, verdict.victims) == ((1,), 2)


def test_the_ranks_of_a_host_without_dumps_count_as_one(tmp_path: Path) -> None:
    ranks = a_job(16)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="started")
    host = the_verdict(tmp_path / "host", without(ranks, 8, 9, 10, 11))
    assert (host.ranks, host.confidence) == ((8, 9, 10, 11), 0.5)
    diagnosis = diagnosis_of(tmp_path / "scattered", without(ranks, 3, 9))
    assert [(one.ranks, one.confidence) for one in diagnosis.verdicts] == [((3, 9), 0.4)]


def test_a_lost_dump_of_a_healthy_job_blames_no_rank(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    assert diagnosis_of(tmp_path, without(ranks, 3)).verdicts == ()


def test_a_few_dumps_in_which_nothing_is_open_are_not_healthy(tmp_path: Path) -> None:
    """The culprit alone was dumped: it has ended all that it called, and the others wait for it."""
    ranks = a_job(8)
    everyone(ranks, "all_reduce", times=5)
    diagnosis = diagnosis_of(tmp_path, ranks[:2])
    assert (diagnosis.outcome, diagnosis.verdicts) == ("unknown", ())
    assert "only 2 of 8 ranks have a dump" in diagnosis.unaccounted


def test_a_single_dump_of_many_ranks_names_no_rank(tmp_path: Path) -> None:
    ranks = a_job(8)
    everyone(ranks, "all_reduce", state="started")
    verdict = the_verdict(tmp_path, ranks[:1])
    assert (verdict.ranks, verdict.cause) == ((), "unknown")
    assert "only 1 of 8 ranks have a dump" in verdict.summary


def test_gathered_sizes_show_that_a_last_rank_has_no_dump(tmp_path: Path) -> None:
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


def test_a_group_lost_by_a_wrapped_ring_blames_no_rank(tmp_path: Path) -> None:
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


@BACKENDS
def test_a_dump_that_is_older_than_the_others_blames_no_rank(tmp_path: Path, backend: str) -> None:
    """The others completed operators that need rank 2, so it entered them after its dump."""
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=20)
    everyone(without(ranks, 2), "all_reduce", times=3)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_an_older_dump_in_which_operators_are_open_that_others_saw_end(tmp_path: Path) -> None:
    """The device of rank 2 has not begun what the others have long completed and gone beyond."""
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=20)
    everyone(ranks[2:3], "all_reduce", times=3, state="scheduled")
    everyone(without(ranks, 2), "all_reduce", times=3)
    assert diagnosis_of(tmp_path, ranks).verdicts == ()
    everyone(without(ranks, 2), "all_reduce", state="started")
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_what_a_dump_lacks_and_others_ended_shows_that_the_job_went_on(tmp_path: Path) -> None:
    """Rank 2 was dumped a moment before the others, so their waits began while it was dumped; a
    dump that was left from a minute earlier shows nothing of them."""

    def dumped(earlier_ms: int) -> list[Recorder]:
        ranks = a_job(4, groups=GRID)
        everyone(ranks, "all_reduce", times=20)
        for entry in ranks[2].entries:
            entry["time_created_ns"] -= earlier_ms * MS
        everyone(without(ranks, 2), "all_reduce", times=3)
        ranks[0].call("all_reduce", "tp0", state="started")
        return ranks

    assert diagnosis_of(tmp_path / "moment", dumped(3)).verdicts == ()
    assert the_verdict(tmp_path / "left", dumped(60_000)).ranks == (1,)


def test_several_ranks_do_not_stop_at_one_moment_unless_their_peers_wait_for_long(
    tmp_path: Path,
) -> None:
    """In a job that trains some ranks compute at any moment. Of copied files nobody knows when the
    dumps were taken."""
    groups: Groups = {f"tp{at}": ("TENSOR_MODEL_PARALLEL_GROUP", (2 * at, 2 * at + 1))
                      for at in range(4)}  # fmt: skip
    ranks = a_job(8, groups=groups)
    everyone(ranks, "all_reduce", times=20)
    for rank, group in ((0, "tp0"), (5, "tp2")):
        ranks[rank].call("all_reduce", group, state="started")
    assert not the_verdict(tmp_path / "waited", ranks, HOUR // 2).is_suspect
    copied = the_verdict(tmp_path / "copied", ranks, 24 * HOUR)
    assert copied.ranks == (1, 4) and copied.is_suspect


@dataclass(frozen=True)
class Story:
    """A program of collectives in which one rank stops; the test simulates who waits for whom."""

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
    """The recorders when no rank makes progress any more, and the ranks that wait."""
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


def is_regular(story: Story) -> bool:
    """Whether groups of the same kind and size are called equally often, as in real programs.

    Of two members of a pair, the one that made more calls than all equal groups is the odd one.
    """
    calls: dict[tuple[str, int], set[int]] = {}
    for name, (kind, members) in story.groups.items():
        calls.setdefault((kind, len(members)), set()).add(story.program.count(name))
    return all(len(counts) == 1 for counts in calls.values())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(stories())
def test_only_the_rank_that_stops_is_named(story: Story) -> None:
    assume(is_regular(story))
    ranks, stuck = play(story)
    with TemporaryDirectory() as folder:
        diagnosis = diagnosis_of(Path(folder), ranks)
    named = [verdict.ranks for verdict in diagnosis.verdicts]
    assert named == ([(story.culprit,)] if stuck else [])
    assert not stuck or diagnosis.verdicts[0].victims == len(stuck)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(stories(), st.data())
def test_a_lost_dump_never_makes_a_victim_a_culprit(story: Story, data: st.DataObject) -> None:
    """The culprit, or the rank without a dump if it could explain the whole hang."""
    assume(is_regular(story))
    ranks, _ = play(story)
    lost = data.draw(st.sampled_from(range(len(ranks))))
    with TemporaryDirectory() as folder:
        diagnosis = diagnosis_of(Path(folder), without(ranks, lost))
    for verdict in diagnosis.verdicts:
        assert set(verdict.ranks) <= {story.culprit, lost}
        assert lost not in verdict.ranks or verdict.cause == "unknown"


def test_ranks_whose_step_is_one_call_do_not_show_that_others_keep_their_order() -> None:
    """Rank 0 calls twice what it mostly calls once; ranks 1 and 2 call nothing else at all."""
    groups = {"g0": ("dp", (0, 3)), "g1": ("dp", (0, 1, 2, 3, 4))}
    program = ("g0", "g1", "g0", "g1", "g0", "g0", "g1")
    story = Story(groups, program, culprit=4, stops_at=4, backend="gloo", lost=(0, 0, 0, 2, 0))
    ranks, _ = play(story)
    with TemporaryDirectory() as folder:
        diagnosis = diagnosis_of(Path(folder), without(ranks, 4))
    assert all(set(one.ranks) <= {4} for one in diagnosis.verdicts)

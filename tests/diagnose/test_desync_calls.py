"""Mismatched calls of the members of one operator, from flight recorder dumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..formats.flight_recorder.recorders import (
    Groups,
    Recorder,
    a_job,
    everyone,
)
from .dumps import BACKENDS, diagnosis_of, the_verdict, without


@BACKENDS
@pytest.mark.parametrize(
    ("odd", "what"),
    [
        pytest.param({"name": "all_gather", "out": (4, 4)}, "operator", id="operator"),
        pytest.param({"name": "all_reduce", "size": (5,)}, "size", id="size"),
        pytest.param({"name": "all_reduce", "dtype": "Half"}, "dtype", id="type"),
    ],
)
def test_the_rank_that_made_a_different_call(
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


def test_a_mismatch_that_all_ranks_completed_is_no_hang(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 3), "all_reduce")
    ranks[3].call("broadcast")
    everyone(ranks, "all_reduce", times=5)
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert [verdict.kind for verdict in diagnosis.verdicts] == ["mismatch"]
    assert diagnosis.state == "healthy"


def _rank_1_skips_a_call(ranks: list[Recorder]) -> None:
    """Five steps of three buckets; in the last one rank 1 leaves out the second."""
    for step in range(5):
        for bucket in (100, 70, 30):
            late = step == 4 and bucket == 70
            everyone(without(ranks, 1) if late else ranks, "all_reduce", size=(bucket,),
                     state="scheduled" if step == 4 and bucket != 100 else "completed")  # fmt: skip


def test_a_rank_that_skipped_a_call_disagrees_from_there_on(tmp_path: Path) -> None:
    ranks = a_job(4)
    _rank_1_skips_a_call(ranks)
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


@pytest.mark.parametrize(("before", "named"), [(5, (2,)), (2, ())])
def test_all_to_alls_that_were_always_even_are_so_by_design(
    tmp_path: Path, before: int, named: tuple[int, ...]
) -> None:
    """Rank 2 left one out, so it is in one of the next layer: as much goes in as comes out."""
    ranks = a_job(4)
    everyone(ranks, "all_to_all", times=before)
    for one in ranks:
        size = (6 if one.rank == 2 else 4,)
        one.call("all_to_all", size=size, state="started")
    assert the_verdict(tmp_path, ranks).ranks == named


def test_of_an_uneven_all_to_all_the_rank_that_does_not_return_what_it_took(tmp_path: Path) -> None:
    ranks = a_job(4)
    for step in range(4):
        for one, given, taken in zip(ranks, (4, 5, 6, 7), (7, 4, 5, 6), strict=True):
            state = "completed" if step < 3 else "scheduled"
            wrong = step == 3 and one.rank == 1
            one.call("all_to_all", state=state, size=(given + wrong,), out=(taken,))
            one.call("all_to_all", state=state, size=(taken,), out=(given,))
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks) == ("mismatch", (1,))


EXPERTS: Groups = {"ep0": ("expert", (0, 1, 2)), "ep1": ("expert", (3, 4, 5))}


@pytest.mark.parametrize("state", ["completed", "scheduled"])
def test_parts_do_not_add_up_if_a_member_is_unknown(tmp_path: Path, state: str) -> None:
    """Without rank 5, whose dump is missing, ep1 seems to have two members."""
    ranks = a_job(6, groups=EXPERTS)
    for one, given in zip(ranks, (4, 5, 6, 4, 5, 6), strict=True):
        one.tells_members = False
        one.call("all_to_all", f"ep{one.rank // 3}", size=(given,), out=(5,))
        one.call("all_to_all", f"ep{one.rank // 3}", state, size=(given,), out=(5,))
    assert all(one.kind != "mismatch" for one in diagnosis_of(tmp_path, ranks[:5]).verdicts)


def test_different_names_of_one_operator_are_no_mismatch(tmp_path: Path) -> None:
    ranks = a_job(2)
    ranks[0].call("all_gather", size=(4,), out=(2, 4))
    ranks[1].call("_all_gather_base", size=(4,), out=(8,))
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_a_send_and_its_receive_with_different_sizes(tmp_path: Path) -> None:
    ranks = a_job(2, groups={"pp": ("pp", (0, 1))})
    ranks[0].send(1, "pp", size=(8,), state="scheduled")
    ranks[1].recv(0, "pp", size=(9,), state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.ranks) == ("mismatch", ())


def test_coalesced_collectives_count_as_one(tmp_path: Path) -> None:
    ranks = a_job(4)
    for one in ranks:
        for _ in range(2):
            one.call("all_gather", size=(4,), out=(16,), state="scheduled")
            one.call("all_gather", size=(2,), out=(8,), state="scheduled", same_seq=True)
            one.call("coalesced", same_seq=True)
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


def test_two_groups_called_in_different_orders(tmp_path: Path) -> None:
    both: Groups = {"a": ("data", (0, 1, 2, 3)), "b": ("model", (0, 1, 2, 3))}
    ranks = a_job(4, groups=both)
    for group in both:
        everyone(ranks, "all_reduce", group, times=2)
    everyone(without(ranks, 3), "all_reduce", "a", state="scheduled")
    ranks[3].call("all_reduce", "b", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("mismatch", "code", (3,))
    assert "in the opposite order" in verdict.summary


def test_a_single_rank_in_an_operator_that_no_other_called(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    ranks[0].call("barrier", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.cause) == ((0,), "code")
    assert "rank 0 waits alone in Barrier 6 of world-0" in verdict.summary


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


def test_of_two_sides_the_one_that_left_its_own_order_is_odd(tmp_path: Path) -> None:
    """Nobody is in the majority, but one of them did in each step before what the other does."""
    ranks = a_job(2)
    _rank_1_skips_a_call(ranks)
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("code", (1,))
    assert "which left the order of its own steps" in verdict.summary

"""Flight recorder dumps of hosts that ran ahead of their devices: where each device stands."""

from __future__ import annotations

from pathlib import Path

from ..formats.flight_recorder.recorders import Recorder, a_job, everyone
from .dumps import GRID, the_verdict, without


def _grid() -> list[Recorder]:
    ranks = a_job(4, groups=GRID)
    for group in GRID:
        everyone(ranks, "all_reduce", group, times=3)
    return ranks


def test_ranks_in_an_operator_whose_data_does_not_move_are_no_culprits(tmp_path: Path) -> None:
    """Both are in tp0, and what the others started in the data groups is queued behind that."""
    ranks = _grid()
    everyone(ranks[:2], "all_reduce", "tp0", state="started")
    for one in ranks:
        state = "scheduled" if one.rank < 2 else "started"
        one.call("all_reduce", f"dp{one.rank % 2}", state)
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks, verdict.group) == ("network", (), "tp-tp0")


def test_a_device_before_the_first_open_operator_is_followed_through_the_queues(
    tmp_path: Path,
) -> None:
    """All have called everything, but a kernel of rank 1 does not end: 2 waits for it, 0 for 2."""
    ranks = a_job(3, groups={"pp": ("pp", (0, 1, 2))})
    everyone(ranks, "barrier")
    ranks[0].recv(2, "pp", state="started")
    ranks[0].send(1, "pp", state="scheduled")
    ranks[1].recv(0, "pp", state="scheduled")
    ranks[1].recv(2, "pp", state="scheduled")
    ranks[2].send(1, "pp", state="started")
    ranks[2].send(0, "pp", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks, verdict.victims) == ("compute", (1,), 2)


def test_a_queued_operator_that_all_entered_does_not_hide_a_deadlock(tmp_path: Path) -> None:
    ranks = _grid()
    everyone(without(ranks, 3), "all_reduce", state="scheduled")
    ranks[3].call("all_reduce", "dp1", "scheduled")
    everyone(ranks[:2], "all_reduce", "tp0", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert "ranks wait for one another" in verdict.summary


def test_a_second_rank_that_is_missing_only_in_what_is_queued_is_named_too(tmp_path: Path) -> None:
    ranks = _grid()
    ranks[0].call("all_reduce", "tp0", "scheduled")
    ranks[0].call("all_reduce", "dp0", "scheduled")
    assert the_verdict(tmp_path, ranks).ranks == (1, 2)

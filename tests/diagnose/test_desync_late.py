"""Flight recorder dumps in which a rank came, but too late."""

from __future__ import annotations

from pathlib import Path

from ..formats.flight_recorder.recorders import START, Recorder, a_job, everyone
from .dumps import the_verdict, without

SECOND = 10**9


def _late(ranks: list[Recorder], rank: int, seconds: int) -> None:
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="started")
    ranks[rank].entries[-1]["time_created_ns"] = START + seconds * SECOND


def test_a_rank_that_came_after_the_timeout_is_named(tmp_path: Path) -> None:
    ranks = a_job(4)
    _late(ranks, 2, 612)
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.cause, verdict.victims) == ((2,), "unknown", 3)
    assert "which came 612 s late, when they had given up after 600 s" in verdict.summary


def test_it_explains_the_hang_although_another_dump_is_missing(tmp_path: Path) -> None:
    ranks = a_job(4)
    _late(ranks, 2, 612)
    assert the_verdict(tmp_path, without(ranks, 0)).ranks == (2,)


def test_a_rank_that_came_within_the_timeout_is_not_named(tmp_path: Path) -> None:
    ranks = a_job(4)
    _late(ranks, 2, 500)
    assert (the_verdict(tmp_path, ranks).ranks, the_verdict(tmp_path, ranks).cause) == (
        (), "network")  # fmt: skip


def test_a_clock_that_is_wrong_is_not_late(tmp_path: Path) -> None:
    ranks = a_job(4)
    _late(ranks, 2, 0)
    for entry in ranks[2].entries:
        entry["time_created_ns"] += 700 * SECOND
    assert the_verdict(tmp_path, ranks).ranks == ()


def test_the_sender_of_a_message_that_came_too_late(tmp_path: Path) -> None:
    ranks = a_job(2, groups={"pp": ("pp", (0, 1))})
    for state in ("completed", "completed", "started"):
        ranks[0].send(1, "pp", state)
        ranks[1].recv(0, "pp", state)
    ranks[0].entries[-1]["time_created_ns"] = START + 700 * SECOND
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.group) == ((0,), "pp-pp")

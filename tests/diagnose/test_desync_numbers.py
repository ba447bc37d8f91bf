"""Ring buffers that forgot what a rank left out: the numbers of its operators still show it."""

from __future__ import annotations

from pathlib import Path

from ..formats.flight_recorder.recorders import Groups, Recorder, a_job, everyone
from .dumps import the_verdict, without

PAIRS: Groups = {
    **{f"tp{at}": ("tp", (2 * at, 2 * at + 1)) for at in range(4)},
    "dp0": ("dp", (0, 2, 4, 6)), "dp1": ("dp", (1, 3, 5, 7)),
}  # fmt: skip
PIPES: Groups = {
    **{f"pp{at}": ("pp", (at, at + 4)) for at in range(4)},
    "dp0": ("dp", (0, 1, 2, 3)), "dp1": ("dp", (4, 5, 6, 7)),
}  # fmt: skip


def _pairs(ranks: list[Recorder], times: int, state: str = "completed") -> None:
    for group in ("tp0", "tp1", "tp2", "tp3"):
        everyone(ranks, "all_reduce", group, times, state=state)


def _rank_0_left_out_a_call() -> list[Recorder]:
    """Rank 1 waits for it in their pair, and the others for rank 1, by way of the world."""
    ranks = a_job(8, groups=PAIRS)
    for _ in range(4):
        _pairs(ranks, 3)
        for group in ("dp0", "dp1", "0"):
            everyone(ranks, "all_reduce", group)
    _pairs(ranks, 2)
    _pairs(without(ranks, 0, 1), 1)
    ranks[1].call("all_reduce", "tp0", "started")
    everyone(ranks, "all_reduce", "dp0")
    everyone(ranks, "all_reduce", "dp1", state="started")
    everyone(ranks, "all_reduce", state="scheduled")
    ranks[1].entries[-2]["state"] = "scheduled"
    for one in ranks[::2]:
        one.entries[-1]["state"] = "started"
    return ranks


def test_a_rank_without_a_dump_is_no_culprit_if_another_left_the_common_order(
    tmp_path: Path,
) -> None:
    ranks = _rank_0_left_out_a_call()
    assert the_verdict(tmp_path / "all", ranks).ranks == (0,)
    assert the_verdict(tmp_path / "lost", without(ranks, 5)).ranks == (0,)


def test_numbers_show_what_short_rings_lost(tmp_path: Path) -> None:
    ranks = _rank_0_left_out_a_call()
    for one in ranks:
        one.first_record = len(one.entries) - 3
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.cause) == ((0,), "code")
    assert "rank 0 made 14 calls in tp-tp0, and ranks with the same program made 15" in (
        verdict.summary)  # fmt: skip


def test_numbers_that_several_ranks_share_are_another_program(tmp_path: Path) -> None:
    """Both ranks of a pair made fewer calls than the others, and rank 6 never comes."""
    ranks = a_job(8, groups=PAIRS)
    _pairs(ranks, 2)
    _pairs(without(ranks, 0, 1), 1)
    everyone(ranks, "all_reduce", "dp0", 2)
    everyone(ranks, "all_reduce", "dp1", 2)
    everyone(ranks, "all_reduce")
    everyone(without(ranks, 6), "all_reduce", state="started")
    for one in ranks:
        one.first_record = len(one.entries) - 3
    assert the_verdict(tmp_path, ranks).ranks == (6,)


def test_a_send_that_a_short_ring_lost(tmp_path: Path) -> None:
    """Rank 2 leaves out a send, so rank 6 waits for it, and stage 1 for rank 6."""
    ranks = a_job(8, groups=PIPES)
    for step in range(3):
        for one in ranks[:4]:
            other = ranks[one.rank + 4]
            stuck = step == 2 and one.rank == 2
            if not stuck:
                one.send(other.rank, f"pp{one.rank}")
            other.recv(one.rank, f"pp{one.rank}", "started" if stuck else "completed")
        everyone(ranks[:4], "all_reduce", "dp0")
        everyone(ranks[4:], "all_reduce", "dp1", state="started" if step == 2 else "completed")
    ranks[6].entries[-1]["state"] = "scheduled"
    everyone(ranks, "all_reduce", state="scheduled")
    for one in ranks:
        one.first_record = 3
    assert the_verdict(tmp_path, ranks).ranks == (2,)


def test_where_a_device_stands_is_unknown_if_the_ring_may_have_lost_it(tmp_path: Path) -> None:
    """Nothing that rank 3 still has in its ring has ended, so it may wait in what it lost."""
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", times=2, state="scheduled")
    for one in ranks[:3]:
        one.entries[-2]["state"] = "started"
    assert the_verdict(tmp_path / "known", ranks).ranks == (3,)
    ranks[3].first_record = 5
    verdict = the_verdict(tmp_path / "lost", ranks)
    assert (verdict.ranks, verdict.cause) == ((), "unknown")

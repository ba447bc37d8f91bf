"""Who keeps a job whose operators within passes nobody recorded, and jobs with very many open ones.

Ranks 0 to 3 share a group `tp-0`; each is missed in a group of its own by one of ranks 4 to 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import find_hang
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Table, Window

from .jobs import START, a_table

SECOND = 10**9
ELSEWHERE, WAITS, FORWARD = "put (queue.py:140)", "synchronize (streams.py:92)", "forward (b.py:2)"
TOGETHER = ProcessGroup("tp-0", "tp", (0, 1, 2, 3))
APART = tuple(ProcessGroup(f"dp-{rank}", "dp", (rank, rank + 4)) for rank in range(4))


def operators(rows: Sequence[tuple[int, str, str, int, int | None]]) -> Table:
    """(rank, group, operator, peer, second it ended or None); all begun at the start."""
    return a_table("rank group seq op peer enqueue_ns end_ns step", [
        (rank, group, 0, op, peer, START, NULL if end is None else START + end * SECOND, 0)
        for rank, group, op, peer, end in rows
    ])  # fmt: skip


def a_window(groups: Sequence[ProcessGroup], ranks: int, **tables: Table) -> Window:
    job = Job("large", ranks, (Host("h", tuple(range(ranks))),), groups=tuple(groups),
              observed_until_ns=START + 60 * SECOND)  # fmt: skip
    return Window(job, tables)


def standing(*frames: str, first: int = 0) -> Table:
    """Where each of some ranks has stood since."""
    return a_table("rank thread frames active start_ns duration_ns", [
        (rank, "MainThread", f"main (train.py:1);{frame}", 1, START, 60 * SECOND)
        for rank, frame in enumerate(frames, first)
    ])  # fmt: skip


def missed(*frames: str, recorded: bool = False) -> Verdict:
    """What is said of four ranks that are missed, standing at these frames."""
    rows: list[tuple[int, str, str, int, int | None]] = [
        (rank + 4, f"dp-{rank}", "AllReduce", -1, None) for rank in range(4)
    ]
    rows += [(rank, "tp-0", "AllReduce", -1, 1) for rank in range(4) if recorded]
    job = a_window((TOGETHER, *APART), 8, comm_ops=operators(rows), stacks=standing(*frames))
    said = find_hang(job)
    assert said is not None
    return said.verdicts[0]


def test_who_waits_for_its_device_may_be_kept_by_who_does_not() -> None:
    assert missed(WAITS, ELSEWHERE, WAITS, WAITS).ranks == (1,)


def test_where_all_wait_for_their_devices_it_is_one_of_them_and_nobody_is_named() -> None:
    verdict = missed(WAITS, WAITS, WAITS, WAITS)
    assert (verdict.ranks, verdict.cause) == ((), "compute")
    assert "one of ranks 0, 1, 2, 3" in verdict.summary


def test_who_stands_where_most_do_is_kept_by_who_does_not() -> None:
    assert missed(FORWARD, FORWARD, ELSEWHERE, FORWARD).ranks == (2,)


@pytest.mark.parametrize("frame", [ELSEWHERE, FORWARD])
def test_where_nothing_tells_them_apart_all_are_missed(frame: str) -> None:
    assert missed(frame, frame, frame, frame).ranks == (0, 1, 2, 3)


def test_where_operators_within_passes_are_recorded_nobody_is_kept_unseen() -> None:
    assert missed(WAITS, ELSEWHERE, WAITS, WAITS, recorded=True).ranks == (0, 1, 2, 3)


def test_who_waits_unseen_for_a_rank_whose_data_does_not_move_has_no_stuck_kernel() -> None:
    """Rank 0's send has begun and moves nothing; the others of its group wait for its device."""
    rows: list[tuple[int, str, str, int, int | None]] = [
        (0, "dp-0", "Send", 4, None), (4, "dp-0", "Recv", 0, None),
        *((rank + 4, f"dp-{rank}", "AllReduce", -1, None) for rank in (1, 2, 3)),
    ]  # fmt: skip
    stacks = standing(*[WAITS] * 4)
    said = find_hang(a_window((TOGETHER, *APART), 8, comm_ops=operators(rows), stacks=stacks))
    assert said is not None
    assert (said.verdicts[0].cause, said.verdicts[0].group) == ("network", "dp-0")


def test_of_very_many_open_operators_none_is_left_out() -> None:
    """Each rank waits for the next; who waits in the last of them is a victim like all others."""
    last = 600
    groups = [ProcessGroup(f"pp-{rank}", "pp", (rank, rank + 1)) for rank in range(last)]
    table = operators([(rank, f"pp-{rank}", "Recv", rank + 1, None) for rank in range(last)])
    stacks = standing(ELSEWHERE, first=last)
    said = find_hang(a_window(groups, last + 1, comm_ops=table, stacks=stacks))
    assert said is not None
    assert said.verdicts[0].ranks == (last,)

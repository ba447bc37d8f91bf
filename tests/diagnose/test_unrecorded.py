"""Hangs of jobs with unrecorded operators within passes, and of jobs with very many open operators.

Ranks 0 to 3 share a group `tp-0`; one of ranks 4 to 7 waits for each of them in another group.
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
    """The stack in which each of the ranks has been since."""
    return a_table("rank thread frames active start_ns duration_ns", [
        (rank, "MainThread", f"main (train.py:1);{frame}", 1, START, 60 * SECOND)
        for rank, frame in enumerate(frames, first)
    ])  # fmt: skip


def missed(*frames: str, recorded: bool = False) -> Verdict:
    """The hang of four absent ranks that are in these functions."""
    rows: list[tuple[int, str, str, int, int | None]] = [
        (rank + 4, f"dp-{rank}", "AllReduce", -1, None) for rank in range(4)
    ]
    rows += [(rank, "tp-0", "AllReduce", -1, 1) for rank in range(4) if recorded]
    job = a_window((TOGETHER, *APART), 8, comm_ops=operators(rows), stacks=standing(*frames))
    said = find_hang(job)
    assert said is not None
    return said.verdicts[0]


def test_a_rank_that_waits_for_its_device_may_be_blocked_by_one_that_does_not() -> None:
    assert missed(WAITS, ELSEWHERE, WAITS, WAITS).ranks == (1,)


def test_if_all_wait_for_their_devices_no_rank_is_named() -> None:
    verdict = missed(WAITS, WAITS, WAITS, WAITS)
    assert (verdict.ranks, verdict.cause) == ((), "compute")
    assert "one of ranks 0, 1, 2, 3" in verdict.summary


def test_ranks_in_the_same_function_as_most_are_blocked_by_the_other_one() -> None:
    assert missed(FORWARD, FORWARD, ELSEWHERE, FORWARD).ranks == (2,)


@pytest.mark.parametrize("frame", [ELSEWHERE, FORWARD])
def test_ranks_that_cannot_be_distinguished_are_all_absent(frame: str) -> None:
    assert missed(frame, frame, frame, frame).ranks == (0, 1, 2, 3)


def test_with_recorded_operators_within_passes_there_is_no_hidden_waiting() -> None:
    assert missed(WAITS, ELSEWHERE, WAITS, WAITS, recorded=True).ranks == (0, 1, 2, 3)


def test_a_rank_that_waits_unrecorded_for_a_stalled_transfer_has_no_stuck_kernel() -> None:
    """Rank 0's send has begun and moves nothing; the others of its group wait for its device."""
    rows: list[tuple[int, str, str, int, int | None]] = [
        (0, "dp-0", "Send", 4, None), (4, "dp-0", "Recv", 0, None),
        *((rank + 4, f"dp-{rank}", "AllReduce", -1, None) for rank in (1, 2, 3)),
    ]  # fmt: skip
    stacks = standing(*[WAITS] * 4)
    said = find_hang(a_window((TOGETHER, *APART), 8, comm_ops=operators(rows), stacks=stacks))
    assert said is not None
    assert (said.verdicts[0].cause, said.verdicts[0].group) == ("network", "dp-0")


def test_no_open_operator_is_left_out_however_many_there_are() -> None:
    """Each rank waits for the next; the one that waits in the last operator is a victim, too."""
    last = 600
    groups = [ProcessGroup(f"pp-{rank}", "pp", (rank, rank + 1)) for rank in range(last)]
    table = operators([(rank, f"pp-{rank}", "Recv", rank + 1, None) for rank in range(last)])
    stacks = standing(ELSEWHERE, first=last)
    said = find_hang(a_window(groups, last + 1, comm_ops=table, stacks=stacks))
    assert said is not None
    assert said.verdicts[0].ranks == (last,)

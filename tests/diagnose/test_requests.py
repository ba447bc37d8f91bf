"""A network that moves no data, and the connection whose requests never complete.

Four ranks, one per host, are all in an AllReduce that none completes; each sends to the next.
"""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import find_hang
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Table, Window

from .jobs import START, a_table

SECOND = 10**9
RANKS = 4
DP = ProcessGroup("dp-0", "dp", tuple(range(RANKS)))


def sent(*in_flight: int) -> Table:
    """Requests of all ranks to the next one; those of some ranks are outstanding."""
    return a_table("rank peer nic start_ns end_ns bytes posted completed", [
        (rank, (rank + 1) % RANKS, "nic-0", START, START + SECOND, 0, 8,
         0 if rank in in_flight else 8)
        for rank in range(RANKS)
    ])  # fmt: skip


def a_verdict(**tables: Table) -> Verdict:
    comm = a_table("rank group seq op peer enqueue_ns end_ns step", [
        (rank, "dp-0", 0, "AllReduce", -1, START, NULL, 0) for rank in range(RANKS)
    ])  # fmt: skip
    hosts = tuple(Host(f"h{rank}", (rank,), ("nic-0",), ("gpu-0",)) for rank in range(RANKS))
    job = Job("stuck", RANKS, hosts, groups=(DP,), observed_until_ns=START + 60 * SECOND)
    said = find_hang(Window(job, {"comm_ops": comm, **tables}))
    assert said is not None
    return said.verdicts[0]


def test_a_rank_whose_requests_never_complete_blocks_all_others() -> None:
    verdict = a_verdict(transfers=sent(2))
    assert (verdict.cause, verdict.ranks, verdict.victims) == ("network", (2,), 3)
    assert [device.name for device in verdict.devices] == ["h2/nic-0"]
    assert "8 network requests of rank 2 never completed" in verdict.summary


def test_the_common_rank_of_two_stuck_connections_is_named() -> None:
    assert a_verdict(transfers=sent(1, 2)).ranks == (2,)


@pytest.mark.parametrize("in_flight", [(), (0, 2), (0, 1, 2, 3)])
def test_no_rank_is_named_with_no_or_too_many_outstanding_requests(
    in_flight: tuple[int, ...],
) -> None:
    verdict = a_verdict(transfers=sent(*in_flight))
    assert (verdict.cause, verdict.ranks) == ("network", ())


def test_requests_with_lost_rows_are_ignored() -> None:
    losses = a_table("rank table start_ns end_ns rows", [(2, "transfers", START, START, 1)])
    assert a_verdict(transfers=sent(2), losses=losses).ranks == ()

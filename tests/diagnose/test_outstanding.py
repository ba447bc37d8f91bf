"""In a ring that is slow as a whole, outstanding requests show which member is the slow one.

Eight ranks on eight hosts under two leaves reduce gradients ten times in each step. During a
transfer the slowest edge is busy all the time, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.trace import Fabric, Host, Job, ProcessGroup, Switch
from stepscope.window import Table, Window

from .jobs import MS, START, a_table, put, without

RANKS, STEPS, ONSET, OPERATORS = 8, 60, 30, 10
USUAL_MS, STEP_MS = 5.0, 400.0
EVERY_NS = 37 * MS
"""The interval of each connection's counters."""
Busy = Callable[[int, int], float]
"""The share of a slow transfer in which the edge from a rank to the next has outstanding
requests."""


def at_adapter(slow: int) -> Busy:
    """Both directions through it."""
    return lambda here, there: 1.0 if slow in (here, there) else 0.25


def sending(slow: int) -> Busy:
    return lambda here, there: 1.0 if here == slow else 0.0


def under_the_second_leaf(here: int, there: int) -> float:
    return 1.0 if max(here, there) >= RANKS // 2 else 0.25


def everywhere(here: int, there: int) -> float:
    return 0.75


def a_ring(busy: Busy, times: float = 4.0, only: int | None = None, moved: int = -1) -> Window:
    """Slow in all operators of a step from step 30 on, or in one of them.

    Args:
        moved: a rank whose traffic goes by its neighbour's adapter from then on.
    """
    comm: list[tuple[object, ...]] = []
    steps: list[tuple[object, ...]] = []
    requests: Requests = {}
    now = START
    for step in range(STEPS):
        lost_ms = 0.0
        for seq in range(OPERATORS):
            slow = step >= ONSET and only in (None, seq)
            lasts_ms = USUAL_MS * (times if slow else 1.0)
            begin = now + int((20 * seq + lost_ms) * MS)
            end = begin + int(lasts_ms * MS)
            lost_ms += lasts_ms - USUAL_MS
            for rank in range(RANKS):
                comm.append((rank, step, "dp-0", step * OPERATORS + seq, "AllReduce", -1, 64 << 20,
                             begin, begin, end))  # fmt: skip
                part = busy(rank, (rank + 1) % RANKS) if slow else 1.0
                nic = "nic-1" if rank == moved and step >= ONSET else "nic-0"
                _send(requests.setdefault((rank, nic), {}), begin, end, part, seq + step)
        lasted = int((STEP_MS + lost_ms) * MS)
        steps += [(rank, step, now, lasted) for rank in range(RANKS)]
        now += lasted
    return Window(the_job(), {
        "comm_ops": a_table(
            "rank step group seq op peer bytes enqueue_ns start_ns end_ns", comm
        ),
        "steps": a_table("rank step start_ns duration_ns", steps),
        "transfers": a_table(
            "rank peer nic start_ns end_ns bytes posted completed", [*_counted(requests)]
        ),
    })  # fmt: skip


Requests = dict[tuple[int, str], dict[int, list[int]]]
"""By rank and NIC, the numbers of posted and completed requests in each interval."""


def _send(counts: dict[int, list[int]], begin: int, end: int, part: float, turn: int) -> None:
    """Requests that are outstanding for a part of a transfer, at random times in it."""
    lasted = int((end - begin) * part)
    since = begin + (end - begin - lasted) * (turn % 4) // 3
    counts.setdefault(since // EVERY_NS, [0, 0])[0] += 8
    counts.setdefault((since + lasted) // EVERY_NS, [0, 0])[1] += 8


def _counted(requests: Requests) -> Iterator[tuple[object, ...]]:
    for (rank, nic), counts in requests.items():
        for at in range(min(counts), max(counts) + 1):
            posted, completed = counts.get(at, (0, 0))
            yield (rank, (rank + 1) % RANKS, nic, at * EVERY_NS, (at + 1) * EVERY_NS, 1 << 20,
                   posted, completed)  # fmt: skip


def the_job() -> Job:
    hosts = tuple(Host(f"h{at}", (at,), ("nic-0", "nic-1"), ("gpu-0",)) for at in range(RANKS))
    leaves = tuple(Switch(f"leaf-{leaf}", 0, tuple(f"h{4 * leaf + at}/nic-{nic}"
                                                   for at in range(4) for nic in range(2)))
                   for leaf in range(2))  # fmt: skip
    spines = tuple(Switch(f"spine-{at}", 1, ("leaf-0", "leaf-1")) for at in range(2))
    groups = (ProcessGroup("dp-0", "dp", tuple(range(RANKS))),)
    return Job("ring", RANKS, hosts, groups=groups, fabric=Fabric((*leaves, *spines)))


def the_verdict(window: Window) -> Verdict:
    (verdict,) = diagnose(window).verdicts
    assert (verdict.kind, verdict.cause) == ("slowdown", "network")
    return verdict


def test_a_rank_busy_in_both_directions_has_the_slow_nic_or_cable() -> None:
    found = the_verdict(a_ring(at_adapter(5)))
    assert found.ranks == (5,)
    assert [device.name for device in found.devices][:2] == ["h5/nic-0--leaf-1", "h5/nic-0"]


def test_a_device_slow_in_one_direction_is_a_nic_and_not_a_cable() -> None:
    found = the_verdict(a_ring(sending(5)))
    assert found.ranks == (5,)
    assert found.devices[0].name == "h5/nic-0"


def test_if_all_ranks_of_a_leaf_are_busy_the_leaf_is_slow() -> None:
    found = the_verdict(a_ring(under_the_second_leaf))
    assert (found.devices[0].name, found.ranks) == ("leaf-1", (4, 5, 6, 7))


def test_if_all_ranks_are_busy_no_rank_is_named() -> None:
    assert the_verdict(a_ring(everywhere)).ranks == ()


def test_a_single_stalled_transfer_of_many_is_found() -> None:
    """All of them together take only 1.4 times as long."""
    found = the_verdict(a_ring(sending(2), times=5.0, only=3))
    assert found.ranks == (2,)
    assert found.lost_fraction == pytest.approx(20 / 420, rel=0.05)


def lost(table: str) -> Table:
    return a_table("rank table start_ns end_ns rows", [(0, table, START, START, 1)])


@pytest.mark.parametrize("spoil", [
    lambda window: without(window, "transfers"),
    lambda window: put(window, losses=lost("transfers")),
], ids=["not collected", "lost"])  # fmt: skip
def test_without_their_counts_only_the_group_is_named(spoil: Callable[[Window], Window]) -> None:
    window = spoil(put(a_ring(at_adapter(5)), kernel_summaries=a_table("rank", [(0,)])))
    found = the_verdict(window)
    assert (found.ranks, found.group) == ((), "dp-0")

"""A host that nobody reaches any more: named by the hosts that send to it again and again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stepscope.diagnose.run import find_hang
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Window

from .jobs import START, a_table
from .test_hang import SECOND, the_hang

AGAIN = (0, 0, 0, 2, 0, 2, 0, 0, 3, 0)
"""Segments sent again, in each second after the hang."""
MORE = tuple(3 * count for count in AGAIN)
EIGHT, NEARLY_TWELVE = (0, 0, 0, 2, 0, 2, 0, 0, 4, 0), (0, 0, 0, 3, 0, 3, 0, 0, 5.9999999, 0)
"""Rates of samples are not exact."""
LATE = (3, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""What had been lost before it."""
ARRIVES = (900, 0, 0, 120, 0, 120, 0, 0, 180, 0)
NOISE = (900, 0, 7, 0, 0, 0, 0, 7, 0, 0)


def a_job(
    hosts: int,
    repeated: Mapping[int, tuple[float, ...]],
    received: Mapping[int, tuple[float, ...]] | None = None,
    op: str = "AllReduce",
    ahead: bool = False,
) -> Window:
    """Two ranks on each host entered an operator that does not end; recorded for a minute.

    Args:
        ahead: one rank has called the next operator, too.
    """
    machines = tuple(Host(f"h{at}", (2 * at, 2 * at + 1), nics=("eth0",)) for at in range(hosts))
    ranks = tuple(range(2 * hosts))
    job = Job("ring", len(ranks), machines, groups=(ProcessGroup("dp-0", "dp", ranks),),
              observed_until_ns=START + 60 * SECOND)  # fmt: skip
    rows = [(rank, step, "dp-0", step, op, -1, START + step * SECOND,
             NULL if step == 4 else START + step * SECOND + SECOND // 2)
            for rank in ranks for step in range(5)]  # fmt: skip
    rows += [(0, 4, "dp-0", 5, op, -1, START + 4 * SECOND + 1, NULL)] * ahead
    steps = [(rank, step, START + step * SECOND, SECOND) for rank in ranks for step in range(4)]
    samples = []
    for metric, values in (("tcp_retrans_per_s", repeated), ("nic_rx_bytes_per_s", received or {}),
                           ("nic_tx_bytes_per_s", {})):  # fmt: skip
        for at in range(hosts):
            for second, value in enumerate(values.get(at, LATE)):
                samples.append((-1, f"h{at}", metric, START + (4 + second) * SECOND, float(value)))
    return Window(job, {
        "comm_ops": a_table("rank step group seq op peer enqueue_ns end_ns", rows),
        "steps": a_table("rank step start_ns duration_ns", steps),
        "hardware": a_table("rank host metric ts_ns value", samples),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("job", "host"),
    [
        pytest.param(a_job(3, {0: AGAIN, 2: AGAIN}), 1, id="both neighbours of three"),
        pytest.param(a_job(6, {0: AGAIN, 4: AGAIN}), 5, id="both neighbours of six"),
        pytest.param(a_job(4, {1: AGAIN, 3: AGAIN}, {0: NOISE, 2: ARRIVES}), 2, id="it receives"),
        pytest.param(a_job(4, {0: AGAIN, 2: AGAIN, 3: AGAIN}, op="AllToAll"), 1, id="all others"),
        pytest.param(
            a_job(4, {0: AGAIN, 1: AGAIN, 2: AGAIN, 3: MORE}, op="AllToAll"),
            3,
            id="and to all others",
        ),
        pytest.param(a_job(3, {0: AGAIN, 1: MORE, 2: AGAIN}), 1, id="and to both"),
        pytest.param(a_job(4, {0: AGAIN, 2: AGAIN, 3: AGAIN}), 3, id="and to one of its two"),
        pytest.param(
            a_job(4, {0: AGAIN, 1: AGAIN, 2: AGAIN, 3: AGAIN}, {3: ARRIVES}, op="AllToAll"),
            3,
            id="all send again, and it receives",
        ),
        pytest.param(a_job(3, {0: EIGHT, 1: NEARLY_TWELVE, 2: EIGHT}), 1, id="half as many more"),
        pytest.param(a_job(2, {0: AGAIN, 1: AGAIN}, {0: NOISE, 1: ARRIVES}), 1, id="of two"),
        pytest.param(a_job(3, {0: AGAIN, 2: AGAIN}, ahead=True), 1, id="while one is ahead"),
    ],
)
def test_the_host_whose_neighbours_send_again_is_cut_off(job: Window, host: int) -> None:
    verdict = the_hang(find_hang(job))
    assert (verdict.ranks, verdict.cause) == ((2 * host, 2 * host + 1), "network")
    assert verdict.hosts == (f"h{host}",)
    assert [one.name for one in verdict.devices] == [f"h{host}/eth0"]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(a_job(3, {}), id="nobody sends again"),
        pytest.param(a_job(3, {0: AGAIN, 1: AGAIN, 2: AGAIN}), id="everybody does"),
        pytest.param(a_job(6, {0: AGAIN, 3: AGAIN}), id="no common neighbour"),
        pytest.param(a_job(6, {0: AGAIN}), id="one does"),
        pytest.param(a_job(4, {1: AGAIN, 3: AGAIN}), id="either of two"),
        pytest.param(a_job(4, {1: AGAIN, 3: AGAIN}, {0: NOISE, 2: NOISE}), id="both receive"),
        pytest.param(a_job(2, {0: AGAIN}), id="of two hosts it may be either"),
    ],
)
def test_without_clear_evidence_no_host_is_accused(job: Window) -> None:
    verdict = the_hang(find_hang(job))
    assert (verdict.ranks, verdict.cause) == ((), "network")

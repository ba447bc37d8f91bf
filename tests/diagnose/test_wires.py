"""Whose adapter is slow in rings, all-to-alls and pipelines, played by the steps of the algorithms:
over TCP and with NCCL, one adapter per host or several, slow from some step on or always."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose

from .wires import Wires, across, halves, one_ring

RINGS_OF_PAIRS = (*halves(8, 2, "ep"), *one_ring(8))
EXCHANGED = ("AllToAll", "AllToAll", "AllReduce")
SENT = (*across(8, 2, "pp"), *halves(8, 4, "dp"))
SENDS = ("Send", "Send", *["AllReduce"] * 4)
LARGE = (*halves(16, 4, "ep"), *across(16, 2), *one_ring(16, "world"))
LARGE_OPS = (*["AllToAll"] * 4, *["AllReduce"] * 3)


def found_in(wires: Wires) -> list[Verdict]:
    return [one for one in diagnose(wires.window()).verdicts if not one.is_suspect]


@pytest.mark.parametrize("since", [0, 40])
@pytest.mark.parametrize(
    ("wires", "ranks"),
    [
        pytest.param(Wires(slow=2, groups=one_ring(8)), (4, 5), id="ring"),
        pytest.param(Wires(slow=1, groups=SENT, ops=SENDS, piece_ms=20), (2, 3), id="pipelines"),
        pytest.param(Wires(slow=2, groups=RINGS_OF_PAIRS, ops=EXCHANGED), (4, 5), id="all-to-all"),
        pytest.param(Wires(slow=5, own_adapters=True, groups=across(8, 2)), (5,), id="adapter"),
        pytest.param(Wires(slow=5, own_adapters=True, hosts=8, groups=LARGE, ops=LARGE_OPS), (5,),
                     id="adapter, all-to-all"),
        pytest.param(Wires(slow=5, own_adapters=True, groups=one_ring(8)), (4, 5, 6, 7),
                     id="one hop, either of whose ends may be slow"),
    ],
)  # fmt: skip
def test_over_tcp_the_ranks_behind_the_slow_adapter_are_named(
    wires: Wires, ranks: tuple[int, ...], since: int
) -> None:
    (link,) = found_in(wires.but(since=since))
    assert (link.cause, link.ranks) == ("network", ranks)


@pytest.mark.parametrize(("hosts", "times"), [(4, 3.0), (4, 5.0), (6, 5.0), (6, 8.0)])
def test_the_ends_of_a_ring_show_what_its_slow_link_costs_from_the_first_step_on(
    hosts: int, times: float
) -> None:
    """Ranks of a host may end 30 ms apart, as if their clocks differed."""
    wires = Wires(hosts=hosts, slow=1, times=times, groups=one_ring(2 * hosts))
    (link,) = found_in(wires)
    usual, slow = (float(np.median(one.window().tables["steps"].ints("duration_ns")))
                   for one in (wires.but(times=1.0), wires.but()))  # fmt: skip
    assert link.lost_fraction == pytest.approx(1 - usual / slow, abs=0.12)


def test_where_each_host_has_one_rank_its_link_is_named_if_it_was_faster_before() -> None:
    """Else clocks, which are aligned by ends, hide by how much each rank ends later."""
    wires = Wires(hosts=8, per_host=1, slow=5, groups=one_ring(8))
    (link,) = found_in(wires.but(since=40))
    assert link.ranks == (5,)
    assert found_in(wires) == []


def test_of_two_hosts_either_may_have_the_slow_link() -> None:
    wires = Wires(hosts=2, per_host=4, slow=1, since=40, groups=one_ring(8))
    (link,) = found_in(wires)
    assert {device.name: device.probability for device in link.devices} == {
        "h0/nic-0": 0.5, "h1/nic-0": 0.5}  # fmt: skip


@pytest.mark.parametrize("since", [0, 40])
def test_with_nccl_the_adapter_of_a_slow_all_to_all_is_among_those_named(since: int) -> None:
    wires = Wires(slow=5, own_adapters=True, hosts=8, nccl=True, groups=LARGE, ops=LARGE_OPS)
    (link,) = found_in(wires.but(since=since))
    assert link.cause == "network"
    assert "h2/nic-1" in [device.name for device in link.devices][:2]
    (group,) = found_in(Wires(slow=2, nccl=True, groups=RINGS_OF_PAIRS, ops=EXCHANGED))
    assert group.group == "ep-1"


@pytest.mark.parametrize("nccl", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_accused_where_no_adapter_is_slow(nccl: bool, seed: int) -> None:
    for wires in (Wires(groups=one_ring(8)), Wires(groups=RINGS_OF_PAIRS, ops=EXCHANGED),
                  Wires(groups=SENT, ops=SENDS, piece_ms=20),
                  Wires(own_adapters=True, hosts=8, groups=LARGE, ops=LARGE_OPS)):  # fmt: skip
        assert found_in(wires.but(nccl=nccl, seed=seed)) == []

"""A slow link in a trace of a few steps: the host whose transfers are slow, and no other's."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.links.slow_link_brief import _blamed, _fast, _Seen
from stepscope.diagnose.network.rates import _shares_kernel
from stepscope.diagnose.network.slow_hosts import FAST
from stepscope.diagnose.run import diagnose
from stepscope.trace import Job
from stepscope.window import Window

from .fabric import RANKS, Slow, a_wired_job, healthy, through
from .jobs import START, a_table, put

HERE = (4, 5)
"""The ranks of host 2."""


def traced(slow: Slow, seed: int = 0) -> Window:
    return a_wired_job(slow, steps=6, fabric=False, seed=seed)


def test_the_host_of_all_slow_pairs_and_groups_is_named() -> None:
    (verdict,) = diagnose(traced(through(*HERE, since=0))).verdicts
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("network", HERE, ("h2",))
    assert verdict.slowdown == pytest.approx(4.0, rel=0.1)
    assert verdict.confidence >= 0.5


def test_groups_that_move_data_between_the_same_hosts_show_more_than_one_of_them() -> None:
    """Once in each of three steps, and there are two groups between any two hosts."""
    window = a_wired_job(through(*HERE, since=0), steps=3, fabric=False, seed=0)
    (verdict,) = diagnose(window).verdicts
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("network", HERE, ("h2",))


@pytest.mark.parametrize("seed", range(5))
def test_equal_links_are_silent(seed: int) -> None:
    assert not diagnose(traced(healthy, seed)).verdicts


def test_receivers_that_come_after_the_data_show_no_fast_link() -> None:
    """Only one host's receivers wait for their data; for the others it is there already."""
    window = traced(healthy)
    comm = window.tables["comm_ops"]
    late = comm.strings("op").equals("Recv") & ~np.isin(comm.ints("rank"), HERE)
    start = np.where(late, comm.ints("end_ns"), comm.ints("start_ns"))
    assert not diagnose(put(window, comm_ops=comm.with_column("start_ns", start))).verdicts


def test_racks_that_are_far_from_each_other_accuse_no_host() -> None:
    def far(members: tuple[int, ...], step: int) -> float:
        return 3.0 if len({rank // (RANKS // 2) for rank in members}) > 1 else 1.0

    assert not [one for one in diagnose(traced(far)).verdicts if one.confidence >= 0.5]


def test_where_hosts_are_unknown_none_is_blamed() -> None:
    job = traced(through(*HERE, since=0))
    window = Window(Job("wired", RANKS, groups=job.job.groups), job.tables)
    assert not [one for one in diagnose(window).verdicts if one.ranks]


def test_sends_that_share_a_kernel_with_those_to_another_rank_do_not_count() -> None:
    """Rank 1 sends on and receives in one kernel; rank 0 sends and receives from the same rank."""
    rows = [(0, "Send", 1, START), (0, "Recv", 1, START), (1, "Send", 2, START),
            (1, "Recv", 0, START), (1, "Send", 0, START + 9),
            (2, "AllReduce", -1, START)]  # fmt: skip
    shared = _shares_kernel(a_table("rank op peer start_ns", rows))
    assert np.flatnonzero(shared).tolist() == [2, 3]


def test_a_host_that_nothing_recorded_passes_is_no_suspect() -> None:
    """Of a job of which some hosts were not recorded, only a few places have all members."""
    seen = [_Seen(frozenset({"h0", other}), (), np.zeros(0), 35e6, 35e6) for other in ("h4", "h5")]
    blamed = _blamed(["h0", "h1", "h4", "h5"], seen)
    assert blamed is not None
    assert blamed.host != "h1"
    assert blamed.bits < 0


def test_the_faster_transfers_of_each_place_are_found_whatever_their_number() -> None:
    counts = np.array([7, 1, 7, 30, 4])
    took, begins = np.random.default_rng(0).random(counts.sum()), np.cumsum(counts) - counts
    sorted_each = [
        np.sort(took[begin:][:count]) for begin, count in zip(begins, counts, strict=True)
    ]
    wanted = [each[int(FAST * each.size)] for each in sorted_each]
    assert _fast(took, begins, counts).tolist() == wanted

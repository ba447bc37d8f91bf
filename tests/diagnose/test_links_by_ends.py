"""Slow links of which only starts and ends of operators are known: no calls, bytes or kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.decide.same_loss import is_behind
from stepscope.diagnose.finding import Slowdown, SlowLink
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.network.unknown_sizes import POSITIONS, UNKNOWN, by_position, with_sizes
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.unnamed import BETWEEN
from stepscope.trace import Host
from stepscope.window import NULL, Table, Window

from .fabric import Slow, a_wired_job, healthy, through
from .jobs import a_table

LEAF = (4, 5, 6, 7)
"""The ranks under leaf 1."""


def only_times(slow: Slow, steps: int = 20, sized: bool = False, seed: int = 0) -> Window:
    """The wired job as a recorder sees it that knows neither calls nor devices."""
    window = a_wired_job(slow, steps=steps, seed=seed)
    comm = window.tables["comm_ops"]
    left_out = {"enqueue_ns"} if sized else {"enqueue_ns", "bytes"}
    known = Table({name: comm.columns[name] for name in comm.columns if name not in left_out})
    return replace(window, tables={"comm_ops": known, "steps": window.tables["steps"]})


@pytest.mark.parametrize("sized", [True, False])
def test_a_leaf_that_was_slow_from_the_first_step_on_is_named(sized: bool) -> None:
    (verdict,) = diagnose(only_times(through(*LEAF, since=0), sized=sized)).verdicts
    assert (verdict.cause, verdict.ranks) == ("network", LEAF)
    assert verdict.devices[0].name.startswith("leaf-1")


@pytest.mark.parametrize("seed", range(5))
def test_equal_links_are_silent(seed: int) -> None:
    assert not diagnose(only_times(healthy, seed=seed)).verdicts


def test_members_that_end_one_after_the_other_show_no_device() -> None:
    window = only_times(healthy)
    comm = window.tables["comm_ops"]
    end, rank = comm.ints("end_ns"), comm.ints("rank")
    apart = comm.with_column("end_ns", end + rank % 4 * 1_000_000)
    ring = replace(window, tables={**window.tables, "comm_ops": apart})
    assert [on_devices(Observed(clean(one)[0])) for one in (window, ring)] == [True, False]


def test_a_short_recording_shows_a_link_that_got_slow_in_the_middle_of_it() -> None:
    (verdict,) = diagnose(only_times(through(*LEAF, since=9), steps=16)).verdicts
    assert (verdict.ranks, verdict.steps) == (LEAF, (9, 15))


def test_what_connects_all_ranks_of_a_host_is_one_culprit() -> None:
    """Four ranks on each host; all groups within host 1 are slow."""

    def inside(members: tuple[int, ...], step: int) -> float:
        return 5.0 if {rank // 4 for rank in members} == {1} else 1.0

    window = only_times(inside)
    hosts = tuple(Host(f"h{at}", tuple(range(4 * at, 4 * at + 4))) for at in range(4))
    (verdict,) = diagnose(
        replace(window, job=replace(window.job, hosts=hosts, fabric=None))
    ).verdicts
    assert (verdict.cause, verdict.ranks) == ("network", LEAF)


def test_sizes_are_unknown_but_for_all_to_all_which_may_be_uneven() -> None:
    comm = a_table("rank op", [(0, "AllReduce"), (0, "AllToAll")])
    assert with_sizes(comm).ints("bytes").tolist() == [UNKNOWN, NULL]


def test_operators_of_unknown_size_are_alike_in_the_same_position_of_a_step() -> None:
    kind, place, column = np.array([0, 0, 0, 5]), np.array([1, 1, 1, 1]), np.array([0, 0, 1, 0])
    ended = np.array([20, 10, 30, 40])
    found = by_position(kind, np.array([True, True, True, False]), place, column, ended)
    assert found.tolist() == [POSITIONS + 1, POSITIONS, POSITIONS, 5]


@pytest.mark.parametrize("sized", [True, False])
def test_one_slow_group_is_only_a_suspect_if_it_may_move_more_data(sized: bool) -> None:
    def slow(members: tuple[int, ...], step: int) -> float:
        return 5.0 if members == (8, 9, 10, 11) else 1.0

    (verdict,) = diagnose(only_times(slow, sized=sized)).verdicts
    assert verdict.group == "dp-2"
    assert (verdict.confidence >= 0.5) is sized


def test_what_a_rank_does_behind_a_slow_link_in_no_phase_is_no_fault_of_its_own() -> None:
    link = SlowLink("slow-link", "network", "", ranks=(4, 5), steps=(0, 9), lost_fraction=0.4)
    between = Suspect(4, BETWEEN, (BETWEEN,), 0, 10, 0.2, 9, 3, 1e6, 1.2, 1)
    echo = Slowdown("transient", "compute", "", ranks=(4,), steps=(0, 9), lost_fraction=0.02,
                    suspect=between)  # fmt: skip
    large = replace(echo, lost_fraction=0.3)
    elsewhere, before = replace(echo, ranks=(6,)), replace(echo, steps=(-8, 1))
    found = [is_behind(link, one) for one in (echo, large, elsewhere, before)]
    assert found == [True, False, False, False]

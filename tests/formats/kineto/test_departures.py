"""Groups of which torch records nothing: who leaves collectives together."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.formats.kineto import read
from stepscope.window import Window

from .traces import COLLECTIVE, Event, event, launched, trace, write

REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)"
STEPS, RANKS, STEP_US = 4, 4, 100_000.0
BEHIND_US = (0.0, 0.0, 30_000.0, 30_000.0)
"""Loading data delays ranks 2 and 3, which reduce together, by as much in each step."""


SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"


def steps(
    rank: int, behind_us: float, clock_us: float, count: int = STEPS, late: range = range(STEPS)
) -> list[Event]:
    """Three reductions of a pair of ranks in each step, then one of all ranks."""
    found = []
    for number in range(count):
        at = clock_us + number * STEP_US
        found.append(event("user_annotation", f"ProfilerStep#{number}", at, STEP_US - 1))
        for begin in (10_000, 20_000, 30_000):
            start = at + begin + behind_us * (number in late)
            found += launched(REDUCE, start - 200 * rank, start, 2_000, 20)
        for begin in (70_000, 80_000):
            found += launched(REDUCE, at + begin, at + begin, 3_000, 24)
    return found


def window(folder: Path, behind_us: tuple[float, ...], clocks_us: tuple[float, ...]) -> Window:
    for rank in range(RANKS):
        events = steps(rank, behind_us[rank], 1e6 + clocks_us[rank])
        write(folder / f"rank{rank}.json", trace(events, rank, RANKS))
    return read(folder).window


@pytest.mark.parametrize("clocks_us", [(0.0,) * 4, (0.0, 4e5, -9e3, 7e4)])
def test_ranks_that_leave_together_are_a_group(
    tmp_path: Path, clocks_us: tuple[float, ...]
) -> None:
    """Whatever their clocks show: these are apart by one time in both streams."""
    groups = window(tmp_path, BEHIND_US, clocks_us).job.groups
    assert {group.ranks for group in groups} == {(0, 1), (2, 3), (0, 1, 2, 3)}


def test_a_rank_that_was_not_recorded_has_its_place_in_a_group(tmp_path: Path) -> None:
    for rank in range(6):
        behind_us = 30_000.0 * (rank > 2)
        if rank != 4:
            write(tmp_path / f"rank{rank}.json", trace(steps(rank, behind_us, 1e6), rank, 6))
    groups = read(tmp_path).window.job.groups
    assert {group.ranks for group in groups} == {(0, 1, 2), (3, 4, 5), (0, 1, 2, 3, 4, 5)}


def test_beside_sends_of_unknown_groups_nothing_is_divided(tmp_path: Path) -> None:
    """Stages of a pipeline are late by design."""
    for rank in range(RANKS):
        sent = [event("cpu_op", "c10d::send", 1e6 + 59_000, 50),
                *launched(SEND_RECV, 1e6 + 59_010, 1e6 + 60_000, 100, 28)]  # fmt: skip
        events = [*steps(rank, BEHIND_US[rank], 1e6), *sent]
        write(tmp_path / f"rank{rank}.json", trace(events, rank, RANKS))
    assert {group.ranks for group in read(tmp_path).window.job.groups} == {(0, 1, 2, 3)}


BARRIER = "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int)"
WHOLE = {**COLLECTIVE, "Group size": RANKS, "Process Group Ranks": "[0, 1, 2, 3]"}


def test_groups_that_are_named_tell_a_late_pair_from_a_wrong_clock(tmp_path: Path) -> None:
    """Ranks 2 and 3 come to each of their barriers as much later as if their clocks were wrong."""
    for rank in range(RANKS):
        events = []
        for number in range(STEPS):
            at = 1e6 + number * STEP_US
            events.append(event("user_annotation", f"ProfilerStep#{number}", at, STEP_US - 1))
            for begin in (10_000, 20_000, 30_000):
                start = at + begin + BEHIND_US[rank]
                events += launched(BARRIER, start - 200 * rank, start, 2_000, 7)
            events += launched(REDUCE, at + 70_000, at + 70_000, 3_000, 24, WHOLE)
        write(tmp_path / f"rank{rank}.json", trace(events, rank, RANKS))
    groups = read(tmp_path).window.job.groups
    assert {group.ranks for group in groups} == {(0, 1), (2, 3), (0, 1, 2, 3)}


def test_ranks_that_all_leave_together_stay_one_group(tmp_path: Path) -> None:
    groups = window(tmp_path, (0.0,) * 4, (0.0,) * 4).job.groups
    assert {group.ranks for group in groups} == {(0, 1, 2, 3)}


def test_a_pause_in_one_step_of_many_shows_who_left_without_the_others(tmp_path: Path) -> None:
    """It is no damage of a few rows: no division of the ranks but one has none."""
    for rank in range(RANKS):
        events = steps(rank, BEHIND_US[rank], 1e6, count=20, late=range(7, 9))
        write(tmp_path / f"rank{rank}.json", trace(events, rank, RANKS))
    groups = read(tmp_path).window.job.groups
    assert {group.ranks for group in groups} == {(0, 1), (2, 3), (0, 1, 2, 3)}

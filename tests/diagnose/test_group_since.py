"""Groups whose data moves slower than before, where only kernels were recorded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window

from .jobs import MS, START, a_table

RANKS, STEPS, LAYERS, SINCE = 8, 60, 4, 30
EXPERTS = (tuple(range(4)), tuple(range(4, 8)))
ALL_TO_ALL, ALL_REDUCE = "ncclDevKernel_AllToAll", "ncclDevKernel_AllReduce_Sum_f16"


def a_job(
    transfer_ms: float = 10, late_ms: float = 0, recorded: Collection[int] = (),
    slow_steps: Collection[int] = range(SINCE, STEPS), everybody_ms: float = 20,
    kind: str = "ep",
) -> Window:  # fmt: skip
    """Experts of two hosts; each sends tokens to the others and gets them back, in each layer.

    Args:
        transfer_ms: of the second host's experts in the slow steps; else 10.
        late_ms: what rank 6 takes longer in each layer of the slow steps.
        recorded: all by default.
        everybody_ms: of the exchange of all ranks in the slow steps; else 20.
        kind: of the groups of one host.
    """
    random, clock = np.random.default_rng(1), np.zeros(RANKS)
    rows: list[tuple[object, ...]] = []
    begins: list[Floats] = []
    for step in range(STEPS):
        begins.append(clock.copy())
        late = late_ms * (step in slow_steps) * (np.arange(RANKS) == 6)
        for _ in range(LAYERS):
            clock = _runs(rows, step, "gemm", clock, random.normal(40, 1, RANKS) + late)
            for _ in range(2):
                for group in EXPERTS:
                    slow = step in slow_steps and group == EXPERTS[1]
                    clock = _meet(rows, step, (ALL_TO_ALL, 20), clock, group,
                                  transfer_ms if slow else 10.0)  # fmt: skip
        clock = _meet(rows, step, (ALL_REDUCE, 30), clock, tuple(range(RANKS)),
                      everybody_ms if step in slow_steps else 20.0)  # fmt: skip
    kept = set(recorded or range(RANKS))
    steps = [(rank, step, _ns(at), int((until - at) * MS))
             for step, (begin, end) in enumerate(zip(begins, [*begins[1:], clock], strict=True))
             for rank, (at, until) in enumerate(zip(begin, end, strict=True))
             if rank in kept]  # fmt: skip
    job = Job("experts", RANKS, tuple(Host(f"h{at}", EXPERTS[at]) for at in range(2)), groups=(
        *(ProcessGroup(f"{kind}-{at}", kind, EXPERTS[at]) for at in range(2)),
        *(ProcessGroup(f"edp-{at}", "edp", (at, at + 4)) for at in range(4)),
        ProcessGroup("dp-0", "dp", tuple(range(RANKS)))))  # fmt: skip
    job = replace(job, recorded_ranks=tuple(sorted(kept))) if recorded else job
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "kernels": a_table("rank step kernel stream start_ns duration_ns",
                           [row for row in rows if row[0] in kept]),
    })  # fmt: skip


def _ns(ms: float) -> int:
    return START + int(ms * MS)


def _runs(
    rows: list[tuple[object, ...]], step: int, kernel: str, clock: Floats, takes: Floats
) -> Floats:  # fmt: skip
    rows += [(rank, step, kernel, 7, _ns(clock[rank]), int(takes[rank] * MS))
             for rank in range(RANKS)]  # fmt: skip
    return clock + takes


def _meet(
    rows: list[tuple[object, ...]], step: int, lane: tuple[str, int], clock: Floats,
    group: tuple[int, ...], ms: float,
) -> Floats:  # fmt: skip
    """All members leave when the last of them has arrived, and data has moved."""
    clock, at = clock.copy(), list(group)
    end = clock[at].max() + ms
    rows += [(rank, step, *lane, _ns(clock[rank]), int((end - clock[rank]) * MS)) for rank in group]
    clock[at] = end
    return clock


def network(job: Window) -> list[Verdict]:
    return [one for one in diagnose(job).verdicts if one.cause == "network"]


def test_the_group_whose_data_moves_slower_than_before_is_named_and_not_those_who_wait() -> None:
    (one,) = network(a_job(transfer_ms=40))
    assert (one.group, one.ranks, one.kernels) == ("ep-1", (), (ALL_TO_ALL,))
    assert one.steps == (SINCE, STEPS - 1) and one.confidence > 0.5
    assert one.lost_fraction == pytest.approx(240 / 500, abs=0.05)


def test_half_of_its_members_show_it_where_one_transfer_follows_another() -> None:
    (one,) = network(a_job(transfer_ms=40, recorded=range(1, RANKS, 2)))
    assert one.group == "ep-1" and one.confidence > 0.5


def test_members_that_wait_for_a_late_one_move_data_as_fast_as_before() -> None:
    found = diagnose(a_job(late_ms=40)).verdicts
    assert [one.ranks for one in found] == [(6,)]


def test_an_unrecorded_member_that_is_late_makes_no_slow_network() -> None:
    """It is late for what it computes, and not where one transfer follows another."""
    assert all(one.confidence < 0.5 for one in network(a_job(late_ms=40, recorded=(1, 3, 5, 7))))


def test_nothing_is_said_of_a_job_that_stays_as_it_is() -> None:
    assert diagnose(a_job()).verdicts == ()


def test_a_network_that_got_slower_for_all_is_no_group_of_them() -> None:
    (one,) = network(a_job(everybody_ms=200))
    assert (one.group, one.ranks, one.steps) == (None, (), (SINCE, STEPS - 1))
    assert one.confidence > 0.5 and one.lost_fraction == pytest.approx(180 / 440, abs=0.05)


def test_a_network_that_is_slow_now_and_then_is_found_in_the_steps_that_it_holds_up() -> None:
    slow = (14, 15, 23, 31, 44, 45, 46)
    (one,) = network(a_job(transfer_ms=80, slow_steps=slow))
    assert (one.group, one.steps) == ("ep-1", (14, 46))
    assert one.lost_fraction == pytest.approx(7 * 560 / (33 * 260 + 7 * 560), abs=0.05)


def test_a_group_that_was_always_slower_than_its_equal_is_found_by_its_kernels() -> None:
    (one,) = network(a_job(transfer_ms=40, slow_steps=range(STEPS), kind="cp"))
    assert (one.group, one.ranks) == ("cp-1", ())


def test_a_rank_that_is_late_now_and_then_makes_no_slow_network() -> None:
    assert not network(a_job(late_ms=80, slow_steps=(14, 15, 23, 31, 44, 45, 46)))

"""A rank whose own time became longer is distinguished from those that wait for it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.processor.state.own_time import KEPT_SLOTS, SLOT_NS, Covered, OwnTime
from stepscope.processor.state.steps import Step
from stepscope.window import NULL

MS = 1_000_000
SECOND = 1_000 * MS
NOW_NS = 1_766_000_000 * SECOND


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class Rank:
    """One rank: its steps compute, then wait in one collective, as it is reported."""

    def __init__(self) -> None:
        self.own = OwnTime()
        self.now_ns, self.step = 0, 0

    def train(self, steps: int, compute_ms: int, wait_ms: int) -> None:
        for _ in range(steps):
            start_ns, called_ns = self.now_ns, self.now_ns + compute_ms * MS
            self.now_ns = called_ns + wait_ms * MS
            self.own.communicated(ints(NOW_NS + called_ns), ints(NOW_NS + self.now_ns))
            self.own.stepped([Step(self.step, start_ns, self.now_ns - start_ns)], NOW_NS)
            self.step += 1


def test_the_slow_rank_is_a_suspect_and_the_rank_that_waits_for_it_is_none() -> None:
    slow, waits = Rank(), Rank()
    for rank in (slow, waits):
        rank.train(400, compute_ms=90, wait_ms=10)
        assert not rank.own.has_risen
    slow.train(60, compute_ms=120, wait_ms=10)
    waits.train(60, compute_ms=90, wait_ms=40)
    assert slow.own.has_risen and not waits.own.has_risen


def test_steps_that_take_seconds_are_judged_one_by_one() -> None:
    slow, waits = Rank(), Rank()
    for rank in (slow, waits):
        rank.train(30, compute_ms=5_000, wait_ms=1_000)
    slow.train(10, compute_ms=7_000, wait_ms=1_000)
    waits.train(10, compute_ms=5_000, wait_ms=3_000)
    assert slow.own.has_risen and not waits.own.has_risen


def test_a_slow_network_makes_nobody_a_suspect() -> None:
    rank = Rank()
    rank.train(400, compute_ms=90, wait_ms=10)
    rank.train(60, compute_ms=90, wait_ms=60)
    assert not rank.own.has_risen


def test_a_rank_that_was_always_slow_has_not_become_so() -> None:
    rank = Rank()
    rank.train(400, compute_ms=180, wait_ms=1)
    assert not rank.own.has_risen


def test_nobody_is_a_suspect_where_operators_have_no_times_or_little_is_known() -> None:
    blind, new = Rank(), Rank()
    blind.own.communicated = lambda *_: None  # type: ignore[method-assign]
    for compute_ms, steps in ((90, 400), (150, 60)):
        blind.train(steps, compute_ms, wait_ms=10)
    blind.own.communicated(ints(NULL), ints(NULL))
    new.train(40, compute_ms=90, wait_ms=10)
    new.train(40, compute_ms=150, wait_ms=10)
    assert not blind.own.has_risen and not new.own.has_risen


def test_after_a_restart_the_slow_time_is_the_usual_one() -> None:
    rank = Rank()
    rank.train(400, compute_ms=90, wait_ms=10)
    rank.train(60, compute_ms=150, wait_ms=10)
    assert rank.own.has_risen
    rank.own.restart()
    rank.train(400, compute_ms=150, wait_ms=10)
    assert not rank.own.has_risen


def test_what_is_reported_late_is_not_missed_but_waited_for() -> None:
    """Operators on a device are known seconds after the step."""
    rank = Rank()
    rank.train(400, compute_ms=90, wait_ms=10)
    late = rank.own.communicated
    rank.own.communicated = lambda *_: None  # type: ignore[method-assign]
    rank.train(60, compute_ms=90, wait_ms=60)
    assert not rank.own.has_risen, "of these steps no operator is known yet"
    rank.own.communicated = late  # type: ignore[method-assign]
    ends = ints(*range(NOW_NS + 40 * SECOND + 150 * MS, NOW_NS + rank.now_ns + 1, 150 * MS))
    rank.own.communicated(ends - 60 * MS, ends)
    assert not rank.own.has_risen


def test_a_clock_that_is_set_by_years_costs_no_memory() -> None:
    covered = Covered()
    covered.add(ints(NOW_NS), ints(NOW_NS + SECOND))
    covered.add(ints(2 * NOW_NS), ints(2 * NOW_NS + SECOND))
    covered.add(ints(NOW_NS), ints(NOW_NS + SECOND))
    covered.add(ints(0), ints(3 * NOW_NS))
    edges = 3 * NOW_NS - np.array([KEPT_SLOTS + 2, KEPT_SLOTS // 2, 0]) * SLOT_NS
    before = covered.before(edges)
    assert np.isnan(before[0]) and before[2] - before[1] == KEPT_SLOTS // 2 * SLOT_NS


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 40)), max_size=30),
       st.integers(1, 30))  # fmt: skip
def test_covered_time_is_that_of_an_obvious_count(ops: list[tuple[int, int]], packet: int) -> None:
    """In slots, whatever the packets: within a packet overlaps count once; more never counts
    than a slot is long."""
    covered, obvious = Covered(), np.zeros(200)
    quarter = SLOT_NS // 4
    for first in range(0, len(ops), packet):
        some = ops[first : first + packet]
        starts = ints(*(begin * quarter for begin, _ in some))
        ends = ints(*((begin + length) * quarter for begin, length in some))
        covered.add(starts, ends)
        inside = np.zeros(800)
        for begin, length in some:
            inside[begin : begin + length] = quarter
        obvious = np.minimum(obvious + inside.reshape(200, 4).sum(axis=1), SLOT_NS)
    edges = np.arange(140) * SLOT_NS
    known = covered.before(edges)
    finite = np.isfinite(known)
    sums = np.concatenate(([0.0], np.cumsum(obvious)))[:140]
    first_known = sums[finite][:1] - known[finite][:1]
    np.testing.assert_allclose(known[finite], sums[finite] - first_known, atol=1e-3)

"""How often a processor polls: rarely enough to be cheap, often enough to be in time."""

from __future__ import annotations

import pytest

from stepscope.processor.sockets.polling import (
    BUSY_BYTES,
    BUSY_SECONDS,
    LAUNCHER_SECONDS,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    STOPPED_SECONDS,
    Load,
    tick_seconds,
)
from stepscope.processor.state.host_state import HostState
from stepscope.processor.state.steps import ON_THE_WAY_NS

from .producers import MS, OFFSET_NS, Producer

_ORDINARY_BYTES = 53_000
"""A rank's share of 1e5 kernels a minute, in half a second."""


def test_ranks_that_say_little_are_heard_together() -> None:
    load = Load()
    load.received(_ORDINARY_BYTES, now=100.0)
    assert not load.is_busy(100.0)


def test_a_rank_that_fills_its_socket_is_heard_at_once_for_a_while() -> None:
    load = Load()
    load.received(BUSY_BYTES + 1, now=100.0)
    load.received(_ORDINARY_BYTES, now=101.0)
    assert load.is_busy(101.0)
    assert not load.is_busy(100.0 + BUSY_SECONDS)


@pytest.mark.parametrize(
    ("step_seconds", "tick"),
    [(0.0, SHORTEST_SECONDS), (0.1, SHORTEST_SECONDS), (1.0, 0.2), (60.0, LONGEST_SECONDS)],
)
def test_a_tick_is_as_far_from_the_next_as_steps_are_long(step_seconds: float, tick: float) -> None:
    assert tick_seconds(step_seconds * 1e9, stopped=False, waiting=False) == pytest.approx(tick)


def test_waiting_or_stopped_ranks_are_checked_often_however_long_steps_are() -> None:
    assert tick_seconds(60e9, stopped=False, waiting=True) == SHORTEST_SECONDS
    assert tick_seconds(60e9, stopped=True, waiting=True) == STOPPED_SECONDS


def test_ticks_are_rare_if_launchers_report_stopped_processes() -> None:
    often = {"stopped": False, "waiting": False, "launchers_report": True}
    assert tick_seconds(50e6, **often) == LAUNCHER_SECONDS
    assert tick_seconds(60e9, **often) == LONGEST_SECONDS
    assert tick_seconds(50e6, **{**often, "waiting": True}) == SHORTEST_SECONDS


def test_the_shortest_step_counts_and_none_while_one_is_not_known() -> None:
    state = HostState()
    for rank, compute_ns in enumerate((990 * MS, 490 * MS)):
        producer = Producer(rank)
        for packet in (producer.hello(), producer.tell("loader", "optimizer")):
            state.packet(rank, packet, OFFSET_NS)
        assert state.shortest_step_ns() == 0
        events = [one for _ in range(12) for one in producer.iteration(compute_ns=compute_ns)]
        state.packet(rank, producer.packet(*events), OFFSET_NS)
    assert state.shortest_step_ns() == pytest.approx(500 * MS)


def test_a_waiting_rank_is_checked_before_it_has_stalled() -> None:
    """A job has stalled after half a step, and the second in which the end of an operator may be on
    its way; ticks of a fifth of a step must not miss that."""
    state, producer = HostState(), Producer()
    for packet in (producer.hello(), producer.tell("loader", "optimizer", "dp-0", "AllReduce")):
        state.packet(0, packet, OFFSET_NS)
    events = [one for _ in range(12) for one in producer.iteration(compute_ns=990 * MS)]
    state.packet(0, producer.packet(*events), OFFSET_NS)
    began = OFFSET_NS + producer.now_ns
    state.packet(0, producer.packet(producer.comm("AllReduce", 7)), began)
    assert not state.is_waiting(began + ON_THE_WAY_NS + 200 * MS)
    assert state.is_waiting(began + ON_THE_WAY_NS + 300 * MS)
    state.packet(0, producer.packet(producer.comm("AllReduce", 7, end_ns=10)), began)
    assert not state.is_waiting(began + ON_THE_WAY_NS + 300 * MS)


def test_a_rank_that_waits_for_most_of_every_step_has_not_stalled() -> None:
    """Beside a slow rank, or in a pipeline: only who waits longer than usual is looked at."""
    state, producer = HostState(), Producer()
    for packet in (producer.hello(), producer.tell("loader", "optimizer", "dp-0", "AllReduce")):
        state.packet(0, packet, OFFSET_NS)
    for seq in range(12):
        waited = producer.comm("AllReduce", seq, end_ns=producer.now_ns + 800 * MS)
        state.packet(
            0, producer.packet(waited, *producer.iteration(compute_ns=990 * MS)), OFFSET_NS
        )
    began = OFFSET_NS + producer.now_ns
    state.packet(0, producer.packet(producer.comm("AllReduce", 12)), began)
    assert not state.stalled(began + ON_THE_WAY_NS + 950 * MS)
    assert state.stalled(began + ON_THE_WAY_NS + 1050 * MS)


def test_one_long_wait_does_not_raise_the_limit_for_long() -> None:
    state, producer = HostState(), Producer()
    for packet in (producer.hello(), producer.tell("loader", "optimizer", "dp-0", "AllReduce")):
        state.packet(0, packet, OFFSET_NS)
    for seq in range(12):
        lasted = 60_000 * MS if seq == 5 else 10 * MS
        waited = producer.comm("AllReduce", seq, end_ns=producer.now_ns + lasted)
        state.packet(
            0, producer.packet(waited, *producer.iteration(compute_ns=990 * MS)), OFFSET_NS
        )
    began = OFFSET_NS + producer.now_ns
    state.packet(0, producer.packet(producer.comm("AllReduce", 12)), began)
    assert not state.stalled(began + ON_THE_WAY_NS + 1950 * MS)
    assert state.stalled(began + ON_THE_WAY_NS + 2050 * MS)

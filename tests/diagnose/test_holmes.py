"""Holmes by name: algorithm 1 and its index of devices, by hand and on a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.detect.published.holmes import irregular_steps
from stepscope.diagnose.detect.published.holmes_devices import (
    Irregularity,
    NamedDevice,
    decay,
    index,
    irregularity_rate,
)
from stepscope.diagnose.detect.published.holmes_search import Root, Search
from stepscope.diagnose.graph.abnormal import Usual
from stepscope.diagnose.graph.comm_graph import CommGraph
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.diagnose.views.timeline import Timeline
from stepscope.evaluate.layouts import job
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.window import Ints, Strings

Part = tuple[int, str, int, int, int]
"""Rank, operator, its number, arrival and end."""


def a_graph(*steps: Sequence[Part]) -> CommGraph:
    """A graph of the same parts in each step, each step a thousand units after the one before."""
    ranks = max(part[0] for part in steps[0]) + 1
    parts = [sorted(step, key=lambda part: (part[0], part[2])) for step in steps]
    begins = 1000 * np.arange(len(steps))
    line = Timeline(np.arange(ranks), np.arange(len(steps)), np.tile(begins, (ranks, 1)),
                    np.full((ranks, len(steps)), 1000.0))  # fmt: skip

    def matrix(at: int) -> Ints:
        return np.array([[one[at] for one in step] for step in parts], np.int64).T + begins

    names: list[str | None] = [part[1] for part in parts[0]]
    rank, number = (np.array([one[at] for one in parts[0]]) for at in (0, 2))
    return CommGraph(line, np.arange(len(steps)), rank, number, Strings.of(names),
                     Strings.of(["g"] * len(names)), np.full(len(names), -1), matrix(3),
                     matrix(4), np.full(len(names), 1024))  # fmt: skip


def figure_12(late: int) -> list[Part]:
    """Operators 0 to 2 of three ranks; rank 2 arrives late at operator 2."""
    early = [(rank, "AllReduce", 0, 100, 110) for rank in range(3)]
    early += [(rank, "AllReduce", 1, 200, 210) for rank in range(3)]
    last = [(rank, "AllReduce", 2, 300 + late * (rank == 2), 310 + late) for rank in range(3)]
    return [*early, *last]


def test_of_a_group_the_normal_member_is_followed_and_it_computed() -> None:
    """Entries of rank 2 are 6, 7, 8; operator 2 is abnormal on ranks 0 and 1."""
    graph = a_graph(figure_12(0), figure_12(400))
    abnormal = np.zeros((9, 2), np.bool_)
    abnormal[[2, 5], 1] = True
    assert Search(graph, abnormal, 1).run(0) == {Root(7, "compute", 2)}


def test_printed_only_the_operator_just_before_decides() -> None:
    graph = a_graph(figure_12(0), figure_12(400))
    abnormal = np.zeros((9, 2), np.bool_)
    abnormal[[2, 5, 0, 3, 6], 1] = True  # operator 0 is abnormal on all ranks, 1 on none
    assert Root(7, "compute", 2) in Search(graph, abnormal, 1).run(0)


def test_if_all_members_are_abnormal_it_is_the_network() -> None:
    graph = a_graph(figure_12(0), figure_12(400))
    abnormal = np.zeros((9, 2), np.bool_)
    abnormal[[2, 5, 8], 1] = True
    assert Search(graph, abnormal, 1).run(0) == {Root(2, "network", 2)}


def test_after_a_receive_nothing_abnormal_means_no_root_at_all() -> None:
    pair = [(0, "Recv", 0, 100, 500), (1, "Send", 0, 490, 500)]
    graph = a_graph(pair)
    assert Search(graph, np.array([[True], [False]]), 0).run(0) == set()
    assert Search(graph, np.array([[True], [True]]), 0).run(0) == {Root(0, "network", 0)}


def test_definition_1_counts_the_average_with_the_irregular_step() -> None:
    """The mean of nine times 10 and once 13 is 10.3; 1.1 times that is 11.33."""
    assert irregular_steps(np.array([10.0] * 9 + [13.0])).tolist() == [False] * 9 + [True]
    half = np.array([10.0] * 5 + [12.0] * 5)
    assert not irregular_steps(half).any(), "12 is less than 1.1 times 11"


def test_the_rate_is_a_correlation_and_the_decay_of_an_adapter_is_negative() -> None:
    assert irregularity_rate(np.array([1.0, 2, 3]), np.array([10.0, 20, 30])) == pytest.approx(1)
    assert irregularity_rate(np.array([2.0, 2, 2]), np.array([10.0, 20, 30])) == 0
    assert decay(1) == pytest.approx(math.log(1e-6))
    assert decay(2) == pytest.approx(math.log(1 + 1e-6) / 2)
    assert decay(4) == pytest.approx(math.log(3) / 4, rel=1e-5)


def test_the_index_by_hand() -> None:
    """A GPU in two irregularities of R 0.9 and 0.6, a switch of four adapters in one of 0.8."""
    gpu, switch = NamedDevice("gpu", "g", 0), NamedDevice("switch", "s", 4)
    found = index([Irregularity(0.9, [gpu]), Irregularity(0.6, [gpu]), Irregularity(0.8, [switch])])
    damped = 0.8 * math.log(3 + 1e-6) / 4
    assert found[gpu] == pytest.approx((1.5 + 0.587) / (1.5 + damped + 1))
    assert found[switch] == pytest.approx((damped + 0.048) / (1.5 + damped + 1))


def test_an_increase_counts_in_relation_to_the_step() -> None:
    """Section 4.2.2: from 0.02 to 1 ms is nothing in 7 s; from 1 to 3 s is."""
    usual = np.array([[0.02e6] * 9, [1e9] * 9])
    rule = Usual.of(usual, 7e9)
    assert rule.abnormal(np.array([[1e6], [3e9]])).ravel().tolist() == [False, True]


def test_as_published_the_search_can_stop_at_an_innocent_rank() -> None:
    """Rank 37 is three times as slow; rank 4 had an operator of usual length when it was late."""
    scenario = replace(job(64, 40, 0, 3, "zero1"),
                       faults=(parse_fault("gpu_slow:rank=37,factor=3,from=32"),))  # fmt: skip
    window = simulate(scenario).window
    assert diagnose(window, Settings(methods=("holmes-published",))).verdicts[0].ranks == (4,)
    assert diagnose(window).verdicts[0].ranks == (37,)

"""The trace graph of pipelines by hand, and VenusTrace's algorithms 2 and 3 on it."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stepscope.diagnose.detect.published.venustrace import expected_ns
from stepscope.diagnose.graph.pass_graph import (
    Topology,
    by_numpy,
    pass_graphs,
    slacks,
    walk,
)
from stepscope.diagnose.graph.passes import layout_of, read_passes
from stepscope.diagnose.numeric import compiled
from stepscope.diagnose.observed import Observed
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Noise, Parallelism, Scenario
from stepscope.trace import FORWARD, Host, Job, ProcessGroup
from stepscope.window import Window

# 1F1B, two stages, two microbatches; forward takes 1, backward 2:
#
#     time    0   1   2   3   4   5   6   7   8   9
#     stage 0 |F0 |F1 |       |B0     |   |B1     |
#     stage 1     |F0 |B0     |F1 |B1     |
NAMES = ("0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1")
LASTED = (1, 1, 2, 2, 1, 2, 1, 2)
BEFORE = {1: (0,), 2: (1, 5), 3: (2, 7), 4: (0,), 5: (4,), 6: (5, 1), 7: (6,)}
"""The rank's last pass, then the input."""
ORDER = (0, 4, 1, 5, 6, 2, 7, 3)


def topology() -> Topology:
    before = np.full((8, 2), -1)
    for node, ones in BEFORE.items():
        before[node, : len(ones)] = ones
    return Topology(np.array(ORDER), before)


def test_earliest_starts_and_slacks_of_a_pipeline_worked_out_by_hand() -> None:
    lasted = np.array(LASTED)[:, None, None]
    for found in (slacks(topology(), lasted, np.zeros(0, np.int64)),
                  by_numpy(topology(), lasted, np.zeros(0, np.int64))):  # fmt: skip
        assert found.start_ns[:, 0].tolist() == [0, 1, 4, 7, 1, 2, 4, 5]
        assert found.slack_ns[:, 0].tolist() == [0, 2, 1, 0, 0, 0, 0, 0]
        assert found.end_ns.tolist() == [9]


def test_algorithm_3_as_printed_finds_no_critical_node() -> None:
    """Line 3 takes the last predecessor instead of the latest; sinks keep LST = infinity."""
    earliest, end, latest = [0] * 8, [0] * 8, [inf] * 8
    for node in ORDER:
        for one in BEFORE.get(node, ()):
            earliest[node] = max(earliest[one], end[one])  # EST_i = max(EST_j, EFT_j)
        end[node] = earliest[node] + LASTED[node]
    for node in reversed(ORDER):
        for after in (one for one in ORDER if node in BEFORE.get(one, ())):
            latest[node] = min(latest[node], latest[after] - LASTED[node])
    assert dict(zip(NAMES, earliest, strict=True))["1F1"] == 2, "4 by hand"
    assert latest == [inf] * 8


def test_algorithm_2_follows_a_ramp_without_an_alarm_but_not_a_jump() -> None:
    """Each iteration is 4 % longer, so it is similar to the last one, to 10.5 times the first."""
    ramp = 1.04 ** np.arange(61)[None, :]
    expected = expected_ns(ramp.astype(np.float64))
    assert np.isinf(expected[0, :2]).all()
    assert ramp[0, -1] > 10
    assert (ramp <= 1.5 * expected).all()
    jump = np.array([[10.0, 10.0, 10.2, 20.0, 20.0]])
    assert expected_ns(jump)[0, 2:].tolist() == [10.0, 10.2, 10.2]


def test_a_step_is_as_long_as_its_last_replica_and_leads_keep_observed_times() -> None:
    lasted = np.stack([np.array(LASTED), 2 * np.array(LASTED)], axis=1)[:, None, :]
    lead = np.zeros((8, 2), np.int64)
    lead[6] = 3  # the second microbatch comes late to stage 1
    found = slacks(topology(), lasted, lead)
    assert found.end_ns.tolist() == [12, 21]
    assert found.slack_ns[1].tolist() == [2, 4], "a lead comes after both inputs"


@settings(max_examples=60, deadline=None)
@given(some.integers(1, 12), some.integers(1, 3), some.integers(1, 5), some.integers(0, 2**31))
def test_both_walks_agree(passes: int, members: int, lanes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    before = np.array([[random.integers(-1, at) for _ in range(2)] for at in range(passes)])
    lasted = random.integers(0, 10**9, (passes, members, lanes))
    lead = random.integers(0, 10**6, (passes, lanes))
    one = Topology(np.arange(passes), before)
    for left, right in zip(vars(slacks(one, lasted, lead)).values(),
                           vars(by_numpy(one, lasted, lead)).values(), strict=True):  # fmt: skip
        assert (left == right).all()


def test_the_compiled_walk_refuses_what_is_no_order() -> None:
    assert walk(np.array([[1, -1], [0, -1]])) is None
    if compiled.pass_slacks is None:
        pytest.skip("not compiled")
    two = np.array([[1, -1], [-1, -1]], np.int32).tobytes()
    for order, lanes in (((0, 1), 1), ((0, 0), 1), ((1, 2), 1), ((1, 0), 3)):
        with pytest.raises(ValueError, match=r"pass|order|lanes"):
            compiled.pass_slacks(
                np.array(order, np.uint32).tobytes(), two, bytes(16), b"", 1, lanes
            )


@pytest.mark.parametrize(("chunks", "length"), [(1, 22), (2, 38)])
def test_the_observed_order_gives_the_observed_times(chunks: int, length: int) -> None:
    """Whatever the schedule: one critical path has every microbatch of one stage in it."""
    job = simulate(Scenario(ranks=16, steps=8, noise=Noise.none(),
                            parallelism=Parallelism(pp=4, chunks=chunks))).window  # fmt: skip
    line = Observed(job).line
    passes = read_passes(job, line, np.arange(len(line.steps)))
    assert passes is not None
    assert (passes.stages, passes.microbatches, passes.layout.replicas) == (4 * chunks, 8, 4)
    (graph,) = pass_graphs(passes)
    found = graph.slacks()
    last = passes.end_ns[graph.vertices][:, :, graph.replica, graph.column].max(axis=(0, 1))
    began = line.begins_ns[passes.columns[graph.column]]
    assert (found.end_ns == last - began).all()
    assert found.slack_ns.min() == 0
    critical = graph.vertices[found.slack_ns[:, 0] == 0].tolist()
    assert len(critical) >= length
    lane_starts = passes.start_ns[:, :, graph.replica[0], graph.column[0]].min(axis=1)
    first = min(critical, key=lambda one: lane_starts[one])
    assert (passes.kind(first), passes.stage(first)) == (FORWARD, 0)


def test_ranks_that_share_layers_are_members_of_one_replica() -> None:
    groups = tuple(ProcessGroup(f"pp-{at}", "pp", (at, at + 4)) for at in range(4))
    layers = tuple(ProcessGroup(f"tp-{at}", "tp", (at, at + 1)) for at in (0, 2, 4, 6))
    job = Job("layers", 8, (Host("h", tuple(range(8))),), groups=(*groups, *layers))
    layout = layout_of(Window(job))
    assert layout is not None
    assert layout.ranks.tolist() == [[[0, 4], [2, 6]], [[1, 5], [3, 7]]]
    odd = (*groups[:3], ProcessGroup("pp-3", "pp", (3,)))
    assert layout_of(Window(Job("odd", 8, groups=odd))) is None

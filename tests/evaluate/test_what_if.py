"""What diagnosis says a culprit costs, beside what the simulator knows that it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.decide import cost
from stepscope.diagnose.decide.held_up import graph_about
from stepscope.diagnose.decide.savings import savings
from stepscope.diagnose.detect.ranks.straggler_ranks import Stragglers
from stepscope.diagnose.graph import step_graph
from stepscope.diagnose.method import SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.gauges import by_rank
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Simulation, simulate
from stepscope.simulate.parse import from_values, parse_fault


def played(fault: str, **values: Any) -> Simulation:
    return simulate(from_values({"name": "what-if", "ranks": 32, "steps": 40, **values,
                                 "fault": [parse_fault(fault)]}))  # fmt: skip


@pytest.mark.parametrize(
    "fault", ["gc:ranks=9,from=12", "gpu_slow:rank=9,factor=1.6,only=backward-compute,seen=no"]
)
def test_a_culprit_costs_what_the_job_would_be_shorter_without_it(fault: str) -> None:
    """Of inputs of any length, bubbles swallow a part of it that differs from step to step. What
    the lengths themselves cost may be said as well."""
    sim = played(fault, workload={"kind": "variable"}, parallelism={"tp": 2, "pp": 4})
    (truth,) = sim.truth.faults
    (found,) = (one for one in diagnose(sim.window).verdicts if one.cause != "load_imbalance")
    assert found.ranks == (9,) and found.lost_fraction is not None
    assert found.lost_fraction == pytest.approx(truth.lost_fraction, rel=0.25)


def test_the_part_that_a_culprit_holds_up_loses_what_the_whole_graph_loses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With room for eight of its steps, most fit once others' own operators are left out."""
    sim = played("gpu_slow:rank=9,factor=1.6", workload={"kind": "variable"},
                 parallelism={"tp": 2, "pp": 4, "microbatches": 16})  # fmt: skip
    whole = Observed(by_rank(clean(sim.window)[0]))
    found = Stragglers().detect(whole, SoFar())
    culprits = [one.suspect for one in found if one.suspect is not None]
    rows = np.array([one.row for one in culprits])
    every = cost.what_if(whole, culprits)
    comm = whole.window.tables["comm_ops"]
    monkeypatch.setattr(step_graph, "MOST_ROWS", len(comm) * 8 // len(whole.line.steps))
    part = Observed(whole.window)
    graph, small = graph_about(part, rows), part.graph
    assert graph is not None and small is not None
    columns = graph.lanes.columns
    assert small.lanes.columns.size == 8 and columns.size > 24
    healing = cost._Healing(part, savings(part, culprits), np.zeros(len(part.line.steps)))
    lost = healing.lost_ns(healing.savings)
    assert np.allclose(lost[columns], every.lost_ns[columns], rtol=0.01, atol=1e6)

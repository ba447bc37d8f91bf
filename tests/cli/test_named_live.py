"""A job written into its folder while somebody follows it: its fault is named while it runs.

Time is the job's own: nobody sleeps, and what is found depends on no machine's speed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli.follow import Watch
from stepscope.cli.streaming import StoreSink
from stepscope.evaluate.score import names_culprit
from stepscope.simulate import parse_fault
from stepscope.simulate.live import slices
from stepscope.simulate.parse import from_values
from stepscope.simulate.run import prepare, truth_of
from stepscope.store import Location
from stepscope.store.history import LEAST_STEPS, History

EPOCH_NS = 1_766_000_000_000_000_000
GOAL_NS = 90 * 10**9
ONSET = 16
"""The first step that is not as it should be."""
FEW = History(rows=1)
"""As of a job so large that there is room for no more than must be kept."""
FAULTS = ("gpu_slow:rank=21,factor=1.5", "nic_slow:rank=20,factor=8", "hang:rank=21")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_while_the_job_runs(tmp_path: Path, fault: str) -> None:
    values = {"ranks": 32, "steps": 60, "detail": "brief", "parallelism": {"tp": 4, "pp": 2}}
    scenario = replace(from_values(values), faults=(parse_fault(f"{fault},from={ONSET}"),))
    (culprit,) = truth_of(scenario).faults
    job = prepare(scenario).world.cluster.job()
    into = StoreSink(job, Location.parse(str(tmp_path / "job")), None, 5.0)
    watch = Watch(str(tmp_path / "job"), FEW)
    onset_ns = 0
    for number, one in enumerate(slices(scenario, EPOCH_NS)):
        into.take(one, EPOCH_NS + one.until_ns)
        onset_ns = one.until_ns if number == ONSET - 1 else onset_ns
        found = watch.look() if number % 6 == 5 else None
        if found is not None and found.verdicts:
            break
    assert found is not None and names_culprit(culprit, job, found.verdicts[0])
    assert one.until_ns - onset_ns <= GOAL_NS
    assert found.steps is not None and found.steps[1] - found.steps[0] <= LEAST_STEPS + 6

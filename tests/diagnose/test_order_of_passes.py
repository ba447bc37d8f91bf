"""Stages of a pipeline that no job.json lists, by the order in which ranks pass through a step."""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.trace import Job
from stepscope.window import Window


def timers_of(parallelism: Parallelism, fault: str = "") -> Window:
    """Steps and passes alone, of a job of which nothing but its hosts is known."""
    faults = (parse_fault(fault),) if fault else ()
    scenario = Scenario(ranks=16, steps=30, parallelism=parallelism, faults=faults,
                        detail="normal")  # fmt: skip
    whole = simulate(scenario).window
    phases = whole.tables["phases"]
    passes = phases.take(phases.strings("phase").equals(
        "data-load", "forward-compute", "backward-compute", "optimizer"))  # fmt: skip
    job = replace(Job("bare", 16), hosts=whole.job.hosts)
    return Window(job, {"steps": whole.tables["steps"], "phases": passes})


def test_ranks_that_turn_round_after_different_numbers_of_passes_are_stages() -> None:
    found = clean(timers_of(Parallelism(pp=4, microbatches=8)))[0]
    assert found.job.parallelism["pp"] == 4


def test_replicas_that_accumulate_gradients_are_no_stages() -> None:
    found = clean(timers_of(Parallelism(microbatches=4)))[0]
    assert "pp" not in found.job.parallelism


def test_gaps_between_the_passes_of_a_stage_accuse_nobody() -> None:
    window = timers_of(Parallelism(pp=4, microbatches=8), "gpu_slow:rank=5,factor=1.5")
    accused = [one.ranks for one in diagnose(window).verdicts if not one.is_suspect]
    assert accused in ([], [(5,)])

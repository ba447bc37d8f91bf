"""Stages of a pipeline that no job.json lists, by the order in which ranks pass through a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.order_of_passes import with_stages
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.trace import Job
from stepscope.window import Strings, Table, Window

from .jobs import MS, START, a_table


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


@pytest.mark.parametrize(("orders", "stages"), [
    (("FFBFBB", "FBFBFB"), 2), (("FFBFBB", "FFBFBB"), 1), (("FFBFBB", "FFFBB"), 1),
], ids=["a pipeline", "replicas", "unequal work"])  # fmt: skip
def test_kernels_alone_show_stages_by_the_order_in_which_ranks_run_as_many(
    orders: tuple[str, str], stages: int
) -> None:
    rows = [(rank, 0, {"F": "forward", "B": "backward"}[one], 7, START + at * MS,
             MS * (1 + (one == "B")))
            for rank in range(4) for at, one in enumerate(orders[rank // 2])]  # fmt: skip
    rows += [(rank, 0, "ncclDevKernel_AllReduce", 20, START + 9 * MS, 9 * MS) for rank in range(4)]
    kernels = a_table("rank step kernel stream start_ns duration_ns", rows)
    found = with_stages(Window(Job("kernels", 4), {"kernels": kernels}))
    assert found.job.parallelism.get("pp", 1) == stages


def test_kernels_without_names_have_no_order() -> None:
    rows = [(rank, 1, "", 7, START + rank, MS) for rank in range(4)]
    kernels = a_table("rank step kernel stream start_ns duration_ns", rows)
    columns = {**kernels.columns, "kernel": Strings.of([None] * len(kernels))}
    window = Window(Job("nameless", 4), {"kernels": Table(columns)})
    assert with_stages(window) is window

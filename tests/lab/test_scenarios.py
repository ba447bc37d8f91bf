"""Scenarios are drawn by seed: the same seed the same job, and every fault has its place in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import gpu, lifted, scenarios, shapes, truth
from lab.faults import OnHost, When
from lab.jobs import conditions
from lab.scenarios import Case
from stepscope.cli.writing import write_window
from stepscope.store import JobReader, Location
from stepscope.trace import Job
from stepscope.window import Window
from tests.diagnose.jobs import a_table

CASES = [scenarios.case(name, seed) for name in scenarios.names() for seed in range(4)]


def test_a_seed_says_everything() -> None:
    again = [scenarios.case(name, seed) for name in scenarios.names() for seed in range(4)]
    assert again == CASES


def test_on_one_gpu_there_are_four_ranks_and_no_faults_of_hosts() -> None:
    fitted = gpu.cases([], [0, 1])
    assert {case.job.world for case in fitted} == {gpu.RANKS}
    assert {case.family for case in fitted} >= {"healthy", "compute", "loader", "code", "hang"}
    assert not any(isinstance(fault, OnHost) for case in fitted for fault in case.faults)
    for fault in (fault for case in fitted for fault in case.faults):
        assert fault.when.first < 80 and (fault.when.last or 0) <= 120


def test_a_third_is_held_out() -> None:
    share = sum(case.held_out for case in CASES) / len(CASES)
    assert share == pytest.approx(1 / 3, abs=0.08)


def test_culprits_are_ranks_of_the_job() -> None:
    for case in CASES:
        for fault in case.faults:
            for ranks in fault.expected(case.job).ranks:
                assert set(ranks) <= set(range(case.job.world)), case.name


def test_faults_begin_and_end_within_the_job() -> None:
    for case in CASES:
        for fault in case.faults:
            assert 0 <= fault.when.first < case.job.steps - 20, case.name
            assert fault.when.last is None or fault.when.last < case.job.steps, case.name


def test_a_healthy_twin_differs_by_the_fault_alone() -> None:
    case = scenarios.case("own-pipeline-heavy-stage", 0)
    twin = scenarios.twin(case)
    assert twin.job.name == case.job.name
    assert twin.faults == ()
    assert "heavy-stage" in case.job.options
    assert "heavy-stage" not in twin.job.options


def test_the_twin_of_a_heavy_stage_has_as_many_layers_spread_evenly() -> None:
    case = scenarios.case("own-pipeline-heavy-stage", 0)
    healthy = scenarios.healthy("own-pipeline", int(case.job.name.rpartition("-")[2]))
    layers, more = (int(case.job.options[name]) for name in ("layers", "heavy-layers"))
    longer = float(scenarios.twin(case).job.options["layer-ms"])
    assert longer == pytest.approx(
        float(healthy.job.options["layer-ms"]) * (layers + more) / layers
    )
    assert scenarios.twin(case).name == "even-own-pipeline-heavy-stage-0"


def test_every_kind_of_job_has_several_shapes() -> None:
    for kind in shapes.KINDS:
        drawn = {str(shapes.job(kind, number)) for number in range(shapes.SHAPES)}
        assert len(drawn) == shapes.SHAPES


def test_conditions_reach_the_ranks_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"what": "device", "ranks": [2], "first": 10, "last": 19, "factor": 3.0}]
    (tmp_path / "conditions.json").write_text(json.dumps(rows))
    monkeypatch.setenv("LAB_CONDITIONS", str(tmp_path / "conditions.json"))
    factors = []
    for rank, step in ((2, 9), (2, 10), (2, 19), (2, 20), (1, 10)):
        mine = conditions.read(rank)
        mine.step = step
        factors.append(mine.factor("device"))
    assert factors == [1.0, 3.0, 3.0, 1.0, 1.0]


def recorded(folder: Path, step_ns: list[int]) -> Path:
    folder.mkdir(exist_ok=True)
    lines = [f"{step},0,{ns}\n" for step, ns in enumerate(step_ns)]
    (folder / "steps.csv").write_text("".join(lines))
    return folder


def midway(seed: int = 0) -> Case:
    """The first case whose fault begins in the middle and lasts."""
    case = scenarios.case("fsdp-device", seed)
    when = case.faults[0].when
    return case if when.first > 0 and when.last is None else midway(seed + 1)


def test_the_cost_of_a_fault_is_that_of_its_steps(tmp_path: Path) -> None:
    case = midway()
    first = case.faults[0].when.first
    times = [100] * first + [150] * (case.job.steps - first)
    found = truth.write(case, recorded(tmp_path / "job", times), None)
    assert found["needed_ns"] == 100
    assert found["lost"] == found["lost_mean"] == pytest.approx(1 / 3, abs=1e-3)
    assert found["worth"]
    assert found["expect"]["steps"] == [first, case.job.steps - 1]
    assert json.loads((tmp_path / "job" / "truth.json").read_text())["lost"] == found["lost"]


def test_a_cost_that_chance_may_have_made_does_not_count(tmp_path: Path) -> None:
    case = midway()
    first = case.faults[0].when.first
    rest = case.job.steps - first
    scattered = [(100, 160)[step % 2] for step in range(first)]
    much = scattered + [(110, 170)[step % 2] for step in range(rest)]
    assert truth.write(case, recorded(tmp_path / "much", much), None)["worth"]
    mixed = scattered + [(110, 140)[step % 2] for step in range(rest)]
    found = truth.write(case, recorded(tmp_path / "mixed", mixed), None)
    assert found["lost"] > truth.WORTH
    assert not found["worth"]


def test_a_fault_from_the_start_is_compared_with_the_healthy_twin(tmp_path: Path) -> None:
    case = scenarios.case("own-pipeline-heavy-stage", 0)
    assert truth.needs_twin(case)
    twin = recorded(tmp_path / "twin", [98] * case.job.steps)
    truth.write(scenarios.twin(case), twin, None)
    assert truth.is_recorded(scenarios.twin(case), twin)
    assert not truth.is_recorded(case, twin)
    found = truth.write(case, recorded(tmp_path / "job", [100] * case.job.steps), twin)
    assert found["lost"] == pytest.approx(0.02, abs=1e-3)
    assert not found["worth"]


def test_a_fault_from_the_start_is_lifted_at_the_end(tmp_path: Path) -> None:
    case = since_start()
    run = lifted.lifted(case)
    last = case.job.steps - 1
    assert run.job.steps == case.job.steps + lifted.STEPS
    assert [fault.when for fault in run.faults] == [When(0, last)]
    job = recorded(tmp_path / "job", [200] * case.job.steps + [100] * lifted.STEPS)
    window = healthy_window(run.job.steps)
    write_window(window, Location.parse(str(job / "job")), "test")
    lifted.cut(job, case.job.steps)
    read = JobReader(str(job / "job")).refresh()
    assert read.tables["steps"].ints("step").max() == last
    found = truth.write(case, job, None)
    assert (found["steps"], found["needed_ns"], found["lost"]) == (case.job.steps, 100, 0.5)


def since_start(seed: int = 0) -> Case:
    """The first case whose fault is there from the start."""
    case = scenarios.case("fsdp-device", seed)
    return case if lifted.can_be(case) else since_start(seed + 1)


def healthy_window(steps: int) -> Window:
    rows = [(0, step, 1_000 + 100 * step, 90) for step in range(steps)]
    return Window(Job("job", 1), {"steps": a_table("rank step start_ns duration_ns", rows)})


def test_what_is_wrong_from_how_a_job_was_started_cannot_be_lifted() -> None:
    assert not lifted.can_be(scenarios.case("own-pipeline-heavy-stage", 0))
    assert not lifted.can_be(midway())

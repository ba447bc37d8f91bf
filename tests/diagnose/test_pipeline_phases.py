"""Pipelines whose timers know receives and sends, but nobody lists their groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.durations import laid_out
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import own_time
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.timeline import timeline
from stepscope.diagnose.views.unnamed import GAPS
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Table, Window, numbered

from .jobs import MS, START, a_table

STAGES, REPLICAS, MICROBATCHES, STEPS = 4, 4, 6, 40
RANKS = STAGES * REPLICAS
FORWARD_MS, BACKWARD_MS = 20.0, 40.0
MEGATRON = {"recv": "forward-recv", "recv_grad": "backward-recv", "clip": "clip-main-grad"}
DEEPSPEED = {"recv": "pipe_recv_input", "recv_grad": "pipe_recv_grad", "clip": "step_microstep"}


@dataclass
class Pipeline:
    """One replica of a model in a 1F1B schedule."""

    replica: int
    heavy: int | None
    names: dict[str, str]
    random: np.random.Generator
    rows: list[tuple[object, ...]] = field(default_factory=list)

    def step(self, number: int, clocks: list[float]) -> None:
        """Plays a step; clocks of the stages move on."""
        todo = [_schedule(stage) for stage in range(STAGES)]
        ended: dict[tuple[str, int, int], float] = {}
        while any(todo):
            for stage, jobs in enumerate(todo):
                while jobs and self._runs(number, stage, jobs[0], clocks, ended):
                    jobs.pop(0)

    def _runs(
        self,
        number: int,
        stage: int,
        job: tuple[str, int],
        clocks: list[float],
        ended: dict[tuple[str, int, int], float],
    ) -> bool:
        kind, at = job
        before = stage - 1 if kind == "fwd" else stage + 1
        if 0 <= before < STAGES:
            if (kind, before, at) not in ended:
                return False
            arrived = max(clocks[stage], ended[kind, before, at]) + 0.05 * MS
            name = self.names["recv" if kind == "fwd" else "recv_grad"]
            self.add(number, stage, name, clocks[stage], arrived)
            clocks[stage] = arrived
        work = (FORWARD_MS if kind == "fwd" else BACKWARD_MS) * (1.5 if stage == self.heavy else 1)
        begin = clocks[stage]
        clocks[stage] += work * MS * np.exp(self.random.normal(scale=0.01))
        ended[kind, stage, at] = clocks[stage]
        self.add(number, stage, kind, begin, clocks[stage])
        return True

    def add(self, step: int, stage: int, name: str, begin: float, end: float) -> None:
        rank = stage * REPLICAS + self.replica
        self.rows.append((rank, step, name, int(begin), int(end) - int(begin)))


def _schedule(stage: int) -> list[tuple[str, int]]:
    ahead = min(MICROBATCHES, STAGES - 1 - stage)
    jobs = [("fwd", at) for at in range(ahead)]
    for at in range(MICROBATCHES):
        jobs += [("fwd", ahead + at)] if ahead + at < MICROBATCHES else []
        jobs += [("bwd", at)]
    return jobs


def a_pipeline(names: dict[str, str] = MEGATRON, heavy: int | None = None) -> Window:
    """All ranks meet in the clip of gradients, where the stage that drained first waits longest."""
    random = np.random.default_rng(0)
    pipelines = [Pipeline(at, heavy, names, random) for at in range(REPLICAS)]
    now = float(START)
    steps: list[tuple[object, ...]] = []
    for number in range(STEPS):
        clocks = [[now] * STAGES for _ in pipelines]
        for one, of_one in zip(pipelines, clocks, strict=True):
            one.step(number, of_one)
        level = max(map(max, clocks)) + 0.1 * MS
        for one, of_one in zip(pipelines, clocks, strict=True):
            for stage, begin in enumerate(of_one):
                one.add(number, stage, names["clip"], begin, level)
                one.add(number, stage, "update", level, level + 2 * MS)
        steps += [(rank, number, int(now), int(level + 2 * MS - now)) for rank in range(RANKS)]
        now = level + 2.1 * MS
    hosts = [Host(f"h{at}", tuple(range(at, at + 4))) for at in range(0, RANKS, 4)]
    return Window(Job("pipeline", RANKS, tuple(hosts)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns",
                          [row for one in pipelines for row in one.rows]),
    })  # fmt: skip


def timers(window: Window) -> Window:
    """What Megatron-LM's timers log: totals in each step, `forward-backward` before its pieces."""
    phases = window.tables["phases"]
    totals: dict[tuple[int, int, str], int] = {}
    for rank, step, code, lasted in zip(
        phases.ints("rank").tolist(), phases.ints("step").tolist(),
        phases.strings("phase").codes.tolist(), phases.ints("duration_ns").tolist(), strict=True,
    ):  # fmt: skip
        name = phases.strings("phase").values[code]
        parts = (name,) if name in ("clip-main-grad", "update") else ("forward-backward", name)
        for part in parts:
            totals[rank, step, part] = totals.get((rank, step, part), 0) + lasted
    table = a_table("rank step phase duration_ns", [(*key, value) for key, value in totals.items()])
    steps = window.tables["steps"]
    kept = {key: steps.columns[key] for key in ("rank", "step", "duration_ns")}
    return Window(window.job, {"steps": Table(kept), "phases": table})


def without_steps(window: Window) -> Window:
    return Window(window.job, {"phases": window.tables["phases"]})


def blamed(window: Window) -> list[tuple[int, ...]]:
    return [one.ranks for one in diagnose(window).verdicts]


@pytest.mark.parametrize("names", [MEGATRON, DEEPSPEED])
def test_the_stage_that_drains_first_is_not_slow_in_the_clip(names: dict[str, str]) -> None:
    assert blamed(a_pipeline(names)) == []
    assert blamed(without_steps(a_pipeline(names))) == []


def test_nor_where_only_totals_without_times_were_logged() -> None:
    found = diagnose(timers(a_pipeline()))
    assert found.verdicts == ()
    assert "phase forward-backward" in {note.method for note in found.skipped}


@pytest.mark.parametrize("stage", [1, 3])
def test_a_stage_with_more_work_is_named(stage: int) -> None:
    heavy = tuple(range(stage * REPLICAS, (stage + 1) * REPLICAS))
    for window in (a_pipeline(heavy=stage), timers(a_pipeline(heavy=stage))):
        assert blamed(window)[:1] == [heavy]


def test_gaps_are_no_own_time_where_only_the_number_of_stages_is_known() -> None:
    """Stage 0 waits between its passes for gradients, and no phase says so."""
    rows = []
    for rank in range(4):
        for step in range(30):
            begin, late = START + step * 200 * MS, 60 * MS * (rank < 2)
            for phase, at, lasted in (("forward-compute", 0, 40), ("moe_experts", 5, 20),
                                      ("backward-compute", 50, 60)):  # fmt: skip
                start = begin + at * MS + late * (at == 50)
                rows.append((rank, step, phase, start, lasted * MS, phase != "moe_experts"))
    steps = [(rank, step, START + step * 200 * MS, 190 * MS)
             for rank in range(4) for step in range(30)]  # fmt: skip
    hosts = (Host("host-000", (0, 1)), Host("host-001", (2, 3)))
    tables = {"steps": a_table("rank step start_ns duration_ns", steps),
              "phases": a_table("rank step phase start_ns duration_ns waits", rows)}  # fmt: skip
    window = Window(Job("staged", 4, hosts, {"pp": 2, "ep": 2}), tables)
    assert GAPS not in own_time(window, timeline(window)).phases
    flat = Window(Job("flat", 4, hosts, {"dp": 4}), tables)
    assert GAPS in own_time(flat, timeline(flat)).phases


def sums(window: Window) -> Window:
    """One row for each phase of a step: all of its passes together, and when the first began."""
    phases = window.tables["phases"]
    key = numbered(
        phases.ints("rank"), phases.ints("step"), phases.strings("phase").codes.astype(np.int64)
    )
    _, first = np.unique(key, return_index=True)
    lasted, began = np.zeros(first.size, np.int64), np.full(first.size, 2**62)
    np.add.at(lasted, key, phases.ints("duration_ns"))
    np.minimum.at(began, key, phases.ints("start_ns"))
    totals = phases.take(first).with_column("duration_ns", lasted).with_column("start_ns", began)
    return Window(window.job, {**window.tables, "phases": totals})


def with_stages(window: Window, tensor_parallel: bool) -> Window:
    """The same with the groups of stages, and neighbours in a stage that share each layer."""
    pipes = [ProcessGroup(f"pp-{at}", "pp", tuple(range(at, RANKS, REPLICAS)))
             for at in range(REPLICAS)]  # fmt: skip
    pairs = [ProcessGroup(f"tp-{at}", "tp", (at, at + 1)) for at in range(0, RANKS, 2)]
    groups = (*pipes, *(pairs if tensor_parallel else ()))
    return Window(replace(window.job, groups=groups), window.tables)


def test_sums_with_the_time_of_their_first_pass_leave_no_gaps() -> None:
    """The sum of all forward passes reaches into those of the backward passes."""
    window, notes = laid_out(sums(a_pipeline()))
    assert [one.method for one in notes] == ["times of phases"]
    rows = phase_rows(window, timeline(window))
    assert rows is not None and rows.made_up
    assert blamed(sums(a_pipeline())) == []


def test_sums_of_passes_contain_no_waiting_if_receives_have_sums_of_their_own() -> None:
    healthy = diagnose(with_stages(sums(a_pipeline()), tensor_parallel=False))
    assert (healthy.state, healthy.verdicts) == ("healthy", ())


def test_a_heavy_stage_of_tensor_parallel_pairs_is_named() -> None:
    """Within a pass the ranks of a pair wait only for each other."""
    heavy = with_stages(sums(a_pipeline(heavy=STAGES - 1)), tensor_parallel=True)
    (verdict,) = diagnose(heavy).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", tuple(range(12, 16)))
    assert verdict.lost_fraction == pytest.approx(0.2, abs=0.1)

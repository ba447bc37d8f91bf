"""A job of one rank has no peers: its past shows what became slow, its stacks what always was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import Window

from .jobs import LOOP, MS, START, Fault, a_job, a_table, without
from .test_waste import with_paths

STEPS, SINCE = 100, 60
PASSES = {"forward-compute": 60.0, "backward-compute": 120.0, "optimizer": 10.0}


def on_one_gpu(slower: dict[str, float], low_mhz: float = 1755.0) -> Window:
    """One rank on a GPU, some of whose phases take longer since a step.

    Args:
        low_mhz: its clock since then.
    """
    random, phases, steps, clocks, now = np.random.default_rng(1), [], [], [], START
    for step in range(STEPS):
        begin, late = now, step >= SINCE
        for phase, ms in PASSES.items():
            times = slower.get(phase, 1.0) if late else 1.0
            lasts = int(ms * times * random.normal(1, 0.01) * MS)
            phases.append((0, step, phase, now, lasts))
            now += lasts
        steps.append((0, step, begin, now - begin))
        mhz = low_mhz if late else 1755.0
        clocks.append((-1, "node", "sm_clock_mhz.gpu0", begin, mhz + 15 * random.random()))
    summaries = (0, START, 60_000 * MS, "gemm", 7, 0, 7200, 2 * MS, 3 * MS, 3 * MS)
    columns = "rank window_start_ns window_ns kernel stream cluster count p50_ns p99_ns max_ns"
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "hardware": a_table("rank host metric ts_ns value", clocks),
        "kernel_summaries": a_table(columns, [summaries]),
    }
    host = Host("node", (0,), (), tuple(f"gpu-{at}" for at in range(8)))
    return Window(Job("alone", 1, (host,)), tables)


def test_a_device_whose_clock_fell_is_named_with_its_clock() -> None:
    (verdict,) = diagnose(on_one_gpu(dict.fromkeys(PASSES, 1.4), low_mhz=1254)).verdicts
    assert (verdict.cause, verdict.ranks) == ("compute", (0,))
    assert verdict.devices[0].name == "node/gpu-0"
    assert verdict.lost_fraction == pytest.approx(1 - 1 / 1.4, abs=0.02)
    assert any("% of its earlier clock" in one.detail for one in verdict.evidence)


def test_what_leaves_the_optimizer_as_it_was_is_no_slow_device() -> None:
    """A larger batch, or longer sequences."""
    more = {"forward-compute": 1.4, "backward-compute": 1.4}
    assert not any(one.ranks for one in diagnose(on_one_gpu(more)).verdicts)


def test_a_healthy_job_of_one_rank_is_healthy() -> None:
    assert diagnose(on_one_gpu({})).verdicts == ()


def one_of(window: Window) -> Window:
    """The same job, of its first rank alone."""
    tables = {name: table.take(table.ints("rank") <= 0) for name, table in window.tables.items()}
    host = replace(window.job.hosts[0], ranks=(0,))
    return replace(window, job=replace(window.job, world_size=1, hosts=(host,)), tables=tables)


def test_a_function_of_ones_own_that_always_holds_the_only_rank() -> None:
    slow = [Fault((0,), "optimizer", 0, ms=30.0, function=LOOP)]
    (verdict,) = diagnose(one_of(with_paths(a_job(noise=0.02, faults=slow)))).verdicts
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert verdict.summary.startswith("rank 0 spends") and "all ranks" not in verdict.advice


def test_a_rise_of_the_only_rank_is_the_jobs() -> None:
    slow = [Fault((0,), "forward-compute", 100, ms=60, function="tokenize (text.py:12)")]
    (verdict,) = diagnose(one_of(without(a_job(faults=slow), "hardware"))).verdicts
    assert verdict.summary.startswith("the job takes") and verdict.ranks == ()

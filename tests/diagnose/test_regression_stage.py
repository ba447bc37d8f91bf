"""A pipeline stage of which all ranks became slower, so that none has a peer that did not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

STAGES, REPLICAS, STEPS, SPLIT, MICROBATCHES = 4, 4, 60, 30, 6
FORWARD_MS, BACKWARD_MS = 20, 40


def a_pipeline(slow: int | None, times: float = 1.5) -> Window:
    """One host per stage; steps last as long as the slowest stage's passes and a bubble."""
    random, clock = np.random.default_rng(4), START
    steps, phases = [], []
    for step in range(STEPS):
        pace = [times if stage == slow and step >= SPLIT else 1.0 for stage in range(STAGES)]
        lasted = {"forward-compute": FORWARD_MS, "backward-compute": BACKWARD_MS}
        step_ms = MICROBATCHES * 60 * max(pace) + 60 * sum(pace) - 60 * max(pace) + 10
        for stage in range(STAGES):
            for replica in range(REPLICAS):
                rank, begin = stage * REPLICAS + replica, clock
                steps.append((rank, step, clock, int(step_ms * MS)))
                for microbatch in range(MICROBATCHES):
                    for name, usual_ms in lasted.items():
                        took = int(usual_ms * pace[stage] * random.normal(1, 0.01) * MS)
                        phases.append((rank, step, name, microbatch, begin, took, 0))
                        begin += int(usual_ms * max(pace) * MS)
        clock += int(step_ms * MS)
    ranks = np.arange(STAGES * REPLICAS).reshape(STAGES, REPLICAS)
    groups = (
        *(ProcessGroup(f"pp-{at}", "pp", tuple(row)) for at, row in enumerate(ranks.T.tolist())),
        *(ProcessGroup(f"dp-{at}", "dp", tuple(row)) for at, row in enumerate(ranks.tolist())),
    )
    hosts = tuple(Host(f"h{at}", tuple(row)) for at, row in enumerate(ranks.tolist()))
    job = Job("pipeline", STAGES * REPLICAS, hosts, {"pp": STAGES, "dp": REPLICAS}, groups)
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase microbatch start_ns duration_ns wait_ns", phases),
    })  # fmt: skip


@pytest.mark.parametrize("slow", range(STAGES))
def test_the_ranks_of_a_stage_on_a_host_that_became_slow_are_named(slow: int) -> None:
    (verdict,) = diagnose(a_pipeline(slow)).verdicts
    assert verdict.ranks == tuple(range(slow * REPLICAS, (slow + 1) * REPLICAS))
    assert verdict.hosts == (f"h{slow}",)
    assert verdict.steps == (SPLIT, STEPS - 1)
    assert verdict.summary.endswith("1.5x slower than their earlier steps from step 30")


def test_nobody_is_named_where_no_stage_changed() -> None:
    assert diagnose(a_pipeline(None)).verdicts == ()


def test_replicas_that_are_no_stage_are_not_named() -> None:
    """They are at the same place of their tensor parallel groups, and share what connects them."""
    window = a_pipeline(1)
    groups = tuple(replace(one, kind="tp") if one.kind == "pp" else one
                   for one in window.job.groups)  # fmt: skip
    job = replace(window.job, groups=groups, parallelism={"tp": STAGES, "dp": REPLICAS})
    assert all(not one.ranks for one in diagnose(replace(window, job=job)).verdicts)


def operators_alone(window: Window) -> Window:
    """The same pipeline as its operators show it: each stage receives, computes and sends on."""
    phases, comm = window.tables["phases"], []
    rank, step, mb, took = (
        phases.ints(name) for name in ("rank", "step", "microbatch", "duration_ns")
    )
    work = np.zeros((STAGES * REPLICAS, STEPS, MICROBATCHES), np.int64)
    np.add.at(work, (rank, step, mb), took)
    now = np.full(STAGES * REPLICAS, START)
    for at in range(STEPS):
        for microbatch in range(MICROBATCHES):
            seq, sent = at * MICROBATCHES + microbatch, np.zeros(REPLICAS, np.int64)
            for stage in range(STAGES):
                rows = stage * REPLICAS + np.arange(REPLICAS)
                for replica, one in enumerate(rows.tolist()):
                    begin = int(now[one])
                    if stage:
                        now[one] = max(begin, int(sent[replica])) + MS
                        comm.append((one, at, f"pp-{replica}", seq, "Recv", one - REPLICAS, begin,
                                     begin, int(now[one])))  # fmt: skip
                    now[one] += work[one, at, microbatch]
                    sent[replica] = now[one]
                    if stage < STAGES - 1:
                        comm.append((one, at, f"pp-{replica}", seq, "Send", one + REPLICAS,
                                     int(now[one]), int(now[one]), int(now[one]) + MS))  # fmt: skip
        for stage in range(STAGES):
            rows = stage * REPLICAS + np.arange(REPLICAS)
            met, group = int(now[rows].max()) + 5 * MS, f"dp-{stage}"
            comm += [(one, at, group, at, "AllReduce", -1, int(now[one]), int(now[one]), met)
                     for one in rows.tolist()]  # fmt: skip
            now[rows] = met
    names = "rank step group seq op peer enqueue_ns start_ns end_ns"
    return replace(window, tables={"comm_ops": a_table(names, comm)})


def test_operators_alone_show_the_stage_that_became_slow() -> None:
    (verdict,) = diagnose(operators_alone(a_pipeline(2))).verdicts
    assert (verdict.ranks, verdict.hosts) == ((8, 9, 10, 11), ("h2",))

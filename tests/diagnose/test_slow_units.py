"""Tensor parallel groups in pipelines of which only phases, and that they wait, were recorded."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

REPLICAS, STAGES, WIDTH, MICROBATCHES, STEPS = 6, 2, 2, 4, 40
RANKS = REPLICAS * STAGES * WIDTH
FORWARD_MS, OPTIMIZER_MS, SLOW, TIMES = 10.0, 4.0, 9, 1.6


def _rank(replica: int, stage: int, member: int) -> int:
    return (replica * STAGES + stage) * WIDTH + member


def _groups() -> tuple[ProcessGroup, ...]:
    pairs = [(replica, stage) for replica in range(REPLICAS) for stage in range(STAGES)]
    tensor = [tuple(_rank(*pair, at) for at in range(WIDTH)) for pair in pairs]
    pipes = [tuple(_rank(replica, stage, at) for stage in range(STAGES))
             for replica in range(REPLICAS) for at in range(WIDTH)]  # fmt: skip
    data = [tuple(_rank(replica, stage, at) for replica in range(REPLICAS))
            for stage in range(STAGES) for at in range(WIDTH)]  # fmt: skip
    kinds = (("tp", tensor), ("pp", pipes), ("dp", data))
    return tuple(ProcessGroup(f"{kind}-{at}", kind, ranks)
                 for kind, groups in kinds for at, ranks in enumerate(groups))  # fmt: skip


def a_run(
    since: int, in_optimizer: bool = True, last_stage: float = 1.0, waits: float = 1.0,
    absent: frozenset[int] = frozenset(),
) -> Diagnosis:  # fmt: skip
    """One rank is slow since a step: its partner waits for it within each pass, and the next stage
    between them. The last stage has so many times the work of the first.

    Args:
        waits: the part of the slow rank's excess for which its partner waits within the pass.
        absent: ranks that were not recorded.
    """
    random, rows, steps, now = np.random.default_rng(1), [], [], START
    for step in range(STEPS):
        times = np.where((np.arange(RANKS) == SLOW) & (step >= since), TIMES, 1.0)
        group = times.reshape(-1, WIDTH).max(axis=1).repeat(WIDTH)
        whole = 0
        for rank in range(RANKS):
            at = now
            for one in range(MICROBATCHES):
                for name, share in (("forward-compute", 1), ("backward-compute", 2)):
                    times_of = times[rank] + waits * (group[rank] - times[rank])
                    took = int(FORWARD_MS * share * times_of * random.normal(1, 0.01) * MS)
                    took = int(took * (last_stage if rank // WIDTH % STAGES else 1.0))
                    rows.append((rank, step, "pp-recv", one, at, MS, 1))
                    rows.append((rank, step, name, one, at + MS, took, 1))
                    at += MS + took + (MS // 100 if waits < 1 else 0)  # else begins are made up
            took = int(OPTIMIZER_MS * (times[rank] if in_optimizer else 1.0) * MS)
            took = int(took * random.normal(1, 0.01))
            rows.append((rank, step, "optimizer", -1, at, took, 0))
            whole = max(whole, at + took - now)
        steps += [(rank, step, now, whole) for rank in range(RANKS)]
        now += whole
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase microbatch start_ns duration_ns waits", rows),
    }
    seen = tuple(sorted({*range(RANKS)} - absent))
    tables = {name: table.take(np.isin(table.ints("rank"), seen)) for name, table in tables.items()}
    hosts = tuple(Host(f"h{at}", tuple(range(at, at + 2 * WIDTH)))
                  for at in range(0, RANKS, 2 * WIDTH))  # fmt: skip
    job = Job("units", RANKS, hosts, groups=_groups(), recorded_ranks=seen if absent else None)
    return diagnose(Window(job, tables))


def test_a_member_that_leaves_passes_last_worked_on_after_its_partner() -> None:
    """No more than a tenth of its excess is waiting of its partner's within the pass."""
    (verdict,) = a_run(0, in_optimizer=False, waits=0.1).verdicts
    assert (verdict.ranks, verdict.is_suspect) == ((SLOW,), False)


def test_but_it_may_have_waited_for_a_partner_that_was_not_recorded() -> None:
    found = a_run(0, in_optimizer=False, absent=frozenset(range(0, RANKS, 2)))
    assert all(one.is_suspect for one in found.verdicts)


@pytest.mark.parametrize("since", [0, 15])
def test_a_member_that_is_slow_where_nobody_waits_is_the_culprit(since: int) -> None:
    (verdict,) = a_run(since).verdicts
    assert (verdict.ranks, verdict.cause) == ((SLOW,), "compute")
    assert verdict.lost_fraction == pytest.approx(0.36, abs=0.03)
    if since:
        assert verdict.steps is not None and verdict.steps[0] == since


def test_else_the_whole_group_is_a_suspect() -> None:
    (verdict,) = a_run(0, in_optimizer=False).verdicts
    assert verdict.ranks == (8, 9)
    assert verdict.confidence < 0.5
    assert "one of them is slow" in verdict.summary


def test_equal_groups_are_silent() -> None:
    assert a_run(STEPS).verdicts == ()


def test_a_stage_with_more_work_takes_longer_in_passes_that_hide_waits() -> None:
    (verdict,) = a_run(STEPS, last_stage=1.6).verdicts
    assert verdict.cause == "load_imbalance"
    assert verdict.ranks == tuple(rank for rank in range(RANKS) if rank // WIDTH % STAGES)
    assert verdict.slowdown == pytest.approx(1.6, abs=0.05)


def of_whole_steps(
    replicas: tuple[tuple[int, ...], ...], kind: str = "tp", hosts: bool = False
) -> Diagnosis:
    """Pairs of ranks that mark one forward pass per step; the first pair is slow since step 15.
    Where only some pairs exchange gradients, the second waits for it within the pass.

    Args:
        hosts: whether each pair is a host.
    """
    random, rows, steps, now = np.random.default_rng(2), [], [], START
    pairs = [(2 * at, 2 * at + 1) for at in range(REPLICAS)]
    for step in range(STEPS):
        took = random.normal(40, 0.4, REPLICAS)
        took[0] += 10 * (step >= 15)
        if len(replicas) > 1:
            took[list(replicas[0])] = took[list(replicas[0])].max()
        whole = int((took.max() + 14) * MS)
        for at, (pair, ms) in enumerate(zip(pairs, took, strict=True)):
            part = next(list(one) for one in replicas if at in one)
            done, end = now + int(ms * MS), now + int((took[part].max() + 10) * MS)
            for rank in pair:
                rows += [(rank, step, "forward-compute", -1, now, done - now, 1),
                         (rank, step, "dp-allreduce", -1, done, end - done, 1),
                         (rank, step, "optimizer", -1, end, 4 * MS, 0)]  # fmt: skip
        steps += [(rank, step, now, whole) for rank in range(2 * REPLICAS)]
        now += whole
    data = [tuple(pairs[at][member] for at in part) for part in replicas for member in (0, 1)]
    groups = tuple(ProcessGroup(f"{kind}-{at}", kind, ranks)
                   for kind, members in ((kind, pairs), ("dp", data))
                   for at, ranks in enumerate(members))  # fmt: skip
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase microbatch start_ns duration_ns waits", rows),
    }
    machines = tuple(Host(f"h{at}", pair) for at, pair in enumerate(pairs)) if hosts else ()
    return diagnose(Window(Job("whole", 2 * REPLICAS, machines, groups=groups), tables))


def test_experts_that_wait_for_each_other_on_one_host_are_a_suspect() -> None:
    (verdict,) = of_whole_steps((tuple(range(REPLICAS)),), "ep", hosts=True).verdicts
    assert (verdict.ranks, verdict.group, verdict.cause) == ((0, 1), "ep-0", "unknown")
    assert (
        verdict.is_suspect
        and "one of them, or what moves data between them, is slow" in verdict.summary
    )


def test_passes_of_whole_steps_count_where_all_groups_wait_for_all() -> None:
    (verdict,) = of_whole_steps((tuple(range(REPLICAS)),)).verdicts
    assert (verdict.ranks, verdict.is_suspect) == ((0, 1), True)


def test_and_not_where_some_wait_for_a_slow_one_and_others_do_not() -> None:
    assert of_whole_steps(((0, 1), (2, 3, 4, 5))).verdicts == ()


def test_in_pairs_other_stages_show_how_far_equal_groups_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("REPLICAS", 2), ("STAGES", 6), ("RANKS", 24)):
        monkeypatch.setattr(f"{__name__}.{name}", value)
    (verdict,) = a_run(0).verdicts
    assert verdict.ranks == (SLOW,)


def test_a_rank_that_is_slow_throughout_needs_no_whole_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 22 steps the first 2 start the job up, and windows of 3 steps hold 18 of the other 20."""
    monkeypatch.setattr(f"{__name__}.STEPS", 22)
    (verdict,) = a_run(0).verdicts
    assert verdict.ranks == (SLOW,)


NAMES = ("laden", "vorwärts", "rückwärts", "mitteln", "optimierer")


def under_other_names(clock: float) -> Diagnosis:
    """Pairs of ranks whose phases have names that say nothing; the first pair is slow, and its
    second rank's device runs at a clock of its own."""
    random, rows, steps, now = np.random.default_rng(3), [], [], START
    pairs = [(2 * at, 2 * at + 1) for at in range(REPLICAS)]
    for step in range(STEPS):
        took = random.normal(1, 0.004, REPLICAS) + 0.2 * (np.arange(REPLICAS) == 0)
        for at, pair in enumerate(pairs):
            parts = (5, 30 * took[at], 60 * took[at], 10 + 90 * (took.max() - took[at]), 4)
            rows += [(rank, step, name, -1, int(ms * MS))
                     for rank in pair for name, ms in zip(NAMES, parts, strict=True)]  # fmt: skip
        whole = int((19 + 90 * took.max()) * MS)
        steps += [(rank, step, now, whole) for rank in range(2 * REPLICAS)]
        now += whole
    groups = (
        *(ProcessGroup(f"cp-{at}", "cp", pair) for at, pair in enumerate(pairs)),
        *(ProcessGroup(f"dp-{at}", "dp", tuple(pair[at] for pair in pairs)) for at in (0, 1)),
    )
    clocks = [(rank, "", "sm_clock_mhz", time, clock if rank == 1 else 1980.0)
              for rank in range(2 * REPLICAS) for time in range(START, now, 1000 * MS)]  # fmt: skip
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase microbatch duration_ns", rows),
        "hardware": a_table("rank host metric ts_ns value", clocks),
    }
    return diagnose(Window(Job("names", 2 * REPLICAS, groups=groups), tables))


def test_a_clock_says_which_member_of_a_slow_group_it_is() -> None:
    (verdict,) = under_other_names(1600.0).verdicts
    assert (verdict.ranks, verdict.is_suspect) == ((1,), False)


def test_and_without_it_the_group_is_a_suspect_under_any_names() -> None:
    (verdict,) = under_other_names(1980.0).verdicts
    assert (verdict.ranks, verdict.is_suspect) == ((0, 1), True)

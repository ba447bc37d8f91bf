"""Logs of calls of jobs whose hosts run ahead of their devices by a few operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Table, Window

from .jobs import MS, START, a_table

RANKS, STEPS, LAYERS, AHEAD = 8, 60, 6, 7
LAUNCH_MS, LAYER_MS, TRANSFER_MS = 0.5, 8.0, 1.0
Slow = Callable[[int, int], float]


def nobody(rank: int, step: int) -> float:
    return 1.0


def a_log(device: Slow = nobody, loading_ms: Slow = nobody, skew_ms: float = -40.0) -> Window:
    """Each layer is gathered, computed and reduced. A host may be seven of these ahead of its
    device, which gathers and reduces beside its computation. Ranks 4 to 7 are on a second host.

    Args:
        device: how many times as long the work of a rank's device takes in a step.
        loading_ms: how long its host loads data before a step.
        skew_ms: how far the second host's clock is ahead.
    """
    random = np.random.default_rng(1)
    clock, computed, moved = np.zeros(RANKS), np.zeros(RANKS), 0.0
    done: list[Floats] = []
    skew = np.where(np.arange(RANKS) < 4, 0.0, skew_ms)
    rows: list[tuple[object, ...]] = []

    def launch() -> None:
        clock[:] += LAUNCH_MS * random.normal(1, 0.05, RANKS)
        if len(done) >= AHEAD:
            clock[:] = np.maximum(clock, done[-AHEAD])

    def call(step: int, operator: str, seq: int) -> None:
        launch()
        rows.extend((rank, step, "dp-0", seq, operator, -1, START + int((clock + skew)[rank] * MS))
                    for rank in range(RANKS))  # fmt: skip

    for step in range(STEPS):
        work_ms = LAYER_MS * np.array([device(rank, step) for rank in range(RANKS)])
        clock += np.array([loading_ms(rank, step) for rank in range(RANKS)])
        for layer in range(LAYERS):
            seq = 2 * (step * LAYERS + layer)
            call(step, "AllGather", seq)
            moved = max(moved, clock.max()) + TRANSFER_MS
            done.append(np.full(RANKS, moved))
            launch()
            computed = np.maximum(computed, moved) + work_ms * random.normal(1, 0.01, RANKS)
            done.append(computed.copy())
            call(step, "ReduceScatter", seq + 1)
            moved = max(moved, computed.max()) + TRANSFER_MS
            done.append(np.full(RANKS, moved))
    everybody = tuple(range(RANKS))
    job = Job("calls", RANKS, (Host("a", everybody[:4]), Host("b", everybody[4:])), {},
              (ProcessGroup("dp-0", "dp", everybody),))  # fmt: skip
    return Window(job, {"comm_ops": a_table("rank step group seq op peer enqueue_ns", rows)})


def accused(window: Window) -> list[tuple[int, ...]]:
    return [one.ranks for one in diagnose(window).verdicts if not one.is_suspect]


def test_a_slow_device_is_named_though_hosts_run_ahead() -> None:
    assert accused(a_log(device=lambda rank, step: 1.5 if rank == 3 else 1.0)) == [(3,)]


def test_it_is_named_from_the_step_on_from_which_it_is_slow() -> None:
    (verdict,) = diagnose(a_log(device=lambda rank, step: 1.6 if rank == 5 and step >= 30 else 1.0)
                          ).verdicts  # fmt: skip
    assert verdict.ranks == (5,) and not verdict.is_suspect
    assert verdict.steps is not None and abs(verdict.steps[0] - 30) <= 2


def test_a_host_that_loads_too_slowly_is_named() -> None:
    assert accused(a_log(loading_ms=lambda rank, step: 60.0 if rank == 6 else 1.0)) == [(6,)]


def test_clocks_of_hosts_need_not_agree() -> None:
    for skew_ms in (0.0, 3000.0):
        log = a_log(device=lambda rank, step: 1.5 if rank == 3 else 1.0, skew_ms=skew_ms)
        assert accused(log) == [(3,)]
        assert diagnose(a_log(skew_ms=skew_ms)).verdicts == ()


def test_nobody_is_accused_where_ranks_are_late_in_turns() -> None:
    assert diagnose(a_log()).verdicts == ()
    turns = a_log(device=lambda rank, step: 1.6 if rank == step % RANKS else 1.0)
    assert not any(accused(turns))


def test_one_long_pause_of_a_rank_is_no_habit() -> None:
    once = a_log(loading_ms=lambda rank, step: 900.0 if (rank, step) == (2, 20) else 1.0)
    assert (2,) not in accused(once)


def test_what_is_always_a_little_slower_may_have_more_work() -> None:
    log = a_log(device=lambda rank, step: 1.08 if rank == 3 else 1.0)
    assert [(one.ranks, one.is_suspect) for one in diagnose(log).verdicts] == [((3,), True)]


def test_ranks_that_are_renumbered_only_renumber_the_culprit() -> None:
    log = a_log(device=lambda rank, step: 1.5 if rank == 3 else 1.0)
    comm: Table = log.tables["comm_ops"]
    turned = comm.with_column("rank", (comm.ints("rank") + 2) % RANKS)
    hosts = (Host("a", (2, 3, 4, 5)), Host("b", (6, 7, 0, 1)))
    assert accused(Window(replace(log.job, hosts=hosts), {"comm_ops": turned})) == [(5,)]


def test_in_a_pipeline_another_stage_may_hold_a_rank() -> None:
    log = a_log(device=lambda rank, step: 1.5 if rank == 3 else 1.0)
    stages = tuple(ProcessGroup(f"pp-{at}", "pp", (at, at + 4)) for at in range(4))
    piped = Window(replace(log.job, groups=(*log.job.groups, *stages)), log.tables)
    assert [(one.ranks, one.is_suspect) for one in diagnose(piped).verdicts] == [((3,), True)]

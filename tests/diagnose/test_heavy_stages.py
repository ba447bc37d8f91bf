"""Several pipeline stages that take longer than the others: too much work, or slow hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.account.work import work
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.groups import with_groups
from stepscope.diagnose.run import diagnose
from stepscope.trace import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    WEIGHT,
    Host,
    Job,
    ProcessGroup,
    Schedule,
)
from stepscope.window import Window

from .jobs import MS, START, a_table, put
from .traces import Piece, a_trace

STEPS, BATCHES, STAGES, REPLICAS = 40, 4, 4, 2
RANKS = STAGES * REPLICAS
BY_STAGES = (Host("a", (0, 1, 2, 3)), Host("b", (4, 5, 6, 7)))
"""Two stages of both replicas on each host: rank 2s and rank 2s + 1 are stage s."""
BY_REPLICAS = (Host("a", (0, 2, 4, 6)), Host("b", (1, 3, 5, 7)))


def piped(
    levels: Sequence[float],
    hosts: tuple[Host, ...],
    updates: Sequence[float] = (),
    weights: Sequence[float] = (),
) -> Window:
    """Two pipelines of four stages, whose work is so many times 30 ms per microbatch, and whose
    optimizer takes so many times 8 ms, and pass for weights so many times 15 ms, if any."""
    random = np.random.default_rng(4)
    rows, steps, now = [], [], START
    length = 3 * BATCHES * 30 * MS
    for step in range(STEPS):
        work = random.normal(1.0, 0.02, (RANKS, BATCHES, 2)) * [10 * MS, 20 * MS]
        work *= np.repeat(levels, REPLICAS)[:, None, None]
        for rank in range(RANKS):
            at = now
            for batch in range(BATCHES):
                for phase, took in zip((FORWARD, BACKWARD), work[rank, batch], strict=True):
                    rows.append((rank, step, phase, batch, at, int(took)))
                    at += int(took)
                if weights:
                    took = int(weights[rank // REPLICAS] * 15 * MS)
                    rows.append((rank, step, WEIGHT, batch, at, took))
                    at += took
            if updates:
                took = int(updates[rank // REPLICAS] * 8 * MS)
                rows.append((rank, step, OPTIMIZER, 0, at, took))
            steps.append((rank, step, now, length))
        now += length
    pipes = (ProcessGroup(f"pp-{one}", "pp", tuple(range(one, RANKS, REPLICAS)))
             for one in range(REPLICAS))  # fmt: skip
    replicas = (ProcessGroup(f"dp-{at}", "dp", (2 * at, 2 * at + 1)) for at in range(STAGES))
    job = Job("piped", RANKS, hosts, groups=(*pipes, *replicas))
    return Window(job, {
        "phases": a_table("rank step phase microbatch start_ns duration_ns", rows),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


def single(forward: float, backward: float, optimizer: float, stage: int = 1) -> Window:
    """One pipeline of four stages of one rank each, of which one takes so many times as long in its
    passes and in its optimizer."""
    random = np.random.default_rng(5)
    rows, steps, now = [], [], START
    length = 3 * BATCHES * 30 * MS
    for step in range(STEPS):
        for rank in range(STAGES):
            at, more = now, (forward, backward, optimizer) if rank == stage else (1.0, 1.0, 1.0)
            takes = random.normal(1.0, 0.02, 3) * more * np.array([10 * MS, 20 * MS, 8 * MS])
            for batch in range(BATCHES):
                for phase, took in zip((FORWARD, BACKWARD), takes, strict=False):
                    rows.append((rank, step, phase, batch, at, int(took)))
                    at += int(took)
            rows.append((rank, step, OPTIMIZER, 0, at, int(takes[2])))
            steps.append((rank, step, now, length))
        now += length
    hosts = (Host("a", (0, 1)), Host("b", (2, 3)))
    job = Job("single", STAGES, hosts, groups=(ProcessGroup("pp-0", "pp", tuple(range(STAGES))),))
    return Window(job, {
        "phases": a_table("rank step phase microbatch start_ns duration_ns", rows),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "cause"), [(1.0, "load_imbalance"), (1.1, "load_imbalance"), (1.8, "compute")]
)
def test_a_device_that_does_everything_slower_is_told_from_a_longer_stage(
    optimizer: float, cause: str
) -> None:
    (found,) = diagnose(single(1.8, 1.8, optimizer)).verdicts
    assert (found.cause, found.ranks) == (cause, (1,))


@pytest.mark.parametrize(
    ("forward", "backward", "cause", "where"),
    [
        (1.0, 2.0, "compute", "in its backward pass alone"),
        (2.5, 1.0, "compute", "in its forward pass alone"),
        (1.6, 2.0, "load_imbalance", "the work of the other stages"),
    ],
)
def test_more_layers_show_in_both_passes(
    forward: float, backward: float, cause: str, where: str
) -> None:
    (found,) = diagnose(single(forward, backward, 1.0)).verdicts
    assert (found.cause, found.ranks) == (cause, (1,))
    assert where in found.summary


def verdict(
    levels: Sequence[float], hosts: tuple[Host, ...], updates: Sequence[float] = ()
) -> Verdict:
    (found,) = diagnose(piped(levels, hosts, updates)).verdicts
    return found


def test_all_heavy_stages_are_named_and_not_only_the_heaviest() -> None:
    found = verdict([1, 2, 1, 2.02], BY_STAGES)
    assert (found.cause, found.ranks) == ("load_imbalance", (2, 3, 6, 7))
    assert "stages 1 and 3 have 2.0x the work" in found.summary


def test_a_stage_that_waits_for_a_heavier_one_is_not_named_beside_it() -> None:
    found = verdict([1, 2, 1, 1.6], BY_STAGES)
    assert (found.cause, found.ranks) == ("load_imbalance", (2, 3))


def test_the_pass_for_weights_is_work_as_well() -> None:
    """The loss makes both other passes of the last stage longer, but it has few weights."""
    window = piped([1, 1.5, 1, 1.45], BY_REPLICAS, weights=[1, 1.5, 1, 1])
    (found,) = diagnose(window).verdicts
    assert (found.cause, found.ranks) == ("load_imbalance", (2, 3))


def test_stages_that_are_just_one_host_may_be_a_slow_host() -> None:
    found = verdict([1, 1, 2, 2.02], BY_STAGES)
    assert (found.cause, found.ranks, found.hosts) == ("unknown", (4, 5, 6, 7), ("b",))
    assert "host b is slow, or the work is unequal" in found.summary


@pytest.mark.parametrize(("updates", "cause"), [
    ((1, 1, 1.1, 1.1), "load_imbalance"), ((1, 1, 1.9, 1.9), "unknown"),
])  # fmt: skip
def test_a_slow_host_updates_as_slowly_as_it_passes(updates: Sequence[float], cause: str) -> None:
    found = verdict([1, 1, 2, 2.02], BY_STAGES, updates)
    assert (found.cause, found.ranks) == (cause, (4, 5, 6, 7))


def test_what_a_slow_host_costs_is_all_that_it_takes_longer() -> None:
    as_host, as_work = verdict([1, 1, 2, 2], BY_STAGES), verdict([1, 1, 2, 2], BY_REPLICAS)
    assert as_host.lost_fraction is not None and as_work.lost_fraction is not None
    step_ms, light_ms = 3 * BATCHES * 30, (BATCHES - 1) * 30 + STAGES * 30
    heavy_ms = (BATCHES - 1) * 60 + 6 * 30
    assert as_host.lost_fraction == pytest.approx((heavy_ms - light_ms) / step_ms, abs=0.03)
    assert as_work.lost_fraction < as_host.lost_fraction


@pytest.mark.parametrize(("share", "costs"), [(0.7, 0.417), (0.25, 0.25)])
def test_stages_that_a_quota_stops_from_the_first_step_on_have_no_more_work(
    share: float, costs: float
) -> None:
    """They cost what they take longer, but no more than they are stopped."""
    window = piped([1, 1, 2, 2], BY_STAGES, (1, 1, 1, 1))
    ranks, begins = (window.tables["steps"].ints(one) for one in ("rank", "start_ns"))
    stopped = [(rank, "ab"[rank // 4], "cpu_throttled", at, share if rank >= 4 else 0.0)
               for rank, at in zip(ranks, begins, strict=True)]  # fmt: skip
    hardware = a_table("rank host metric ts_ns value", stopped)
    (found,) = diagnose(put(window, hardware=hardware)).verdicts
    assert (found.cause, found.ranks, found.hosts) == ("host", (4, 5, 6, 7), ("b",))
    assert found.lost_fraction == pytest.approx(costs, abs=0.03)


def test_hosts_that_have_all_stages_leave_no_doubt() -> None:
    found = verdict([1, 1, 2, 2], BY_REPLICAS)
    assert (found.cause, found.ranks) == ("load_imbalance", (4, 5, 6, 7))


def test_the_last_stage_has_the_loss_whichever_host_it_is_on() -> None:
    hosts = tuple(Host(name, (2 * at, 2 * at + 1)) for at, name in enumerate("abcd"))
    found = verdict([1, 1, 1, 1.6], hosts)
    assert (found.cause, found.ranks) == ("load_imbalance", (6, 7))


def test_a_stage_of_several_hosts_is_heavy_and_they_are_not_all_slow() -> None:
    hosts = tuple(Host(str(rank), (rank,)) for rank in range(RANKS))
    found = verdict([1, 1.6, 1, 1], hosts)
    assert (found.cause, found.ranks) == ("load_imbalance", (2, 3))


def test_one_light_stage_does_not_make_the_others_heavy() -> None:
    assert diagnose(piped([0.5, 1, 1, 1.02], BY_STAGES)).verdicts == ()


def test_where_no_groups_are_listed_ranks_are_numbered_by_stages() -> None:
    """Compared with all others, both ranks of the last stage would seem to compute slowly."""
    window = piped((1.0, 1.0, 1.0, 1.6), BY_REPLICAS)
    bare = replace(window.job, groups=(), parallelism={"pp": STAGES, "dp": REPLICAS})
    (verdict,) = diagnose(Window(bare, window.tables)).verdicts
    assert (verdict.ranks, verdict.cause) == ((6, 7), "load_imbalance")


def test_sizes_that_do_not_fit_the_ranks_tell_no_groups() -> None:
    job = Job("odd", RANKS, parallelism={"pp": STAGES, "dp": 3})
    assert with_groups(Window(job)).job.groups == ()


def by_operators(schedule: Schedule | None) -> Window:
    """Only operators. The first stage works for 94 ms of every 110, and the others for 70; they
    send for 30, and may work beside that."""
    rows, groups = [], [ProcessGroup(f"pp-{at}", "pp", tuple(range(at, RANKS, REPLICAS)))
                        for at in range(REPLICAS)]  # fmt: skip
    for step in range(STEPS):
        for batch in range(BATCHES):
            number = step * BATCHES + batch
            now = START + (110 * number + 50 * step) * MS
            for rank in range(RANKS):
                spans = [("Recv", rank - REPLICAS, 0, 10), ("Send", rank - REPLICAS, 70, 100)]
                if rank < REPLICAS:
                    spans = [("Send", rank + REPLICAS, 5, 10), ("Recv", rank + REPLICAS, 99, 100)]
                for at, (op, peer, begin, end) in enumerate(spans):
                    rows.append((rank, step, groups[rank % REPLICAS].id, 2 * number + at, op, peer,
                                 now - MS, now + begin * MS, now + end * MS))  # fmt: skip
    names = "rank step group seq op peer enqueue_ns start_ns end_ns"
    job = Job("ops", RANKS, BY_REPLICAS, {"pp": STAGES, "dp": REPLICAS}, tuple(groups), schedule)
    return Window(job, {"comm_ops": a_table(names, rows)})


def test_operators_alone_do_not_tell_waiting_for_a_send_from_work_beside_it() -> None:
    """A schedule with passes for weights runs these while it sends; 1F1B has none."""
    known = Schedule("1f1b", BATCHES, 1)
    said = [any("stage 0" in one.summary for one in diagnose(by_operators(schedule)).verdicts)
            for schedule in (known, None)]  # fmt: skip
    assert said == [True, False]


def test_passes_that_graphs_replay_are_work_though_no_operator_shows_them() -> None:
    """Most of the first stage's forward pass of 10 ms is in no phase of its trace."""
    window = a_trace(lambda rank, step: [Piece("gemm", 30.0)], groups=((0, 1), (2, 3)))
    whole = window.tables["phases"]
    seen = np.where(whole.ints("rank") < 2, 2 * MS, 10 * MS)
    ended = whole.ints("start_ns") + 10 * MS
    passes = [
        (rank, step, name, start, lasted, waited)
        for rank, step, begin, end, part, most, wait in zip(
            *(whole.ints(one).tolist() for one in ("rank", "step", "start_ns")), ended.tolist(),
            seen.tolist(), whole.ints("duration_ns").tolist(), whole.ints("wait_ns").tolist(),
            strict=True)
        for name, start, lasted, waited in ((FORWARD, end - part, part, 0),
                                            (BACKWARD, end, most - (end - begin), wait))
    ]  # fmt: skip
    table = a_table("rank step phase start_ns duration_ns wait_ns", passes)
    found = work(Observed(Window(window.job, {**window.tables, "phases": table})))
    assert found is not None
    assert found.own.mean(axis=1) == pytest.approx(found.own.mean(), rel=0.05)

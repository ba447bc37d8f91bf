"""Steps of all ranks that become longer without a function to blame: code, or the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER, Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table, without

RANKS, STEPS, SINCE = 8, 80, 40


def played(
    passes: float = 1.0, transfer: float = 1.0, optimizer: float = 1.0, *,
    forward_only: float = 1.0, backward_only: float = 1.0, scatter_ms: float = 0.0,
) -> Window:  # fmt: skip
    """From step 40 on parts of a step take so many times as long on all.

    Args:
        scatter_ms: by how much four in ten transfers are longer on average.
    """
    random = np.random.default_rng(2)
    held_up = np.random.default_rng(5)
    longer = held_up.exponential(scatter_ms * MS, STEPS) * (held_up.random(STEPS) < 0.4)
    phases, comm, steps, now = [], [], [], START
    for step in range(STEPS):
        factors = (passes, transfer, optimizer) if step >= SINCE else (1.0, 1.0, 1.0)
        work = random.normal(1.0, 0.02, (3, RANKS)) * MS
        alone = (forward_only, backward_only) if step >= SINCE else (1.0, 1.0)
        forward, backward = (work[at] * took * factors[0] * alone[at]
                             for at, took in enumerate((20, 40)))  # fmt: skip
        met = now + (forward + backward).astype(np.int64)
        left = int(met.max()) + int(30 * factors[1] * MS + longer[step])
        tail = (work[2] * 5 * factors[2]).astype(np.int64)
        end = left + int(tail.max())
        for rank in range(RANKS):
            middle = now + int(forward[rank])
            phases += [(rank, step, FORWARD, now, middle - now),
                       (rank, step, BACKWARD, middle, int(met[rank]) - middle),
                       (rank, step, OPTIMIZER, left, int(tail[rank]))]  # fmt: skip
            comm.append(
                (rank, step, "dp-0", step, "AllReduce", -1, int(met[rank]), int(met[rank]), left)
            )
            steps.append((rank, step, now, end - now))
        now = end
    hosts = (Host("a", tuple(range(RANKS))),)
    job = Job("shared", RANKS, hosts, groups=(ProcessGroup("dp-0", "dp", tuple(range(RANKS))),))
    return Window(job, {
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", comm),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


def test_a_forward_pass_that_grows_alone_is_code() -> None:
    (verdict,) = diagnose(played(forward_only=2.5)).verdicts
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("code", (), ())
    assert 0.5 <= verdict.confidence <= 0.6
    assert verdict.steps is not None and abs(verdict.steps[0] - SINCE) <= 2


def test_passes_that_grow_alike_while_the_optimizer_does_not_may_have_longer_batches() -> None:
    diagnosis = diagnose(played(passes=1.5))
    (verdict,) = diagnosis.verdicts
    assert (verdict.cause, verdict.ranks, verdict.is_suspect) == ("unknown", (), True)
    assert "batches or sequences" in verdict.evidence[0].detail
    assert (diagnosis.state, diagnosis.windows[0].kind) == ("regression", "regression")


def test_a_backward_pass_that_grows_alone_may_train_more_of_the_model_but_not_any_number() -> None:
    (verdict,) = diagnose(played(backward_only=1.4)).verdicts
    assert (verdict.cause, verdict.is_suspect) == ("unknown", True)
    assert "more of the model trained" in verdict.evidence[0].detail
    (verdict,) = diagnose(played(backward_only=2.0)).verdicts
    assert (verdict.cause, verdict.is_suspect) == ("code", False)


def test_where_everything_grows_the_machines_may_be_busy() -> None:
    found = diagnose(played(passes=1.5, transfer=1.5, optimizer=1.5)).verdicts
    assert [one for one in found if not one.is_suspect] == []


def test_data_that_moves_more_slowly_while_computing_stays_is_the_network() -> None:
    (verdict,) = diagnose(played(transfer=2.5)).verdicts
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert verdict.steps is not None and abs(verdict.steps[0] - SINCE) <= 2


WORKS, SAVES = "train (train.py:10);forward (model.py:5)", "train (train.py:10);save (save.py:7)"


def and_saves(job: Window, at: Sequence[int]) -> Window:
    """The same, sampled and without operators, where all save for a second after some steps."""
    saves_ns = np.where(np.isin(np.arange(STEPS), at), 1000 * MS, 0)
    phases, grid = job.tables["phases"], job.tables["steps"]
    late_ns = np.cumsum(saves_ns) - saves_ns
    start, step = grid.ints("start_ns") + late_ns[grid.ints("step")], grid.ints("step")
    worked, stacks = grid.ints("duration_ns"), []
    for rank, begin, work, save in zip(
        grid.ints("rank"), start, worked, saves_ns[step], strict=True
    ):
        stacks.append((rank, "MainThread", begin, work, WORKS, 1))
        if save:
            stacks.append((rank, "MainThread", begin + work, save, SAVES, 1))
    moved = phases.ints("start_ns") + late_ns[phases.ints("step")]
    return Window(job.job, {
        "phases": phases.with_column("start_ns", moved),
        "steps": grid.with_column("start_ns", start)
        .with_column("duration_ns", worked + saves_ns[step]),
        "stacks": a_table("rank thread start_ns duration_ns frames active", stacks),
    })  # fmt: skip


def test_what_runs_in_a_few_long_steps_does_not_explain_all_of_them() -> None:
    found = diagnose(and_saves(played(transfer=1.2), at=(50, 70))).verdicts
    assert not [one for one in found if one.function and "save" in one.function]


def test_what_all_do_for_longer_shows_although_transfers_scatter() -> None:
    slow = without(played(forward_only=1.6, scatter_ms=100.0), "comm_ops")
    (verdict,) = diagnose(slow).verdicts
    assert (verdict.kind, verdict.ranks) == ("slowdown", ())
    assert verdict.steps is not None and abs(verdict.steps[0] - SINCE) <= 3
    calm = diagnose(without(played(scatter_ms=100.0), "comm_ops")).verdicts
    assert not [one for one in calm if one.evidence[0].method == "regression"]

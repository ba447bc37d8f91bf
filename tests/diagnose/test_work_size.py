"""Steps that become longer because ranks have more work: longer sequences, larger batches."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER, Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, START, a_job, a_table, both, put

RANKS, STEPS = 8, 120
WHOLE, PAIRS = tuple(range(RANKS)), [(0, 1), (2, 3), (4, 5), (6, 7)]


def trained(
    time: Floats,
    size: Floats | None = None,
    slow: tuple[int, int, float] | None = None,
) -> Window:
    """Passes take `time` times as long in each step, with messages between pairs of ranks `size`
    times as large; a rank may be slow by a factor from a step on."""
    random = np.random.default_rng(3)
    names: list[str | None] = []
    phases, comm, steps, now = [], [], [], START
    sizes = time if size is None else size
    for step in range(STEPS):
        work = random.normal(1.0, 0.01, (2, RANKS)) * time[step]
        if slow is not None and step >= slow[1]:
            work[:, slow[0]] *= slow[2]
        begin = now + np.int64(20 * MS * work[0])
        paired = np.repeat(begin.reshape(-1, 2).max(axis=1), 2)
        moved = paired + int(MS * sizes[step])
        met = moved + np.int64(40 * MS * work[1])
        left = int(met.max()) + 10 * MS
        end = left + 5 * MS
        for rank, (late, leaves, meets) in enumerate(np.stack([begin, moved, met], 1).tolist()):
            phases += [(rank, step, FORWARD, now, late - now),
                       (rank, step, "tp-allreduce", late, leaves - late),
                       (rank, step, BACKWARD, leaves, meets - leaves),
                       (rank, step, OPTIMIZER, left, 5 * MS)]  # fmt: skip
            comm += [(rank, step, 0, step, int(4e6 * sizes[step]), late, leaves),
                     (rank, step, 1, step, 400_000_000, meets, left)]  # fmt: skip
            names += [f"tp-{rank // 2}", "dp-0"]
            steps.append((rank, step, now, end - now))
        now = end
    table = a_table("rank step kind seq bytes start_ns end_ns", comm)
    table = table.with_column("group", Strings.of(names))
    table = table.with_column("op", Strings.of(["AllReduce"] * len(table)))
    table = table.with_column("enqueue_ns", table.ints("start_ns"))
    groups = (ProcessGroup("dp-0", "dp", WHOLE),
              *(ProcessGroup(f"tp-{at}", "tp", pair) for at, pair in enumerate(PAIRS)))  # fmt: skip
    job = Job("curriculum", RANKS, (Host("a", WHOLE),), groups=groups)
    return Window(job, {
        "phases": a_table("rank step phase start_ns duration_ns", phases), "comm_ops": table,
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


ONE, TWO = np.repeat([1.0, 1.3], 60), np.repeat([1.0, 1.2, 1.4], 40)


@pytest.mark.parametrize("stages", [ONE, TWO])
def test_work_that_grows_with_the_messages_is_the_jobs_own(stages: Floats) -> None:
    diagnosis = diagnose(trained(stages))
    assert diagnosis.verdicts == ()
    assert diagnosis.state == "regression"
    (window,) = diagnosis.windows
    assert "the job's own work grew" in window.why


def test_attention_costs_the_square_of_the_length() -> None:
    assert diagnose(trained(ONE**1.8, size=ONE)).verdicts == ()


def test_a_rise_without_larger_messages_or_far_beyond_them_is_none_of_it() -> None:
    for grown in (np.ones(STEPS), np.repeat([1.0, 1.05], 60)):
        diagnosis = diagnose(trained(ONE, size=grown))
        assert [one.steps for one in diagnosis.verdicts] == [(60, STEPS - 1)]
        assert all(not one.why for one in diagnosis.windows)


def test_a_rise_in_another_step_than_the_messages_has_a_verdict() -> None:
    later = np.repeat([1.0, 1.2, 1.6], (30, 50, 40))
    (verdict,) = diagnose(trained(later, size=np.repeat([1.0, 1.2], (30, 90)))).verdicts
    assert verdict.steps is not None and abs(verdict.steps[0] - 80) <= 2


def test_a_slow_rank_does_not_cost_what_all_have_more_to_do() -> None:
    (verdict,) = diagnose(trained(ONE, slow=(5, 40, 1.1))).verdicts
    assert verdict.ranks == (5,)
    assert verdict.lost_fraction == pytest.approx(0.07, abs=0.02)


def test_nor_where_no_sizes_are_known() -> None:
    job = trained(ONE, slow=(5, 50, 1.1))
    columns = job.tables["comm_ops"].columns
    comm = Table({name: column for name, column in columns.items() if name != "bytes"})
    found = diagnose(Window(job.job, {**job.tables, "comm_ops": comm})).verdicts
    (verdict,) = (one for one in found if one.ranks)
    assert verdict.ranks == (5,)
    assert verdict.lost_fraction == pytest.approx(0.07, abs=0.02)


def accumulated(slow: float) -> Window:
    """All ranks do three times the passes from step 60 on; rank 2 computes slower from step 90."""
    since = np.arange(STEPS) >= 60

    def edit(own: Floats) -> Floats:
        own[1:3, :, since] *= 3.0
        own[1:3, 2, 90:] *= slow
        return own

    job = a_job(4, STEPS, 0.01, edit=edit, stacks=False)
    rows = job.tables["phases"]
    split = rows.strings("phase").equals(FORWARD, BACKWARD) & (rows.ints("step") >= 60)
    thirds = rows.take(split)
    each = thirds.ints("duration_ns") // 3
    waited = thirds.with_column("wait_ns", thirds.ints("wait_ns") // 3)
    parts = [waited.with_column("duration_ns", each)
                   .with_column("start_ns", thirds.ints("start_ns") + at * each)
             for at in range(3)]  # fmt: skip
    whole = rows.take(~split)
    return put(job, phases=both(both(whole, parts[0]), both(parts[1], parts[2])))


def test_more_passes_in_a_step_are_more_work_where_only_replicas_communicate() -> None:
    """Gradients are accumulated over three microbatches from some step on."""
    found = diagnose(accumulated(1.0))
    assert found.verdicts == ()
    assert found.ledger is not None and found.ledger.unexplained_fraction < 0.05


def test_a_slow_rank_costs_what_steps_with_as_many_passes_take_longer() -> None:
    (verdict,) = diagnose(accumulated(1.3)).verdicts
    assert (verdict.ranks, verdict.cause) == ((2,), "compute")
    assert verdict.lost_fraction == pytest.approx(0.22, abs=0.04)

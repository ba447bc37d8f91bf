"""Every second accounted for: the model of a step, beliefs, the ledger, and inferred waiting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.diagnose.account.belief import odds, unusual_bits
from stepscope.diagnose.account.model import Model
from stepscope.diagnose.decide.ledger import ledger
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.shown import StepSeries
from stepscope.diagnose.views.own_time import own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.diagnose.views.unnamed import OUTSIDE
from stepscope.trace import BACKWARD, FORWARD, Host, Job, ProcessGroup, Schedule
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, START, a_job, a_table, with_samples

shares = st.floats(0.0, 1.0)


def spell(stages: list[float], microbatches: int) -> float:
    """The oracle: microbatches go through the stages in turn, one at a time in each."""
    done = [0.0] * (len(stages) + 1)
    for _ in range(microbatches):
        for at, work in enumerate(stages):
            done[at + 1] = max(done[at], done[at + 1]) + work / microbatches
    return done[-1]


@given(st.lists(st.lists(st.floats(1, 100), min_size=3, max_size=3), min_size=1, max_size=4),
       st.integers(1, 8))  # fmt: skip
def test_a_step_lasts_as_long_as_its_latest_replica(work: list[list[float]], m: int) -> None:
    own = np.array(work).reshape(-1, 1)
    stage, replica = np.tile(np.arange(3), len(work)), np.repeat(np.arange(len(work)), 3)
    expected = max(spell(one, m) for one in work)
    assert Model(stage, replica, m).step_ns(own)[0] == pytest.approx(expected)


@given(st.floats(-20, 80), shares, st.floats(0, 30))
def test_more_evidence_and_more_loss_make_surer(bits: float, loss: float, more: float) -> None:
    assert 0 <= odds(bits, loss) <= odds(bits + more, loss) <= 1
    assert odds(bits, loss) <= odds(bits, min(loss * 2, 1.0))
    assert unusual_bits(loss) <= unusual_bits(min(loss * 2, 1.0))


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.lists(shares, max_size=4))
def test_the_ledger_adds_up(times: list[int], fractions: list[float]) -> None:
    series = StepSeries(tuple(range(len(times))), tuple(times))
    verdicts = [Verdict("slowdown", "host", "", "", lost_fraction=one) for one in fractions]
    found = ledger(series, 0, verdicts)
    assert found is not None
    lost = sum(entry.fraction for entry in found.lost)
    whole = found.needed_ns / found.step_ns + lost + found.unexplained_fraction
    assert whole == pytest.approx(1.0, abs=2 / found.step_ns + 1e-5) or whole > 1
    assert 0 <= lost <= 1 + 1e-9


def test_a_ledger_needs_steps() -> None:
    assert ledger(StepSeries((), ()), 0, []) is None


def logged(late_ms: Floats) -> Window:
    """Rows as loggers write them: no marks, no operators; the last phase ends for all at once."""
    ranks, steps = late_ms.shape
    random = np.random.default_rng(3)
    rows, step_rows, now = [], [], START
    for step in range(steps):
        load = np.asarray(2 + random.random(ranks)) * MS
        begin = now + np.asarray(load + late_ms[:, step] * MS, np.int64)
        end = int(begin.max()) + 60 * MS
        for rank in range(ranks):
            rows.append((rank, step, "fetch", now, int(load[rank])))
            rows.append((rank, step, "fwd_bwd", int(begin[rank]), end - int(begin[rank])))
            step_rows.append((rank, step, now, end - now))
        now = end
    job = Job("logged", ranks, (Host("h", tuple(range(ranks))),))
    phases = a_table("rank step phase start_ns duration_ns", rows)
    return Window(job, {"phases": phases,
                        "steps": a_table("rank step start_ns duration_ns", step_rows)})  # fmt: skip


def test_waiting_that_nobody_marked_is_inferred() -> None:
    late = np.random.default_rng(0).random((4, 60)) * 2
    late[2, 20:] += 40
    window = logged(late)
    own = own_time(window, timeline(window))
    assert own.inferred == ("fwd_bwd",)
    passes = own.of("fwd_bwd")
    assert np.ptp(np.nanmedian(passes, axis=1)) < 3 * MS
    (verdict,) = diagnose(window).verdicts
    assert verdict.ranks == (2,)
    assert verdict.steps is not None and abs(verdict.steps[0] - 20) <= 1
    assert verdict.lost_fraction == pytest.approx(40 / 104, abs=0.05)


def test_steps_whose_rows_were_lost_are_no_time_of_their_own() -> None:
    window = logged(np.random.default_rng(0).random((4, 60)) * 2)
    steps = window.tables["steps"]
    lost = (steps.ints("rank") == 2) & (abs(steps.ints("step") - 35) < 5)
    window = Window(window.job, {**window.tables, "steps": steps.take(~lost)})
    own = own_time(window, timeline(window))
    outside = own.of(OUTSIDE)
    assert np.isnan(outside[2, 31:40]).all() and np.isfinite(outside[1]).all()
    assert diagnose(window).verdicts == ()


@pytest.mark.parametrize("name", ["data", "iter_time/batch_gen", "epoch.batch_fetch"])
def test_loading_is_known_by_the_names_that_frameworks_give_it(name: str) -> None:
    late = np.random.default_rng(0).random((4, 60)) * 2
    late[2, 20:] += 40
    window = logged(late)
    phases = window.tables["phases"]
    codes = phases.strings("phase")
    names = tuple(name if one == "fetch" else one for one in codes.values)
    slow = (phases.ints("rank") == 2) & codes.equals("fetch") & (phases.ints("step") >= 20)
    duration = phases.ints("duration_ns") + np.where(slow, 40 * MS, 0)
    phases = phases.with_column("phase", Strings(codes.codes, names))
    phases = phases.with_column("duration_ns", duration)
    (verdict,) = diagnose(Window(window.job, {**window.tables, "phases": phases})).verdicts
    assert (verdict.ranks, verdict.cause, verdict.phase) == ((2,), "data_loading", name)


def test_nobody_late_is_healthy() -> None:
    diagnosis = diagnose(logged(np.random.default_rng(0).random((4, 60)) * 2))
    assert (diagnosis.state, diagnosis.verdicts) == ("healthy", ())
    assert diagnosis.ledger is not None and diagnosis.ledger.lost == ()


def test_lengths_of_steps_alone_are_unknown_and_not_healthy() -> None:
    window = logged(np.zeros((4, 60)))
    diagnosis = diagnose(Window(window.job, {"steps": window.tables["steps"]}))
    assert diagnosis.state == "unknown" and "length" in diagnosis.unaccounted


def piped(factor: float, since: int = 0) -> Window:
    """Two pipelines of three stages and four microbatches; stage 2 has more work."""
    rows, steps, now = [], [], START
    random = np.random.default_rng(1)
    for step in range(40):
        work = random.normal(1.0, 0.02, (6, 4, 2)) * [10 * MS, 20 * MS]
        work[[2, 5]] *= factor if step >= since else 1.0
        for rank in range(6):
            at = now
            for batch in range(4):
                for phase, took in zip((FORWARD, BACKWARD), work[rank, batch], strict=True):
                    rows.append((rank, step, phase, batch, at, int(took)))
                    at += int(took)
            steps.append((rank, step, now, 200 * MS))
        now += 200 * MS
    groups = (ProcessGroup("pp-0", "pp", (0, 1, 2)), ProcessGroup("pp-1", "pp", (3, 4, 5)),
              *(ProcessGroup(f"dp-{at}", "dp", (at, at + 3)) for at in range(3)))  # fmt: skip
    job = Job("piped", 6, (Host("h", tuple(range(6))),), groups=groups)
    phases = a_table("rank step phase microbatch start_ns duration_ns", rows)
    return Window(job, {"phases": phases,
                        "steps": a_table("rank step start_ns duration_ns", steps)})  # fmt: skip


def test_a_stage_with_too_much_work_is_imbalance_and_no_slow_device() -> None:
    (verdict,) = diagnose(piped(1.5)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (2, 5))
    assert verdict.evidence[0].method == "stage-imbalance"


def in_kernels(factor: float) -> Window:
    """The same job as `piped`, of which only kernels and steps were recorded."""
    window = piped(factor)
    phases = window.tables["phases"]
    names = np.zeros(len(phases), np.int32)
    kernels = Table({
        **{name: phases.ints(name) for name in ("rank", "step", "start_ns", "duration_ns")},
        "kernel": Strings(names, ("gemm_bf16_nt",)), "stream": np.full(len(phases), 7),
    })  # fmt: skip
    job = replace(window.job, schedule=Schedule("1f1b", 4))
    return Window(job, {"kernels": kernels, "steps": window.tables["steps"]})


def test_kernels_alone_show_a_stage_with_too_much_work() -> None:
    (verdict,) = diagnose(in_kernels(1.5)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (2, 5))
    assert diagnose(in_kernels(1.02)).verdicts == ()


def test_stages_that_are_a_little_uneven_are_ordinary() -> None:
    assert diagnose(piped(1.05)).verdicts == ()


def test_what_got_slower_on_the_way_is_no_property_of_the_model() -> None:
    found = diagnose(piped(1.5, since=20)).verdicts
    assert all(one.evidence[0].method != "stage-imbalance" for one in found)


def test_a_crowded_machine_is_mentioned_where_nothing_else_explains_the_loss() -> None:
    def wander(own: Floats) -> Floats:
        random = np.random.default_rng(2)
        steps = np.repeat(np.exp(random.normal(0, 0.4, own.shape[2] // 4)), 4)
        return np.asarray(own * steps)

    job = a_job(noise=0.02, edit=wander)
    alone = diagnose(job)
    assert alone.state == "unknown" and alone.unaccounted.endswith("nothing recorded explains it")
    crowded = diagnose(with_samples(job, "stranger_cpu_util", lambda *_: 1.4))
    assert "other processes use 1.4 cores" in crowded.unaccounted

"""Stragglers in a trace of few steps: who is named, and when nothing may be said."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.detect.ranks import straggler_brief as brief
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.unnamed import OUTSIDE
from stepscope.window import Floats, Ints, Strings, Table, Window

from .jobs import MS, Fault, a_job, put, without
from .traces import Piece, a_trace, profiled

PERIOD = 86.0 * MS
TYPICAL_MS = (1.0, 30.0, 50.0, 5.0, 0.2)
"""Data loading, forward, backward, optimizer, and what is outside of them."""


Groups = Callable[[int], list[Ints]]


def whole(ranks: int) -> list[Ints]:
    return [np.arange(ranks)]


def own_times(
    ranks: int, steps: int, noise: float = 0.05, seed: int = 0, lasting: float = 0.2,
    typical: float = 50.0,
) -> Floats:  # fmt: skip
    """Log-normal; the lasting part of the noise is what a rank is slower for good."""
    random = np.random.default_rng(seed)
    fresh, rank = random.normal(size=(ranks, steps)), random.normal(size=(ranks, 1))
    normal = np.sqrt(1 - lasting) * fresh + np.sqrt(lasting) * rank
    return np.asarray(typical * MS * np.exp(noise * normal))


def in_pairs(ranks: int) -> list[Ints]:
    return [np.array([rank, rank + 1]) for rank in range(0, ranks, 2)]


def rows(own: Floats, groups: Groups = whole) -> list[int]:
    found = brief.stragglers(own, groups(len(own)), PERIOD, "p", 6 * len(own))
    return [one.row for one in found]


def healthy_job_blames(
    ranks: int, steps: int, noise: float, seed: int, groups: Groups = whole
) -> bool:
    parts = [own_times(ranks, steps, noise, seed * 10 + at, typical=typical)
             for at, typical in enumerate(TYPICAL_MS)]  # fmt: skip
    return any(rows(own, groups) for own in (*parts, np.sum(parts, axis=0)))


def a_few_steps(ranks: int, steps: int, *faults: Fault, noise: float = 0.05) -> Window:
    return profiled(a_job(ranks, steps, noise, faults=faults, stacks=False))


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("steps", [4, 6, 10])
def test_one_slow_rank_in_its_phase_and_no_other(ranks: int, steps: int) -> None:
    fault = Fault((1,), "backward-compute", 0, times=2.0)
    found = diagnose(a_few_steps(ranks, steps, fault))
    (verdict,) = found.verdicts
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((1,), "backward-compute", "compute")
    assert found.state == "slow"
    assert verdict.victims == ranks - 1


def test_a_rank_whose_batches_are_late_loads_data() -> None:
    found = diagnose(a_few_steps(4, 6, Fault((3,), "data-load", 0, ms=60)))
    (verdict,) = found.verdicts
    assert (verdict.ranks, verdict.cause) == ((3,), "data_loading")


def test_a_rank_that_sleeps_between_its_operators_has_a_late_host() -> None:
    """No phase contains it, so it is as slow as its whole step."""
    window = a_few_steps(4, 6, Fault((3,), "forward-compute", 0, ms=40))
    cut = {name: _without_sleep(window.tables[name], 3, 40 * MS) for name in ("phases", "host_ops")}
    (verdict,) = diagnose(put(window, **cut)).verdicts
    assert (verdict.ranks, verdict.cause, verdict.phase) == ((3,), "host", None)
    assert verdict.slowdown is not None and 1.1 < verdict.slowdown < 1.6


def _without_sleep(table: Table, rank: int, sleep_ns: int) -> Table:
    """The rank's forward began, and its operators ran, only when it had slept."""
    forward = table.strings("phase" if table.has("phase") else "name")
    late = (table.ints("rank") == rank) & forward.equals("forward-compute", "aten::linear")
    start = table.ints("start_ns") + np.where(late, sleep_ns, 0)
    length = table.ints("duration_ns") - np.where(late, sleep_ns, 0)
    return table.with_column("start_ns", start).with_column("duration_ns", length)


def test_two_of_eight() -> None:
    own = own_times(8, 6)
    own[[2, 5]] *= 2.0
    assert rows(own) == [2, 5]


def test_a_pair_wants_more_but_not_a_majority() -> None:
    own = own_times(2, 8, noise=0.03)
    own[1] *= 2.0
    assert rows(own) == [1]
    own[1] *= 1.25 / 2.0
    assert rows(own) == []


def test_in_a_pair_the_stalls_of_one_are_no_noise_beside_a_steady_other() -> None:
    """It stalls in every step, for a fifth to half a second: its own scatter must not hide it."""
    own = own_times(2, 4, noise=0.01, typical=10.0)
    own[1] += np.array([200.0, 500.0, 260.0, 410.0]) * MS
    (found,) = brief.stragglers(own, whole(2), PERIOD, "p", 12)
    assert found.row == 1 and found.z > found.needed, "as sure as its own limit"
    own[0] = own[1] * np.array([1.3, 0.4, 2.0, 0.8])
    assert rows(own) == [], "if both scatter, it is noise"


def test_pairs_are_one_anothers_measure() -> None:
    own = own_times(8, 6, noise=0.02)
    own[1] *= 1.25
    assert rows(own[:2], in_pairs) == []
    assert rows(own, in_pairs) == [1]


def test_a_pair_among_others_that_differ_as_much() -> None:
    own = own_times(8, 8, noise=0.02)
    own[1::2] *= 1.4
    assert rows(own, in_pairs) == []


def test_two_steps_of_two_ranks_are_enough_where_they_hardly_scatter() -> None:
    own = own_times(2, 2, noise=0.03)
    own[1] *= 2.0
    assert rows(own) == [1]


def test_two_noisy_steps_of_two_ranks_prove_nothing() -> None:
    assert rows(np.array([[50.0, 90.0], [100.0, 130.0]]) * MS) == []


def test_one_slow_step_is_no_slow_rank() -> None:
    own = own_times(4, 6)
    own[1, 2] *= 20
    assert rows(own) == []


def test_nor_does_it_hide_the_slow_rank() -> None:
    own = own_times(4, 6)
    own[0, 2] *= 20
    own[1] *= 2
    assert rows(own) == [1]


def test_it_must_be_slow_in_most_steps() -> None:
    own = own_times(8, 5, noise=0.01)
    own[1, :3] *= 2
    assert rows(own) == []
    own[1, 3] *= 2
    assert rows(own) == [1]


def test_among_many_ranks_three_steps_far_above_all_others_are_no_chance() -> None:
    own = own_times(128, 5, noise=0.01)
    own[1, [0, 2, 4]] *= 2
    assert rows(own) == [1]
    own[7, 1] *= 3
    assert rows(own) == [], "another rank has the longest step"


def test_a_rank_among_others_that_differ_as_much() -> None:
    """Every rank has its own speed here: 1.0, 1.2, 1.4, 1.6 times."""
    own = own_times(4, 8, noise=0.01) * np.array([[1.0], [1.2], [1.4], [1.6]])
    assert rows(own) == []


def test_unknown_steps_count_for_nothing() -> None:
    own = own_times(8, 8)
    own[1] *= 2
    own[1, ::3] = np.nan
    own[5, 1:] = np.nan
    assert rows(own) == [1]
    assert rows(np.full((4, 6), np.nan)) == []


def test_identical_times_have_no_scale() -> None:
    assert rows(np.full((4, 6), 50.0 * MS)) == []


def test_a_phase_too_short_to_matter_is_let_be() -> None:
    own = own_times(4, 6, typical=0.05)
    own[1] *= 3
    assert rows(own) == []


@pytest.mark.parametrize("groups", [whole, in_pairs])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_healthy_jobs_hardly_ever_blame_a_rank(ranks: int, groups: Groups) -> None:
    """At 5 % noise, 2 of 1,320 do, and 5 in pairs (docs/methods/straggler-brief.md)."""
    blamed = [healthy_job_blames(ranks, steps, 0.05, seed, groups)
              for seed in range(15) for steps in (3, 4, 6, 10)]  # fmt: skip
    assert sum(blamed) <= 1


def test_noisy_healthy_jobs_rarely_do() -> None:
    """30 % noise, of which 13 % stay with a rank for good (docs/methods/straggler-brief.md)."""
    blamed = [healthy_job_blames(8, steps, 0.3, seed)
              for seed in range(20) for steps in (3, 4, 6, 10)]  # fmt: skip
    assert np.mean(blamed) <= 0.05


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_healthy_trace_is_silence(ranks: int) -> None:
    for steps in (2, 5, 10):
        found = diagnose(a_few_steps(ranks, steps))
        assert (found.state, found.verdicts) == ("healthy", ())


def test_the_first_steps_of_a_live_job_are_warm_up() -> None:
    """Of eight steps from the very start two are not judged; a trace may begin anywhere."""
    job = a_few_steps(4, 8, Fault((1,), "backward-compute", 0, times=2.0))
    assert diagnose(job).verdicts
    assert diagnose(without(job, "host_ops")).verdicts
    slow_at_first = a_few_steps(4, 8, Fault((1,), "backward-compute", 0, 2, times=2.0))
    assert not diagnose(without(slow_at_first, "host_ops")).verdicts


@pytest.mark.parametrize(
    ("times", "least", "most"), [(1.5, 0.4, 0.5), (2.5, 0.5, 0.7), (5.0, 0.6, 0.9)]
)
def test_a_single_step_is_judged_with_less_confidence(
    times: float, least: float, most: float
) -> None:
    fault = Fault((1,), "backward-compute", 0, times=times)
    (verdict,) = diagnose(a_few_steps(4, 1, fault, noise=0.02)).verdicts
    assert (verdict.ranks, verdict.phase) == ((1,), "backward-compute")
    assert least <= verdict.confidence < most


def test_a_single_healthy_step_blames_nobody() -> None:
    for ranks in (2, 4, 8):
        assert diagnose(a_few_steps(ranks, 1)).verdicts == ()


@pytest.mark.parametrize(("times", "blamed"), [(1.0, ()), (1.18, (2,))])
def test_a_single_step_holds_hundreds_of_kernels(times: float, blamed: tuple[int, ...]) -> None:
    def work(rank: int, step: int) -> list[Piece]:
        slower = times if rank == 2 else 1.0
        kernels = (("gemm", 0.6), ("flash_fwd", 0.3), ("layer_norm", 0.1))
        return [Piece(name, ms * slower) for _ in range(50) for name, ms in kernels]

    found = diagnose(a_trace(work, ranks=8, steps=1)).verdicts
    assert [(one.ranks, one.cause) for one in found] == [(blamed, "compute")] * len(blamed)


@pytest.mark.parametrize(("steps", "does"), [(0, False), (1, True), (19, True), (20, False)])
def test_it_looks_at_traces_of_few_steps(steps: int, does: bool) -> None:
    assert brief.applies(steps, is_trace=True) is does


@pytest.mark.parametrize(("steps", "does"), [(2, False), (3, True), (19, True), (20, False)])
def test_it_looks_at_jobs_of_few_steps(steps: int, does: bool) -> None:
    assert brief.applies(steps, is_trace=False) is does


def test_seven_steps_of_twice_the_time_after_seven_of_once_are_found() -> None:
    fault = Fault((2,), "backward-compute", 12, times=2.0)
    (verdict,) = diagnose(a_job(ranks=4, steps=19, faults=[fault])).verdicts
    assert verdict.ranks == (2,)
    assert verdict.steps is not None and verdict.steps[0] == 12


@settings(deadline=None, max_examples=60)
@given(st.floats(0.6, 0.9999), st.integers(1, 60))
def test_students_quantile_is_where_the_density_says(probability: float, freedom: int) -> None:
    """The area under (1 + t^2 / n)^-(n + 1) / 2 up to it, by Simpson's rule over angles:
    t = sqrt(n) tan(x) makes the density cos(x)^(n - 1)."""
    quantile = stats.student(probability, freedom)
    edge = np.arctan2(quantile, np.sqrt(freedom))
    assert 0.5 + _area(edge, freedom) / (2 * _area(np.pi / 2, freedom)) == pytest.approx(
        probability, abs=1e-7
    )


def test_students_quantile_of_a_large_job_is_nearly_the_normal_one() -> None:
    assert stats.student(0.999, 10**9) == pytest.approx(3.0902, rel=5e-3)


def _area(edge: float, freedom: int) -> float:
    x = np.linspace(0.0, edge, 4001)
    y = np.cos(x) ** (freedom - 1)
    weights = np.ones_like(x)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    return float((weights * y).sum() * (x[1] - x[0]) / 3)


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [(0.95, 1, 6.314), (0.975, 4, 2.776), (0.995, 9, 3.250), (0.999, 30, 3.385)],
)
def test_students_quantile_by_the_table(probability: float, freedom: int, table: float) -> None:
    assert stats.student(probability, freedom) == pytest.approx(table, abs=6e-4)


def test_a_small_but_clear_rise_late_in_a_short_job() -> None:
    """Seven steps of 1.17 times after eight of once: beyond noise, and no step is in between."""
    own = own_times(16, 15, noise=0.01)
    own[5, 8:] *= 1.17
    assert rows(own) == [5]
    own[5, 10] /= 1.17
    assert rows(own) == []


def test_a_few_steps_that_become_longer_for_no_recorded_reason_are_not_healthy() -> None:
    """As with a network that is slow from the third of five steps on: all ranks transfer longer."""
    job = a_trace(lambda rank, step: [Piece("gemm", 50.0)], 4, 5, transfer_ms=lambda _, step:
                  30.0 if step > 1 else 2.0)  # fmt: skip
    assert diagnose(job).state == "unknown"


def test_in_a_single_step_a_few_slow_kernels_that_ran_many_times_are_no_moment() -> None:
    def work(rank: int, step: int) -> list[Piece]:
        norm_ms = 0.9 if rank == 2 else 0.3
        return [Piece("gemm", 0.6), Piece("layer_norm", norm_ms)] * 50

    (verdict,) = diagnose(a_trace(work, steps=1)).verdicts
    assert (verdict.ranks, verdict.cause, verdict.is_suspect) == ((2,), "compute", False)


def test_in_a_single_step_the_samples_of_many_ranks_may_be_longer() -> None:
    def work(rank: int, step: int) -> list[Piece]:
        return [Piece("gemm", 0.9 if rank in (1, 2, 3) else 0.6), Piece("adam", 0.3)] * 50

    found = diagnose(a_trace(work, ranks=8, steps=1)).verdicts
    assert all(one.is_suspect for one in found)


def test_communication_beside_computing_is_no_waiting_outside_of_phases() -> None:
    """Where no passes are known: all but rank 0 are in an operator while they compute."""
    window = a_trace(lambda rank, step: [Piece("gemm", 50.0)], spread=0.0)
    comm, phases = window.tables["comm_ops"], window.tables["phases"]
    begin = np.where(comm.ints("rank") > 0, phases.ints("start_ns"), comm.ints("start_ns"))
    end = phases.ints("start_ns") + phases.ints("duration_ns")
    short = Table({
        **phases.columns, "phase": Strings(np.zeros(len(phases), np.int32), ("optimizer",)),
        "start_ns": end, "duration_ns": np.full(len(phases), MS // 10),
        "wait_ns": np.zeros(len(phases), np.int64),
    })  # fmt: skip
    seen = put(window, comm_ops=comm.with_column("start_ns", begin), phases=short)
    outside = Observed(seen).own.of(OUTSIDE)
    assert np.allclose(outside, outside[0])

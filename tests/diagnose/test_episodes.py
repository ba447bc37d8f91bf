"""Ranks that are slow now and then, or too recently for L2: named if chance does not explain it."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.ranks.transient import Series, SpikingRank, spiking_ranks
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.numeric.chance import poisson_tail
from stepscope.diagnose.run import diagnose
from stepscope.window import Floats, Ints, Mask

from .jobs import MS, TYPICAL_MS, Fault, a_job, a_table, both, put

STEP_MS = 1000.0
RANKS, STEPS = 16, 100
TESTS = RANKS * 6


def own_times(ranks: int = RANKS, steps: int = STEPS, noise: float = 0.05, seed: int = 0) -> Floats:
    """One phase of nearly the whole step."""
    normal = np.random.default_rng(seed).normal(size=(ranks, steps))
    return np.asarray(900.0 * MS * np.exp(noise * normal))


def found(
    own: Floats, step_ms: float = STEP_MS, hosts: int = 1, errors: Mask | None = None, **more: bool
) -> list[SpikingRank]:
    ranks, steps = own.shape
    number: Ints = np.arange(1001, 1001 + steps)
    begins = (np.arange(steps) * step_ms * MS).astype(np.int64)
    units = np.split(np.arange(ranks), hosts)
    counted = np.zeros(own.shape, np.bool_) if errors is None else errors
    series = Series(own, [np.arange(ranks)], number, begins, step_ms * MS, counted)
    return spiking_ranks(series, units, TESTS, **more)


def test_spikes_that_return_on_one_rank() -> None:
    own = own_times()
    own[3, [11, 32, 38, 61, 84]] *= 1.5
    (one,) = found(own)
    assert (one.row, one.columns, one.alone) == (3, (11, 32, 38, 61, 84), False)
    assert one.effect == pytest.approx(np.log(1.5), abs=0.1)


def test_spikes_on_all_ranks_blame_no_rank() -> None:
    own = own_times()
    random = np.random.default_rng(1)
    own[random.integers(RANKS, size=40), random.integers(STEPS, size=40)] *= 1.5
    assert found(own) == []


def test_on_a_crowded_host_the_rank_of_the_last_spike_is_nobody_special() -> None:
    """Steps are short, and any rank loses its processor somewhere within each second."""
    own = own_times(4, 2000) / 50
    random = np.random.default_rng(1)
    own[np.asarray(random.random(own.shape) < 0.18)] *= 4.0
    own[2, -1] *= 4.0
    assert found(own, step_ms=20.0) == []


def test_what_the_whole_job_does_cancels() -> None:
    assert found(own_times() * np.where(np.arange(STEPS) % 7 == 3, 2.0, 1.0)) == []


def test_a_habit_is_no_fault() -> None:
    own = own_times()
    own[0, ::20] *= 4
    assert found(own) == []


def test_a_habit_is_found_among_other_spikes() -> None:
    """A crowded host has spikes of its own; the long ones are the checkpoints of the first rank."""
    own = own_times(4, 600)
    random = np.random.default_rng(5)
    own[np.asarray(random.random(own.shape) < 0.04)] *= 1.5
    own[0, 48::50] *= 8.0  # steps 1049, 1099, ...
    assert found(own) == []
    own[0, 48::50] /= 8.0
    own[2, 48::50] *= 8.0
    assert [one.row for one in found(own)] == [2]


def test_a_slowness_that_began_five_steps_ago() -> None:
    own = own_times()
    own[3, -5:] *= 1.5
    assert [one.row for one in found(own)] == [3]
    own[3, -4:] /= 1.5
    assert found(own) == []


def test_a_passing_disturbance_is_one_spike() -> None:
    own = own_times()
    own[3, 40:50] *= 1.3
    assert found(own, lonely=False) == []


def test_steps_of_a_moment_are_one_spike() -> None:
    """Half a second of another program's work slows five steps of a tenth of a second each."""
    own = own_times() / 10
    own[3, -5:] *= 1.5
    assert found(own, step_ms=STEP_MS / 10) == []


def test_one_very_long_stall_counts_alone() -> None:
    own = own_times()
    own[3, 55] += 6000 * MS
    (one,) = found(own)
    assert (one.row, one.columns, one.alone) == (3, (55,), True)
    assert found(own, lonely=False) == []


def test_what_is_small_beside_the_long_stall_is_not_part_of_it() -> None:
    """A rank with a stall was a little late for many steps before and after."""
    own = own_times(noise=0.005)
    own[3, 30:80] += 100 * MS
    own[3, 55] += 9000 * MS
    own[3, 56] += 1500 * MS
    (one,) = found(own)
    assert (one.columns, one.alone) == ((55, 56), True)


def test_a_stall_like_others_does_not() -> None:
    own = own_times()
    own[3, 55] += 6000 * MS
    own[9, 70] += 3000 * MS
    assert found(own) == []


@pytest.mark.parametrize(("rank", "named"), [(0, []), (8, []), (15, []), (3, [3])])
def test_nor_one_of_a_rank_that_logs_in_a_step_in_which_people_do(
    rank: int, named: list[int]
) -> None:
    """The first of the job or a host, and the last."""
    own = own_times(16)
    own[rank, 49] += 6000 * MS  # step 1050
    assert [one.row for one in found(own, hosts=8)] == named


@pytest.mark.parametrize(("phase", "named"), [("forward-compute", []), ("backward-compute", [0])])
def test_in_a_backward_pass_no_rank_has_duties(phase: str, named: list[int]) -> None:
    """The first rank may evaluate in a round step, and computes forward then."""
    stall = Fault((0,), phase, 70, 71, ms=40_000, computes=False)
    said = diagnose(a_job(faults=[stall], stacks=False)).verdicts
    assert [rank for one in said for rank in one.ranks] == named


def test_two_spikes_at_errors_of_the_device_are_enough() -> None:
    own, errors = own_times(), np.zeros((RANKS, STEPS), np.bool_)
    own[3, [11, 61]] *= 1.5
    assert found(own) == []
    errors[3, [10, 11, 60, 61]] = True
    assert [(one.row, one.columns) for one in found(own, errors=errors)] == [(3, (11, 61))]


def test_errors_that_a_device_counts_all_the_time_meet_spikes_by_chance() -> None:
    own, errors = own_times(), np.zeros((RANKS, STEPS), np.bool_)
    own[3, [11, 61]] *= 1.5
    own[8, [20, 40]] *= 1.5
    errors[3] = True
    assert found(own, errors=errors) == []


def test_errors_without_spikes_accuse_no_rank() -> None:
    errors = np.zeros((RANKS, STEPS), np.bool_)
    errors[3, ::9] = True
    assert found(own_times(), errors=errors) == []


def test_a_host_spikes_as_one() -> None:
    """Its ranks suffer more and less in turns; two spikes of all of them alone prove nothing."""
    own = own_times(32)
    columns = [11, 32, 38, 61, 84]
    own[8:12, columns] *= np.random.default_rng(0).uniform(1.5, 4, size=(4, 5))
    assert [one.row for one in found(own, hosts=8)] == [8, 9, 10, 11]


def test_a_pair_needs_more_and_looks_at_its_past() -> None:
    own = own_times(2)
    own[1, ::7] /= 2  # the other's peer is fast at times: no rank has spikes
    assert found(own) == []
    own = own_times(2)
    own[1, np.random.default_rng(2).choice(STEPS, 15, replace=False)] *= 2
    assert [one.row for one in found(own)] == [1]


def test_unknown_values_are_no_spikes() -> None:
    own = own_times()
    own[2] = np.nan
    own[5, ::3] = np.nan
    assert found(own) == []


def test_poissons_tail() -> None:
    """P(X >= 2) at rate 1 is 1 - 2/e; at rates near zero nearly rate^k / k!."""
    assert poisson_tail(2, 1.0) == pytest.approx(1 - 2 / np.e)
    assert poisson_tail(3, 1e-3) == pytest.approx(1e-9 / 6, rel=1e-3)


def test_chance_strikes_a_rank_too_often_in_few_jobs() -> None:
    """Spikes of all sizes on ranks that differ in how often they get them."""
    accused = 0
    for seed in range(60):
        own, random = own_times(seed=seed), np.random.default_rng(seed)
        rate = 5e-3 * np.exp(random.normal(size=RANKS) / 2)
        hit = random.random(own.shape) < rate[:, None]
        own[hit] += 200 * MS * np.exp(random.normal(size=int(hit.sum())))
        accused += bool(found(own, lonely=False))
    assert accused == 0


def the_verdict(*faults: Fault, steps: int = 120) -> Verdict:
    """Of a job of eight ranks whose steps take a second."""
    typical = {"data-load": 10.0, "forward-compute": 300.0, "backward-compute": 600.0,
               "optimizer": 50.0}  # fmt: skip
    job = a_job(8, steps, faults=faults, typical=typical, stacks=False)
    verdicts = diagnose(job).verdicts
    assert len(verdicts) == 1, [verdict.summary for verdict in verdicts]
    return verdicts[0]


def test_the_verdict_says_how_often() -> None:
    steps = (31, 44, 49, 73, 80, 102)
    verdict = the_verdict(*(Fault((2,), "backward-compute", at, at + 1, ms=900) for at in steps))
    assert (verdict.ranks, verdict.phase, verdict.steps) == ((2,), "backward-compute", (31, 102))
    assert "in 6 of 72 steps" in verdict.summary
    assert verdict.slowdown == pytest.approx(2.5, rel=0.1)
    assert verdict.lost_fraction == pytest.approx(6 * 0.9 / (89 * 0.97 + 6 * 0.9), rel=0.1)
    assert verdict.evidence[0].method == "transient"
    assert "nvidia-smi -q -d ECC" in verdict.advice


def test_a_stall_of_forty_steps() -> None:
    verdict = the_verdict(Fault((5,), "backward-compute", 77, 78, ms=40_000, computes=False))
    assert (verdict.ranks, verdict.cause, verdict.steps) == ((5,), "host", (77, 77))
    assert verdict.lost_fraction == pytest.approx(40 / 155, rel=0.1)


@pytest.mark.parametrize(
    ("function", "named"), [("compile (cute.py:41)", [(2,)]), (None, [])], ids=["measured", "not"]
)
def test_one_stall_that_costs_little_is_reported_if_its_cause_was_measured(
    function: str | None, named: list[tuple[int, ...]]
) -> None:
    slowly = {phase: 10 * usual for phase, usual in TYPICAL_MS.items()}
    stall = Fault((2,), "forward-compute", 66, 67, ms=1500, computes=False, function=function)
    job = a_job(steps=120, noise=0.02, faults=[stall], typical=slowly)
    assert [one.ranks for one in diagnose(job).verdicts] == named


def test_a_delay_that_no_rank_waits_for_is_no_verdict() -> None:
    """The rank loads longer now and then, and has less to compute."""

    def lighter(own: Floats) -> Floats:
        own[2, 2] -= 400 * MS
        return own

    typical = {"data-load": 10.0, "forward-compute": 300.0, "backward-compute": 600.0,
               "optimizer": 50.0}  # fmt: skip
    faults = [Fault((2,), "data-load", at, at + 1, ms=350) for at in (31, 44, 49, 73, 80, 102)]
    job = a_job(8, 120, faults=faults, typical=typical, edit=lighter, stacks=False)
    assert diagnose(job).verdicts == ()


def test_a_rank_with_spikes_in_one_phase_and_spared_in_others_is_no_culprit() -> None:
    """What it takes longer to load, and more, it computes less in these very steps."""
    at = (31, 44, 49, 73, 80, 102)

    def lighter(own: Floats) -> Floats:
        own[2, 2, list(at)] -= 500 * MS
        return own

    typical = {"data-load": 10.0, "forward-compute": 300.0, "backward-compute": 600.0,
               "optimizer": 50.0}  # fmt: skip
    faults = [Fault((2,), "data-load", step, step + 1, ms=350) for step in at]
    job = a_job(8, 120, faults=faults, typical=typical, edit=lighter, stacks=False)
    assert diagnose(job).verdicts == ()


def test_a_device_whose_memory_is_corrected_in_a_few_steps() -> None:
    """Three steps in eighty prove nothing among four ranks, but for the errors counted in them."""
    spikes = [Fault((2,), "forward-compute", step, step + 1, ms=300) for step in (33, 57, 71)]
    job = a_job(steps=80, noise=0.01, faults=spikes)
    found_ = diagnose(job).verdicts
    assert not [one for one in found_ if one.cause == "compute" and not one.is_suspect]
    begins = {
        int(step): int(at)
        for step, at in zip(
            job.tables["steps"].ints("step"), job.tables["steps"].ints("start_ns"), strict=True
        )
    }
    rows = [(-1, "host-000", "ecc_sbe.gpu2", begins[step + 1] - MS, 7.0) for step in (33, 57, 71)]
    rows += [(rank, "host-000", "gpu_index", begins[1], float(rank)) for rank in range(4)]
    counted = a_table("rank host metric ts_ns value", rows)
    (verdict,) = diagnose(put(job, hardware=both(job.tables["hardware"], counted))).verdicts
    assert (verdict.cause, verdict.ranks) == ("compute", (2,))
    assert "gpu-errors" in {one.method for one in verdict.evidence}


def test_where_all_ranks_have_spikes_all_the_time_the_one_with_the_last_is_nobody_special() -> None:
    """A crowded host: about once a second any rank has a spike, so that most of them are within two
    moments of another, and some rank's last run is long."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        own = own_times(ranks=4, steps=3000, seed=seed) / 50
        own[random.uniform(size=own.shape) < 0.02] += 10 * MS
        assert found(own, step_ms=20.0) == [], seed

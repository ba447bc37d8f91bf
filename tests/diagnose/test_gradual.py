"""Steps that become longer little by little, on all ranks alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.detect.regression.rise import Rise
from stepscope.diagnose.detect.regression.shared import _is_hidden, stands_for_all
from stepscope.diagnose.detect.steps.gradual import gradual_rise, is_gradual
from stepscope.diagnose.detect.steps.stages import in_stages
from stepscope.diagnose.detect.steps.step_time import StepChange
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import Host, Job
from stepscope.window import Floats, Window

from .jobs import MS, Fault, a_job, a_table, scatter

RISE = 1.5


def noisy(level: Floats, noise: float = 0.02, lasting: float = 0.2, seed: int = 0) -> Floats:
    """Step times in ns: 100 ms times the level, with noise that is partly remembered."""
    random = np.random.default_rng(seed)
    return level * scatter(random, level.shape, noise, lasting) * 100 * MS


def growing(own: Floats) -> Floats:
    return np.asarray(own * np.linspace(1, RISE, own.shape[2]))


@pytest.mark.parametrize("steps", [16, 18, 20, 40, 100, 300])
def test_a_rise_over_all_steps_is_found(steps: int) -> None:
    found = [gradual_rise(noisy(np.linspace(1, RISE, steps), seed=seed)) for seed in range(10)]
    ratios = [one.ratio for one in found if one is not None]
    lost = [one.lost_fraction for one in found if one is not None]
    assert len(ratios) == 10
    assert np.median(ratios) == pytest.approx(RISE, abs=0.05)
    assert np.median(lost) == pytest.approx(0.2, abs=0.03)


def test_it_says_when_the_rise_began_and_ended() -> None:
    level = np.concatenate((np.ones(100), np.linspace(1, RISE, 100), np.full(100, RISE)))
    found = gradual_rise(noisy(level))
    assert found is not None
    assert abs(found.first - 100) <= 20
    assert abs(found.stop - 200) <= 20


def test_noise_that_is_remembered_for_many_steps_is_no_rise() -> None:
    flat = [noisy(np.ones(steps), 0.05, 0.8, seed) for steps in (40, 100, 300)
            for seed in range(70)]  # fmt: skip
    assert sum(gradual_rise(series) is not None for series in flat) <= 1


def test_two_jumps_are_stages_and_a_trend_is_not() -> None:
    jumps = np.repeat([1.0, 1.25, 1.5], (80, 90, 90))
    found = [in_stages(noisy(jumps, seed=seed)) for seed in range(10)]
    assert sum(one is not None and abs(one.split - 80) <= 2 for one in found) >= 9
    ramps = [noisy(np.linspace(1, RISE, 260), seed=seed) for seed in range(20)]
    flat = [noisy(np.ones(steps), 0.05, 0.8, seed) for steps in (100, 260) for seed in range(50)]
    assert all(in_stages(series) is None for series in (*ramps, *flat))


def test_a_rise_that_ended_again_is_none() -> None:
    hill = np.concatenate((np.linspace(1, RISE, 50), np.linspace(RISE, 1, 50)))
    assert gradual_rise(noisy(hill)) is None


def test_a_job_that_becomes_slower_as_a_whole_has_a_verdict_without_ranks() -> None:
    (one,) = diagnose(a_job(noise=0.01, edit=growing, stacks=False)).verdicts
    assert one.ranks == ()
    assert one.confidence >= 0.5
    assert "gradually from step" in one.summary
    assert one.lost_fraction == pytest.approx(0.2, abs=0.04)


def test_where_one_rank_becomes_slower_it_is_named_and_the_others_are_not_accused() -> None:
    def one_grows(own: Floats) -> Floats:
        own[:, 2] *= np.linspace(1, 2, own.shape[2])
        return own

    found = diagnose(a_job(noise=0.01, edit=one_grows, stacks=False)).verdicts
    assert [one.ranks for one in found if not one.is_suspect] == [(2,)]


def test_a_rank_is_named_whose_slowness_grows_though_most_of_it_lies_where_others_wait() -> None:
    """Hosts time the passes of a job whose gradients are reduced within backward: only in forward
    it shows which rank is slow, and there it takes a small part of what steps get longer."""
    random, ranks, steps = np.random.default_rng(3), 8, 60
    times = np.ones((ranks, steps))
    times[2, 12:] = np.linspace(1, 4, steps - 12)
    forward, backward = (ms * times * random.lognormal(0, 0.01, times.shape) for ms in (20, 100))
    both = (forward + backward).max(axis=0)
    rows = [(rank, step, phase, int(ms * MS))
            for rank in range(ranks) for step in range(steps)
            for phase, ms in (("fwd", forward[rank, step]),
                              ("bwd", both[step] - forward[rank, step]))]  # fmt: skip
    whole = [(rank, step, int(both[step] * MS)) for rank in range(ranks) for step in range(steps)]
    hosts = (Host("a", (0, 1, 2, 3)), Host("b", (4, 5, 6, 7)))
    (verdict,) = diagnose(Window(Job("timed", ranks, hosts), {
        "steps": a_table("rank step duration_ns", whole),
        "phases": a_table("rank step phase duration_ns", rows),
    })).verdicts  # fmt: skip
    assert verdict.ranks == (2,)
    assert verdict.lost_fraction == pytest.approx(1 - 1 / times[2, 12:].mean(), abs=0.15)


@pytest.mark.parametrize(
    ("known", "ratio", "stands"), [(0.3, 1.3, True), (0.3, 1.0, False), (0.8, 1.2, False)]
)
def test_the_known_part_of_a_step_stands_for_the_rest(
    known: float, ratio: float, stands: bool
) -> None:
    """Of passes that may contain waiting, own times are not known; of the optimizer they are."""
    before_ns, own_ns = 1000.0 * MS, known * 1000 * MS
    change = StepChange(20, 1.3, before_ns, 1.3 * before_ns, 9.0)
    more = own_ns * (ratio - 1)
    rise = Rise(0.3 * before_ns, more, 1.0, more, ratio, False, None, None, 0.0, 0.0)
    assert stands_for_all(rise, change) is stands


def test_a_healthy_job_has_no_trend() -> None:
    assert diagnose(a_job(steps=60)).state == "healthy"


def test_a_trend_is_no_jump_and_a_jump_no_trend() -> None:
    ramps = [noisy(np.linspace(1, RISE, 100), seed=seed) for seed in range(10)]
    jumps = [noisy(np.repeat([1, RISE], (40, 60)), seed=seed) for seed in range(10)]
    assert all(map(is_gradual, ramps)) and not any(map(is_gradual, jumps))


def test_what_only_rises_behind_a_culprit_costs_nothing() -> None:
    """Steps are as long as before: they wait for the culprit, whatever the others do longer."""
    job = Observed(a_job(faults=[Fault((2,), "forward-compute", 20, ms=60)], stacks=False))
    steps = len(job.line.steps)
    culprit = Suspect(2, "forward-compute", ("forward-compute",), 20, steps, 0.5, 20.0, 5.0,
                      60.0 * MS, 3.0, 1)  # fmt: skip
    rise = StepChange(150, 1.2, 100.0 * MS, 120.0 * MS, 10.0)
    assert _is_hidden(job, 150, rise, [culprit])
    assert not _is_hidden(job, 150, rise, [replace(culprit, stop=170)])
    assert not _is_hidden(job, 20, replace(rise, split=20), [replace(culprit, first=10)])

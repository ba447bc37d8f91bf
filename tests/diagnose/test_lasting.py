"""Slow ranks by evidence in bits: what is certain, what is noise, and what cannot be known."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.lasting import Lasting, lasting
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.window import Floats

from .jobs import MS, Fault, a_job

STEP = 100.0 * MS


def own_times(ranks: int, steps: int, noise: float = 0.03, seed: int = 0) -> Floats:
    normal = np.random.default_rng(seed).normal(size=(ranks, steps))
    return np.asarray(80.0 * MS * np.exp(noise * normal))


def judged(own: Floats) -> Lasting:
    found = lasting(own, [np.arange(len(own))], STEP)
    assert found is not None
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_one_slow_rank_in_groups_of_any_size(ranks: int) -> None:
    own = own_times(ranks, 60)
    own[1] *= 1.3
    found = judged(own)
    assert np.flatnonzero(found.bits > 0.5).tolist() == [1]
    assert (found.first[1], found.stop[1]) == (0, 60)
    assert found.excess_ns[1] == pytest.approx(24 * MS, rel=0.15)


def test_seven_doubled_steps_after_seven_are_certain() -> None:
    own = own_times(8, 14)
    own[5, 7:] *= 2
    found = judged(own)
    assert found.bits[5] > 8
    assert (found.first[5], found.stop[5]) == (7, 14)
    assert (np.delete(found.bits, 5) < 0).all()


def test_a_stretch_that_is_over_has_two_ends() -> None:
    own = own_times(16, 200)
    own[3, 60:100] *= 1.2
    found = judged(own)
    assert found.bits[3] > 1
    assert np.abs(np.array([found.first[3] - 60, found.stop[3] - 100])).max() <= 1


def test_two_of_four_from_some_step_on() -> None:
    """Beside two slow ranks the other two look fast, but not among themselves."""
    own = own_times(4, 200)
    own[[1, 2], 100:] *= 1.5
    assert np.flatnonzero(judged(own).bits > 0).tolist() == [1, 2]


def test_half_that_were_always_slower_may_be_half_that_are_fast() -> None:
    own = own_times(8, 100)
    own[:4] *= 1.1
    assert (judged(own).bits < 0).all()


def test_of_one_step_only_much_is_evidence() -> None:
    own = own_times(8, 1)
    own[2] *= 1.1
    assert judged(own).bits[2] < 0
    own[2] *= 2
    assert judged(own).bits[2] > 3


@pytest.mark.parametrize("noise", [0.03, 0.1])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_noise_is_below_even_odds(noise: float, ranks: int) -> None:
    tops = [judged(own_times(ranks, 50, noise, seed)).bits.max() for seed in range(40)]
    assert max(tops) < 0.5


def test_unknown_ranks_and_lone_ranks_have_no_evidence() -> None:
    own = own_times(4, 20)
    own[2] = np.nan
    assert judged(own).bits[2] == -np.inf
    assert lasting(own_times(1, 20), [np.arange(1)], STEP) is None
    assert lasting(own_times(4, 0), [np.arange(4)], STEP) is None


def test_renumbered_ranks_are_the_same_ranks() -> None:
    own = own_times(8, 40)
    own[3, 10:] *= 1.4
    order = np.random.default_rng(2).permutation(8)
    assert judged(own[order]).bits == pytest.approx(judged(own).bits[order])


def test_by_name_it_explains_and_weighs_as_the_default() -> None:
    slow = Fault((2,), "backward-compute", 100, ms=60, function="burn (train.py:99)")
    diagnosis = diagnose(a_job(faults=[slow]), Settings(methods=("lasting",)))
    (verdict,) = diagnosis.verdicts
    assert (verdict.ranks, verdict.cause, verdict.phase) == ((2,), "compute", "backward-compute")
    assert verdict.evidence[0].method == "lasting"
    assert "lasting" not in {
        one.method for one in diagnose(a_job(faults=[slow])).verdicts[0].evidence
    }

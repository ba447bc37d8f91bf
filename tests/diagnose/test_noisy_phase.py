"""A rank that is surely slow in one phase, and as much in another one that is noisy."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.window import Floats

from .jobs import PHASES, a_job, scatter

FORWARD, BACKWARD = PHASES.index("forward-compute"), PHASES.index("backward-compute")


def starved(own: Floats) -> Floats:
    """Both ranks get more or less of their processors in forward passes, and rank 1 less."""
    own = own.copy()
    own[FORWARD] *= scatter(np.random.default_rng(1), own[FORWARD].shape, 0.2, 0.8)
    own[FORWARD, 1] *= 1.3
    own[BACKWARD, 1] *= 1.3
    return own


def test_what_a_slow_rank_costs_includes_its_noisy_phases() -> None:
    (verdict,) = diagnose(a_job(ranks=2, steps=150, noise=0.02, edit=starved)).verdicts
    assert verdict.ranks == (1,)
    assert verdict.lost_fraction == pytest.approx(0.3 * 80 / (88 + 0.3 * 80), abs=0.03)

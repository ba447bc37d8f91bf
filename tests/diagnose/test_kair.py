"""KAIR as published: rhythms, outliers at 3 sigma, and what they go back to."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stepscope.diagnose.detect.published.kair import Outliers, divergences, rhythms, z_scores
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.numeric import compiled
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.window import Window


def a_job(*faults: str, layout: Parallelism) -> Window:
    return simulate(Scenario(ranks=64, steps=20, seed=3, parallelism=layout,
                             faults=tuple(map(parse_fault, faults)))).window  # fmt: skip


def by_name(job: Window) -> Diagnosis:
    return diagnose(job, Settings(methods=("kair-published",)))


def test_scores_of_three_workers_worked_out_by_hand() -> None:
    """D(A, B) = 0, D(A, C) = D(B, C) = 0.5, so S = 0.25, 0.25, 0.5."""
    done = np.array([[0.5, 1.0, 1.0], [0.5, 1.0, 1.0], [0.0, 0.5, 1.0]])
    assert np.allclose(divergences(done), [0.25, 0.25, 0.5], atol=1e-4)
    assert divergences(done[:1]).tolist() == [0.0]


@pytest.mark.parametrize("native", [True, False])
def test_some_workers_stand_for_all_others(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done = np.sort(np.random.default_rng(5).random((200, 16)), axis=1)
    done[7] = 1.0
    whole = divergences(done)
    if not native:
        monkeypatch.setattr(compiled, "mean_divergences", None)
    assert np.abs(divergences(done, at_most=60) - whole).max() < 0.05
    assert int(np.argmax(divergences(done, at_most=60))) == 7
    assert np.array_equal(divergences(done, at_most=200), divergences(done))


def test_deviations_of_operators_worked_out_by_hand() -> None:
    """Mean 3 and deviation 2 of 1, 3, 3, 3, 5 times the root of 5 / 2; alone there is none."""
    found = z_scores(np.array([0, 0, 0, 0, 1]), np.array([1.0, 1.0, 5.0, 5.0, 9.0]))
    assert found.tolist() == [-1.0, -1.0, 1.0, 1.0, 0.0]


def test_a_slow_rank_is_where_the_outliers_go_back_to() -> None:
    for layout in (Parallelism(), Parallelism(tp=2), Parallelism(pp=4)):
        (verdict,) = by_name(a_job("gpu_slow:rank=6,factor=2", layout=layout)).verdicts
        assert verdict.ranks == (6,)
        assert "K-S" in verdict.evidence[0].detail


def test_a_score_is_no_blame_because_those_who_wait_score_alike() -> None:
    job = Observed(a_job("gpu_slow:rank=6,factor=1.3", layout=Parallelism(tp=2)))
    assert job.graph is not None
    scores = divergences(rhythms(job.graph))
    assert scores[7] > 0.8 * scores[6], "rank 7 shares layers with rank 6"
    outliers = Outliers.of(job.graph)
    roots = Counter(root for one in outliers.of_row(7) if (root := outliers.blame(one)))
    assert roots.most_common(1)[0][0] == (6, 6)

"""Ranks that are slow alike: none of them costs anything alone, and all together do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.decide import sets
from stepscope.diagnose.decide.experts import same_experts
from stepscope.diagnose.decide.sets import with_sets
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import ProcessGroup
from stepscope.window import Floats

from .jobs import Fault, a_job

SIX = (3, 9, 14, 20, 27, 30)


def slow(ranks: tuple[int, ...], times: float, start: int = 0) -> Fault:
    return Fault(ranks, "backward-compute", start, times=times)


@pytest.mark.parametrize("start", [0, 30])
def test_six_of_32_that_cost_nothing_alone_are_named_with_what_they_cost_together(
    start: int,
) -> None:
    (verdict,) = diagnose(a_job(32, 80, 0.01, faults=[slow(SIX, 1.2, start)])).verdicts
    assert (verdict.cause, verdict.ranks) == ("compute", SIX)
    assert verdict.lost_fraction == pytest.approx(0.1, abs=0.03)


def test_a_quarter_of_the_ranks_is_a_set_as_well() -> None:
    ranks = tuple(range(0, 32, 4))
    (verdict,) = diagnose(a_job(32, 60, 0.01, faults=[slow(ranks, 1.5)])).verdicts
    assert verdict.ranks == ranks


def test_beside_a_culprit_that_costs_more_a_set_costs_what_is_left_without_it() -> None:
    job = a_job(32, 80, 0.01, faults=[slow(SIX, 1.2), slow((1,), 2.0)])
    first, *others = diagnose(job).verdicts
    assert first.ranks == (1,)
    assert [one.ranks for one in others] == [SIX]
    whole = sum(one.lost_fraction or 0.0 for one in (first, *others))
    assert whole < 0.5  # a step without any of them takes half as long


def test_ranks_that_add_nothing_to_the_cost_of_one_are_no_set_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for it, and healing it alone brings back what healing all of them does."""

    def found(rank: int, lost: float) -> Slowdown:
        decision = Decision("costs-enough", lost > 0.02, lost, 0.02)
        suspect = Suspect(rank, "forward-compute", ("forward-compute",), 5, 60,
                          0.5, 9.0, 5.0, 1e8, 1.5, 1)  # fmt: skip
        return Slowdown("argus-l2", "compute", "", (rank,), lost_fraction=lost, suspect=suspect,
                        slowdown=1.5, columns=frozenset(range(5, 60)), steps=(5, 59),
                        decisions=(decision,))  # fmt: skip

    part, job = [found(2, 0.19), found(5, 0.0), found(6, 0.0)], Observed(a_job(8, 60))
    monkeypatch.setattr(sets, "_is_no_chance", lambda *_: True)
    for together, ranks in ((0.2, {(2,), (5,), (6,)}), (0.5, {(2, 5, 6)})):
        monkeypatch.setattr(sets, "_lost_fraction", lambda *_, lost=together: lost)
        assert {one.ranks for one in with_sets(job, part, ())} == ranks


@pytest.mark.parametrize("seed", range(8))
def test_the_slowest_of_ranks_that_differ_are_no_set(seed: int) -> None:
    """Healthy ranks differ permanently by 4 %: some exceed every limit for a single rank."""

    def differ(own: Floats) -> Floats:
        speeds = np.random.default_rng(seed).normal(scale=0.04, size=own.shape[1])
        scaled: Floats = own * np.exp(speeds)[None, :, None]
        return scaled

    found = diagnose(a_job(64, 60, 0.01, seed, edit=differ, stacks=False)).verdicts
    assert all(len(one.ranks) == 1 for one in found)


@pytest.mark.parametrize(("ranks", "same"), [((1, 5), True), ((1, 6), False)])
def test_a_set_at_one_place_of_all_expert_groups_holds_the_same_experts(
    ranks: tuple[int, ...], same: bool
) -> None:
    window = a_job(8, 10)
    experts = tuple(ProcessGroup(f"ep-{first}", "ep", tuple(range(first, first + 4)))
                    for first in (0, 4))  # fmt: skip
    window = replace(window, job=replace(window.job, groups=experts))
    found = same_experts(
        window, Slowdown("argus-l2", "load_imbalance", "", ranks, phase="moe_experts")
    )
    assert bool(found) == same

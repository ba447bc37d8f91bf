"""Long steps on a schedule: by design where the job pauses, no excuse for one rank alone."""

from __future__ import annotations

from stepscope.diagnose.detect.steps.duties import planned_steps
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose

from .jobs import Fault, a_job

EVERY, STEPS = 7, 60


def pausing(ranks: tuple[int, ...], every: int = EVERY) -> Observed:
    fault = Fault(ranks, "forward-compute", 10, ms=200, every=every)
    return Observed(a_job(4, STEPS, 0.01, faults=[fault], stacks=False))


def test_what_all_ranks_do_on_a_schedule_is_planned() -> None:
    assert planned_steps(pausing((0, 1, 2, 3))) == frozenset(range(14, STEPS, EVERY))


def test_what_one_rank_does_alone_is_not() -> None:
    assert planned_steps(pausing((2,))) == frozenset()


def test_unless_it_saves_for_the_others_at_round_intervals() -> None:
    assert planned_steps(pausing((0,), every=10)) == frozenset(range(10, STEPS, 10))


def test_its_cost_is_in_the_ledger() -> None:
    found = diagnose(pausing((2,), every=3).window)
    assert found.ledger is not None
    lost = sum(one.fraction for one in found.ledger.lost) + found.ledger.unexplained_fraction
    assert lost > 0.3

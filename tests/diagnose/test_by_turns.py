"""Slow ranks of which now one and now the other holds up the job."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.evaluate.columns import only_tables
from stepscope.window import Floats

from .jobs import a_job


def by_turns(every: int, ms: float = 40.0, since: int = 0, *tables: str) -> Diagnosis:
    """Of eight ranks with steps of 90 ms, rank 1 or 6 takes longer, so many steps each.

    Args:
        tables: what was recorded; all by default.
    """

    def late(own: Floats) -> Floats:
        for step in range(since, own.shape[2]):
            own[1, 1 if step // every % 2 else 6, step] += ms * 1e6
        return own

    window = a_job(8, noise=0.02, edit=late, stacks=False)
    return diagnose(only_tables(window, *tables) if tables else window)


@pytest.mark.parametrize("since", [0, 60])
@pytest.mark.parametrize("every", [1, 5, 14, 30, 60])
def test_both_are_named_with_their_parts_of_the_cost(every: int, since: int) -> None:
    found = by_turns(every, since=since)
    assert {rank for one in found.verdicts for rank in one.ranks} == {1, 6}
    assert found.state == ("regression" if since else "slow")
    ledger = found.ledger
    assert ledger is not None
    lost = sum(entry.fraction for entry in ledger.lost)
    assert lost == pytest.approx(0.31 * (1 - since / 200), abs=0.03)
    assert ledger.unexplained_fraction < 0.03


@pytest.mark.parametrize("every", [14, 60, 100])
@pytest.mark.parametrize("others", ["phases", "comm_ops"])
def test_phases_or_operators_alone_show_it(others: str, every: int) -> None:
    """Of operators alone it shows that no step's work lies before the step."""
    found = by_turns(every, 40.0, 0, "steps", others)
    assert {rank for one in found.verdicts for rank in one.ranks} == {1, 6}
    lost = sum(one.lost_fraction or 0.0 for one in found.verdicts)
    assert lost > (0.25 if every < 100 else 0.5)


@pytest.mark.parametrize("every", [1, 14, 60])
def test_who_costs_little_by_turns_is_named_as_well(every: int) -> None:
    found = by_turns(every, ms=10.0)
    assert {rank for one in found.verdicts for rank in one.ranks} == {1, 6}


def test_three_of_eight_that_hold_up_the_others_at_random_are_named() -> None:
    whose = np.random.default_rng(5).integers(3, size=200)

    def late(own: Floats) -> Floats:
        own[1, whose, np.arange(own.shape[2])] += 40e6
        return own

    found = diagnose(a_job(8, noise=0.02, edit=late, stacks=False)).verdicts
    assert {rank for one in found for rank in one.ranks} == {0, 1, 2}

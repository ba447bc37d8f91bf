"""Findings that are effects of another one: whom a helper thread's hold of the GIL slows down."""

from __future__ import annotations

import pytest

from stepscope.diagnose.decide.same_loss import has_victim
from stepscope.diagnose.finding import Cause, Slowdown, Waste


def holder(*ranks: int) -> Waste:
    return Waste("gil-holder", "host", "", ranks, lost_fraction=0.2, holds_gil=True)


def slow(*ranks: int, cause: Cause = "host", lost: float = 0.1) -> Slowdown:
    return Slowdown("argus-l2", cause, "", ranks, lost_fraction=lost)


@pytest.mark.parametrize(
    ("one", "other", "is_victim"),
    [
        (holder(), slow(3), True),
        (holder(3), slow(3), True),
        (holder(3), slow(2), False),
        (holder(3), slow(), False),
        (holder(), slow(3, lost=0.3), False),
        (holder(), slow(3, cause="network"), False),
    ],
)
def test_what_runs_while_a_thread_holds_the_gil(
    one: Waste, other: Slowdown, is_victim: bool
) -> None:
    assert has_victim(one, other) == is_victim


def test_waste_of_another_kind_has_no_such_victims() -> None:
    assert not has_victim(Waste("user-code", "code", "", lost_fraction=0.2), slow(3))

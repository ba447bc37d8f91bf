"""Findings that are effects of another one: whom a helper thread's hold of the GIL slows down."""

from __future__ import annotations

import pytest

from stepscope.diagnose.decide.same_loss import (
    has_victim,
    is_part_of,
    is_turn,
    victims_beside,
    with_function,
)
from stepscope.diagnose.finding import Cause, Recurring, Regression, Slowdown, SlowLink, Waste
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window


def a_job() -> Observed:
    return Observed(Window(Job("a-job", 4), {}))


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
    assert has_victim(a_job(), one, other) == is_victim


@pytest.mark.parametrize(("lost", "stop", "is_part"), [(0.11, 54, True), (0.2, 149, False)])
def test_a_rise_may_be_a_part_of_what_is_lost_all_the_time(
    lost: float, stop: int, is_part: bool
) -> None:
    """Samples of unequal length made steps a little longer for a while, too."""
    always = Waste("unequal-work", "load_imbalance", "", steps=(5, 149), lost_fraction=0.26)
    rise = Regression("regression", "load_imbalance", "", steps=(15, stop), lost_fraction=lost)
    assert is_part_of(rise, always) == is_part


def test_waste_of_another_kind_has_no_such_victims() -> None:
    assert not has_victim(a_job(), Waste("user-code", "code", "", lost_fraction=0.2), slow(3))


@pytest.mark.parametrize(
    ("group", "cause", "lost", "is_victim"),
    [
        ("ep-1", "load_imbalance", 0.01, True),
        ("ep-0", "load_imbalance", 0.01, False),
        ("ep-1", "compute", 0.01, False),
        ("ep-1", "load_imbalance", 0.2, False),
    ],
)
def test_who_gets_more_tokens_also_receives_more(
    group: str, cause: Cause, lost: float, is_victim: bool
) -> None:
    groups = (ProcessGroup("ep-0", "ep", (0, 1)), ProcessGroup("ep-1", "ep", (2, 3)))
    job = Observed(Window(Job("a-job", 4, (), {}, groups), {}))
    link = SlowLink("slow-link", "network", "", group=group, lost_fraction=lost, steps=(5, 50))
    busy = Slowdown("argus-l2", cause, "", (3,), lost_fraction=0.1, steps=(5, 50))
    assert victims_beside(job, [link], [busy]) == ([(link, busy)] if is_victim else [])


@pytest.mark.parametrize(("rank", "score", "is_one"), [
    (3, 0.45, True), (3, 0.9, False), (7, 0.45, False),
])  # fmt: skip
def test_a_suspect_that_has_its_turn_in_a_loss_of_all_is_no_more_than_that(
    rank: int, score: float, is_one: bool
) -> None:
    turns = Recurring("in-turns", "data_loading", "", (), lost_fraction=0.4, in_turns=(2, 3, 4))
    own = Suspect(rank, None, ("data-load",), 5, 50, 0.3, 20.0, 5.0, 1e7, 1.3, 1)
    other = Slowdown("argus-l2", "data_loading", "", (rank,), score=score, suspect=own)
    assert is_turn(turns, other) == is_one


@pytest.mark.parametrize(("since", "lost"), [(54, 0.22), (30, 0.1)])
def test_a_function_that_came_with_a_rise_costs_what_steps_became_longer_by(
    since: int, lost: float
) -> None:
    """A host that stands still has launched nothing, so its device stands still for longer."""
    waits = Waste("user-code", "code", "in 10 % of the samples", function="sync (loop.py:18)",
                  steps=(56, 119), lost_fraction=0.1)  # fmt: skip
    rise = Regression("regression", "code", "1.3 times as long", steps=(since, 119),
                      lost_fraction=0.22)  # fmt: skip
    assert with_function(waits, [rise]).lost_fraction == lost

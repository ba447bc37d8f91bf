"""Ranks that hold up all others in turns, and what comes back every few steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from stepscope.diagnose import registry
from stepscope.diagnose.decide.undecided import _without_own_time
from stepscope.diagnose.detect.ranks.in_turns import Turns, _cause
from stepscope.diagnose.detect.recurrent.recurring_loss import _since
from stepscope.diagnose.finding import Recurring, Skipped
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import HIDDEN, OF, OwnTime
from stepscope.diagnose.words.periods import place
from stepscope.trace import Host
from stepscope.window import Window

from .loops import LOAD, RANKS, STEPS, Loop, a_table, a_window
from .traces import Piece, a_trace

SINCE = 40


def test_loaders_that_are_late_in_turns_are_said_to_be_though_one_is_late_most_often() -> None:
    loop, random = Loop(), np.random.default_rng(5)
    late = random.choice(RANKS, size=STEPS - SINCE, p=[0.35, *[0.65 / 7] * 7])
    longer = random.uniform(50, 100, STEPS - SINCE) * np.where(late == 0, 2, 1)
    loop.work[LOAD][late, np.arange(SINCE, STEPS)] += longer
    found = diagnose(a_window(a_table(loop.phases()))).verdicts[0]
    assert (found.cause, found.ranks, found.phase) == ("data_loading", (), LOAD)
    assert found.steps is not None and abs(found.steps[0] - SINCE) <= 2
    assert found.lost_fraction == pytest.approx(0.43, abs=0.05)


def test_three_of_the_loaders_of_a_host_may_be_late_in_turns_by_chance() -> None:
    loop, random = Loop(), np.random.default_rng(6)
    late = random.choice([4, 5, 6], size=STEPS - SINCE)
    loop.work[LOAD][late, np.arange(SINCE, STEPS)] += random.uniform(50, 200, STEPS - SINCE)
    window = a_window(a_table(loop.phases()))
    hosts = (Host("host-0", (0, 1, 2)), Host("host-1", (3, 4, 5, 6, 7)))
    found = diagnose(Window(replace(window.job, hosts=hosts), window.tables)).verdicts[0]
    assert (found.cause, found.ranks, found.phase) == ("data_loading", (), LOAD)


@dataclass(frozen=True)
class Says:
    """A detector that finds a loss of the whole job."""

    name: str
    loss: float
    needs = Needs("phases")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Recurring]:
        yield Recurring(self.name, "unknown", "", (), steps=(5, 79), lost_fraction=self.loss,
                        lost_ns=1e9, score=0.7, victims=0, says=self.name)  # fmt: skip


def test_of_two_losses_of_all_ranks_the_larger_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (Says("some in turns", 0.12), Says("all, every few steps", 0.4))
    monkeypatch.setattr(registry, "RECURRENT", both)
    monkeypatch.setattr(registry, "DETECTORS", both)
    found = diagnose(a_window(a_table(Loop().phases())))
    assert [one.summary for one in found.verdicts] == ["all, every few steps"]


def test_what_comes_back_began_with_its_first_time_if_several_more_would_have_come_before() -> None:
    job = Observed(clean(a_window(a_table(Loop().phases())))[0])

    def since(*begins: int) -> tuple[int, int]:
        return _since(job, [np.array([begin]) for begin in begins])

    assert since(*range(50, STEPS, 10)) == (50, STEPS)
    assert since(*range(20, STEPS, 10)) == (job.line.warm_up, STEPS)
    assert since(*range(8, 30, 5)) == (job.line.warm_up, 33)


def test_what_is_lost_in_a_long_run_of_steps_is_a_part_of_these() -> None:
    """It was related to the time up to the begin of the last run: 186 % of the step time."""
    job = Observed(clean(a_window(a_table(Loop().phases())))[0])
    runs = [np.array([20]), np.arange(22, 24), np.arange(25, 42)]
    assert _since(job, runs) == (20, 42)


def test_time_in_no_phase_is_described_and_not_named() -> None:
    assert place("outside-phases") == " before or after the phases of a step"
    assert place("optimizer") == " in optimizer"


def test_what_is_missing_is_said_where_more_than_steps_was_recorded() -> None:
    window = a_window(a_table(Loop().phases()))
    hidden = OwnTime((), np.zeros((0, 0, 0)), np.zeros((0, 0, 0)), (Skipped(f"{OF}fw", HIDDEN),))
    job = SimpleNamespace(window=window, own=hidden)
    assert _without_own_time(job) == (  # type: ignore[arg-type]
        "how long ranks waited in fw was not measured, and nothing else is known"
    )
    job.own = replace(hidden, skipped=(Skipped("own time", "no operator finished"),))
    assert _without_own_time(job).endswith("no operator finished")  # type: ignore[arg-type]


def test_hosts_that_launch_nothing_in_turns_have_no_more_work() -> None:
    """In each step the device of another rank idles for 20 ms, and all others wait for it."""
    window = a_trace(
        lambda rank, step: [Piece("gemm", 30), Piece("gemm", 10, 20.0 * (step % 4 == rank))], 4, 16
    )
    (found,) = diagnose(window).verdicts
    assert (found.cause, found.ranks) == ("host", ())


@pytest.mark.parametrize(("elsewhere", "cause"), [(1.02, "host"), (1.3, "load_imbalance")])
def test_who_is_late_in_one_place_of_its_step_has_no_more_work(
    elsewhere: float, cause: str
) -> None:
    """Of operators alone: in each step a different rank takes 30 % longer."""
    columns, rows = np.arange(20), np.arange(20) % 4
    total = np.full((4, 20), 100.0)
    total[rows, columns] = 130.0
    own = OwnTime(("between-collectives",), total[None], total[None],
                  elsewhere=np.where(total > 100, elsewhere, 1.0))  # fmt: skip
    job = SimpleNamespace(own=own, total=total, pauses=None, groups=lambda _: [np.arange(4)],
                          line=SimpleNamespace(warm_up=0, steps=columns),
                          window=SimpleNamespace(table=lambda name: None))  # fmt: skip
    turns = Turns(columns, rows, np.full(20, 30.0), 0.23)
    assert _cause(cast(Observed, job), turns)[0] == cause

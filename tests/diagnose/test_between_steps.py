"""A rank that is slow between its steps, where no phase and no step is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.window import Column, Ints, Window
from tests.diagnose.jobs import Fault, a_job, with_samples


def test_what_a_rank_does_between_steps_costs_what_others_wait_for_it() -> None:
    slow = Fault((1,), "data-load", start=0, ms=40.0)
    (verdict,) = diagnose(loading_between_steps(a_job(faults=[slow], stacks=False))).verdicts
    assert verdict.ranks == (1,)
    assert verdict.lost_fraction == pytest.approx(40 / 132, abs=0.05)


def loading_between_steps(window: Window) -> Window:
    """The same job; steps begin with the forward pass, and loading is no phase."""
    steps, phases = window.tables["steps"], window.tables["phases"]
    loads = phases.strings("phase").equals("data-load")
    spent = _by_step(phases.take(loads).ints("rank"), phases.take(loads).ints("step"))
    order = np.argsort(spent)
    at = order[np.searchsorted(spent[order], _by_step(steps.ints("rank"), steps.ints("step")))]
    lasted = phases.take(loads).ints("duration_ns")[at]
    begun: dict[str, Column] = {
        "start_ns": steps.ints("start_ns") + lasted,
        "duration_ns": steps.ints("duration_ns") - lasted,
    }
    later = replace(steps, columns={**steps.columns, **begun})
    return Window(window.job, {**window.tables, "steps": later, "phases": phases.take(~loads)})


def _by_step(rank: Ints, step: Ints) -> Ints:
    return rank * 100_000 + step


def test_a_rank_that_computes_there_is_not_starved_because_its_host_is_crowded() -> None:
    """Whoever computes on a crowded host waits for a processor, while those that wait do not."""
    slow = Fault((1,), "data-load", start=0, ms=40.0, function="confuse (train.py:98)")
    job = loading_between_steps(a_job(faults=[slow]))
    job = with_samples(job, "run_delay", lambda rank, _: 0.3 if rank == 1 else 0.05)
    job = with_samples(job, "stranger_cpu_util", lambda rank, _: 1.0)
    (verdict,) = diagnose(with_samples(job, "cpu_util", lambda *_: 0.1)).verdicts
    assert (verdict.ranks, verdict.function) == ((1,), None)
    used = with_samples(job, "cpu_util", lambda rank, _: 0.4 if rank == 1 else 0.1)
    (verdict,) = diagnose(used).verdicts
    assert (verdict.ranks, verdict.function) == ((1,), "confuse (train.py:98)")


def test_on_a_crowded_host_it_waits_as_much_as_others_for_as_much_computing() -> None:
    slow = Fault((1,), "data-load", start=0, ms=40.0, function="confuse (train.py:98)")
    job = loading_between_steps(a_job(faults=[slow]))
    job = with_samples(job, "cpu_util", lambda rank, _: 0.2 if rank == 1 else 0.1)
    for usual, function in ((0.02, None), (0.15, "confuse (train.py:98)")):
        alike = with_samples(job, "run_delay", waits(usual))
        (verdict,) = diagnose(alike).verdicts
        assert (verdict.ranks, verdict.function) == ((1,), function)


def waits(usual: float) -> Callable[[int, int], float]:
    """Rank 1 waits for a processor for 15 % of the time more than others."""
    return lambda rank, _: usual + 0.15 if rank == 1 else usual

"""Slow steps at regular distances: in steps or in seconds, from what source, and none by chance."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.steps.periods import CAUSES, periods
from stepscope.diagnose.numeric.combs import Axis, best, combs
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.shown import Period
from stepscope.report.json import to_json
from stepscope.report.text import render_text
from stepscope.window import Floats, Ints, Strings, Table, Window

from .jobs import MS, START, Fault, a_job, a_table, put, with_samples

EVERYBODY = (0, 1, 2, 3)
SAVING = "save (torch/serialization.py:900)"
TIMER_MS = 1_210


def saving(every: int = 20, function: str | None = SAVING, ms: float = 80) -> Fault:
    return Fault(EVERYBODY, "optimizer", 0, every=every, ms=ms, function=function)


def by_a_timer(rank: int, ms: float = 60.0, every_ms: float = TIMER_MS) -> Window:
    """Something takes the processor of one rank every so many milliseconds of wall time."""

    def disturb(own: Floats) -> Floats:
        clock, due = 0.0, 500.0
        for step in range(own.shape[2]):
            takes = float(own[:, :, step].sum(axis=0).max()) / MS + 2.2
            if clock + takes > due:
                own[1, rank, step] += ms * MS
                takes, due = takes + ms, due + every_ms
            clock += takes
        return own

    return a_job(steps=400, edit=disturb, stacks=False)


def only(window: Window) -> Period:
    (period,) = periods(Observed(window))
    return period


def test_a_checkpoint_comes_every_so_many_steps() -> None:
    period = only(a_job(steps=400, faults=[saving()]))
    assert (period.unit, period.every, period.source) == ("steps", 20.0, "checkpoint")
    assert (period.hits, period.slots) == (19, 19)
    assert (period.ranks, period.phase) == ((), "optimizer")
    assert period.excess_ns == pytest.approx(80 * MS, rel=0.1)
    assert period.lost_fraction == pytest.approx(80 / (20 * 93 + 80), rel=0.1)
    assert set(period.at) == set(range(20, 400, 20))


def test_a_hiccup_just_before_a_checkpoint_is_none_of_it() -> None:
    hiccups = [Fault(EVERYBODY, "forward-compute", at - 1, at, ms=12) for at in (60, 120, 180, 240)]
    period = only(a_job(steps=300, faults=[saving(), *hiccups]))
    assert (period.every, period.hits, period.slots) == (20.0, 14, 14)


def test_a_timer_of_a_host_comes_every_so_many_seconds() -> None:
    """The steps between two of its events differ in number."""
    period = only(by_a_timer(rank=2))
    assert period.unit == "seconds"
    assert period.every == pytest.approx(TIMER_MS / 1e3, rel=0.01)
    assert period.ranks == (2,)
    assert period.source == "unknown source", "a distance alone is no evidence"


def test_other_processes_are_named_where_they_were_seen() -> None:
    window = by_a_timer(rank=2)
    at = np.array(only(window).at)
    steps = window.tables["steps"]
    first = steps.ints("rank") == 2
    busy = steps.ints("start_ns")[first][np.isin(steps.ints("step")[first], at)]
    period = only(put(window, hardware=stranger(busy)))
    assert (period.source, period.ranks) == ("other processes", (2,))
    assert "cores of the same processors" in period.because


def stranger(busy: Ints, metric: str = "stranger_cpu_util", always: float | None = None) -> Table:
    """Samples every 100 ms of what others use of rank 2's processors, or always use."""
    rows = []
    for time in range(START, START + 45_000 * MS, 100 * MS):
        used = float(((busy <= time) & (time - busy < 150 * MS)).any())
        rows += [(2, "host-000", metric, time, used)]
        if always is not None:
            rows += [(2, "host-000", "stranger_cpu_util", time, always)]
    return a_table("rank host metric ts_ns value", rows)


@pytest.mark.parametrize(
    ("others", "source", "cause"),
    [(0.6, "busy processors", "contention"), (0.0, "too few processors", "host")],
)
def test_waiting_for_a_processor_is_a_source_though_others_are_always_there(
    others: float, source: str, cause: str
) -> None:
    window = by_a_timer(rank=2)
    steps = window.tables["steps"]
    slow = (steps.ints("rank") == 2) & np.isin(steps.ints("step"), np.array(only(window).at))
    waiting = stranger(steps.ints("start_ns")[slow], "run_delay", others)
    period = only(put(window, hardware=waiting))
    assert (period.source, CAUSES[period.source]) == (source, cause)
    assert "waiting for a processor is " in period.because


def test_collections_at_regular_steps() -> None:
    fault = Fault((1,), "forward-compute", 0, every=25, ms=60, gc=True)
    period = only(a_job(steps=400, faults=[fault], stacks=False))
    assert (period.every, period.source, period.ranks) == (25.0, "garbage collection", (1,))


def test_a_function_that_nobody_knows_is_named_itself() -> None:
    period = only(a_job(steps=400, faults=[saving(function="digest (report.py:12)")]))
    assert (period.source, period.function) == ("a function", "digest (report.py:12)")


def test_the_phase_is_evidence_enough_for_an_evaluation() -> None:
    window = a_job(steps=300, faults=[saving(function=None)], stacks=False)
    phases = window.tables["phases"]
    kinds = phases.strings("phase")
    names = tuple("evaluate" if one == "optimizer" else one for one in kinds.values)
    period = only(put(window, phases=phases.with_column("phase", Strings(kinds.codes, names))))
    assert (period.source, period.phase) == ("evaluation", "evaluate")


def test_many_ranks_hide_no_checkpoint() -> None:
    """Seven events are enough for the job's own steps, however many ranks there are."""
    job = Observed(a_job(ranks=64, steps=360, faults=[
        Fault(tuple(range(64)), "optimizer", 0, every=50, ms=120)], stacks=False))  # fmt: skip
    assert [(one.every, one.hits) for one in periods(job)] == [(50.0, 7)]


def test_two_distances_at_once() -> None:
    found = periods(Observed(a_job(steps=600, faults=[saving(50), saving(17, ms=50)])))
    assert sorted(one.every for one in found) == [17.0, 50.0]


def test_a_job_without_a_period_shows_none() -> None:
    assert periods(Observed(a_job(steps=300))) == ()
    rising = Fault(EVERYBODY, None, 150, times=1.4)
    assert periods(Observed(a_job(steps=300, faults=[rising]))) == ()


def axis(steps: int, random: np.random.Generator, noise: float = 0.03) -> Axis:
    lasted = (1e9 * np.exp(noise * random.normal(size=steps))).astype(np.int64)
    return Axis(np.arange(steps), START + np.cumsum(lasted) - lasted, 1e9)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_random_spikes_make_no_period(rate: float) -> None:
    """The bound is 1 in 1,000; docs/methods/periods.md has many more trials."""
    random = np.random.default_rng(7)
    for _ in range(100):
        hit = random.random(300) < rate
        begins = np.flatnonzero(hit & ~np.append(False, hit[:-1]))
        assert combs(axis(300, random), begins, 1, 3) == []


def test_a_burst_of_spikes_makes_no_period() -> None:
    random = np.random.default_rng(3)
    for first in range(0, 240, 4):
        hit = np.zeros(300, np.bool_)
        hit[first : first + 50] = random.random(50) < 0.4
        begins = np.flatnonzero(hit & ~np.append(False, hit[:-1]))
        assert combs(axis(300, random), begins, 1, 3) == []


def test_the_unit_that_fits_better_is_chosen() -> None:
    random = np.random.default_rng(5)
    line = axis(600, random, noise=0.2)
    in_steps = best(line, np.arange(7, 600, 20))
    assert in_steps is not None and (in_steps.unit, in_steps.distance) == ("steps", 20.0)
    due = np.arange(5e9, line.since_begin[-1], 20.4e9)
    timed = best(line, np.searchsorted(line.since_begin, due, side="right") - 1)
    assert timed is not None and timed.unit == "seconds"
    assert timed.distance == pytest.approx(20.4e9, rel=0.01)


def test_even_steps_cannot_tell_steps_from_seconds() -> None:
    even = Axis(np.arange(200), START + np.arange(200) * 10**9, 1e9)
    found = best(even, np.arange(4, 200, 10))
    assert found is not None and found.unit == "steps"
    assert found.either == pytest.approx(10e9)


def test_one_empty_slot_in_five_is_allowed() -> None:
    random = np.random.default_rng(11)
    events = np.delete(np.arange(5, 600, 20), [4, 9, 14, 20])
    found = best(axis(600, random), events)
    assert found is not None and (found.slots, found.columns.size) == (30, 26)


def test_by_default_a_period_accuses_nobody() -> None:
    window = a_job(steps=400, faults=[saving()])
    diagnosis = diagnose(window)
    assert diagnosis.verdicts == () and diagnosis.state == "healthy"
    assert [one.source for one in diagnosis.periods] == ["checkpoint"]
    text = " ".join(render_text(diagnosis).split())
    assert "Slow steps at regular distances" in text
    assert "every 20 steps" in text and "80 ms longer in optimizer" in text
    assert to_json(diagnosis)["periods"][0]["every"] == 20.0


def test_the_verdict_of_a_rank_says_how_often_and_nothing_twice() -> None:
    diagnosis = diagnose(by_a_timer(rank=2, ms=100))
    (verdict,) = diagnosis.verdicts
    assert verdict.ranks == (2,)
    assert [one.method for one in verdict.evidence].count("periods") == 1
    assert [one.verdict for one in diagnosis.periods] == [0]
    assert "Slow steps at regular distances" not in render_text(diagnosis)


def test_a_phase_of_few_steps_and_steps_that_nobody_knows() -> None:
    window = a_job(steps=300, faults=[saving(function=None)], stacks=False)
    steps, phases = window.tables["steps"], window.tables["phases"]
    few = (phases.ints("step") % 20 == 0) | ~phases.strings("phase").equals("optimizer")
    some = (steps.ints("step") < 110) | (steps.ints("step") > 117)
    period = only(put(window, phases=phases.take(few), steps=steps.take(some)))
    assert (period.every, period.phase, period.hits) == (20.0, "optimizer", 14)


def test_a_counter_that_is_always_high_names_nobody() -> None:
    window = with_samples(by_a_timer(rank=2), "run_delay", lambda rank, time: 0.5)
    assert only(window).source == "unknown source"

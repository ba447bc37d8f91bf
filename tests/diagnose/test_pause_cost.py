"""What pauses cost is measured: steps with them are longer than steps without."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.ranks.gc_pauses import pause_cost_ns
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import Floats, Ints, Table, Window

from .jobs import MS, START, a_table

RANKS, STEPS, PAUSE_MS, USUAL_MS = 8, 80, 100, 400
PAUSED = np.flatnonzero(np.random.default_rng(1).random(STEPS) < 0.4)


def on_devices(
    held_up: bool = True, slow: range = range(STEPS, STEPS), paused: Ints = PAUSED
) -> Window:
    """Rank 3 collects garbage in some steps. Phases are those of devices, which wait for the host
    of that rank before the step's first one.

    Args:
        held_up: whether steps get longer by that, or the host runs far enough ahead.
        slow: steps in which rank 5 takes longer than any pause lasts.
    """
    random, clock = np.random.default_rng(0), START
    steps: list[tuple[object, ...]] = []
    phases: list[tuple[object, ...]] = []
    pauses: list[tuple[object, ...]] = []
    for step in range(STEPS):
        own = USUAL_MS * (1 + 0.003 * random.normal(size=RANKS))
        own[5] += 150 * (step in slow)
        wait_ms = PAUSE_MS if held_up and step in paused else 0
        lasts_ms = max(USUAL_MS + wait_ms, float(own.max())) + 10
        if step in paused:
            pauses.append((3, step, "gc", clock + 5 * MS, PAUSE_MS * MS))
        for rank in range(RANKS):
            half, end = int(own[rank] * MS) // 2, clock + int((lasts_ms - 5) * MS)
            steps.append((rank, step, clock, int(lasts_ms * MS)))
            phases.append((rank, step, "self_attention", end - 2 * half, half))
            phases.append((rank, step, "mlp", end - half, half))
            phases.append((rank, step, "optimizer", end, 5 * MS))
        clock += int(lasts_ms * MS)
    members = tuple(range(RANKS))
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "pauses": a_table("rank step kind start_ns duration_ns", pauses),
    }
    return Window(Job("a-job", RANKS, (Host("host-000", members),), {"dp": RANKS}), tables)


def verdicts(window: Window) -> dict[tuple[int, ...], Verdict]:
    return {one.ranks: one for one in diagnose(window).verdicts}


def without_times(window: Window) -> Window:
    """The same from a logger that printed only how long steps and phases took."""
    tables = dict(window.tables)
    for name in ("steps", "phases"):
        columns = tables[name].columns
        tables[name] = Table({key: one for key, one in columns.items() if key != "start_ns"})
    return Window(window.job, tables)


def test_pauses_that_no_phase_contains_cost_what_steps_take_longer() -> None:
    (one,) = verdicts(on_devices()).values()
    assert (one.ranks, one.cause) == ((3,), "gc")
    assert one.lost_fraction is not None and 0.07 <= one.lost_fraction <= 0.12


def test_pauses_that_a_host_makes_up_for_cost_nothing() -> None:
    assert not verdicts(on_devices(held_up=False))


def test_where_a_slower_rank_hides_them_they_cost_nothing() -> None:
    found = verdicts(on_devices(slow=range(STEPS // 2, STEPS)))[3,]
    assert found.confidence >= 0.5
    assert found.lost_fraction is not None and 0.03 <= found.lost_fraction <= 0.06


def test_steps_before_them_that_another_rank_makes_long_do_not_hide_their_cost() -> None:
    found = verdicts(on_devices(slow=range(15, 40), paused=np.arange(40, STEPS)))
    assert {*found} == {(3,), (5,)}
    lost = found[3,].lost_fraction
    assert lost is not None and 0.17 <= lost <= 0.22


def test_a_pause_is_in_the_step_that_its_process_counted() -> None:
    """Where the times of steps are assumed, those of pauses say nothing."""
    (one,) = verdicts(without_times(on_devices())).values()
    assert (one.ranks, one.cause) == ((3,), "gc")


def test_steps_that_are_as_often_long_without_a_pause_say_nothing() -> None:
    random = np.random.default_rng(0)
    period: Floats = np.where(random.random(100) < 0.3, 500.0, 400.0)
    longest: Floats = np.where(random.random(100) < 0.3, 100.0, 0.0)
    assert not pause_cost_ns(period, longest).any()
    assert pause_cost_ns(400.0 + longest + random.normal(size=100), longest).sum() > 0

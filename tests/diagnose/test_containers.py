"""Logs that time the step, its parts and the pieces of these: what contains others is not added."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.prepare.containers import contained
from stepscope.diagnose.prepare.totals import without_totals
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup, Schedule
from stepscope.window import Floats, Table, Window

from .jobs import MS, START
from .jobs import a_table as timed
from .loops import (
    BACKWARD,
    FORWARD,
    LOAD,
    RANKS,
    STEPS,
    UPDATE,
    Loop,
    a_table,
    a_window,
    with_whole,
)


def test_the_phase_that_contains_all_others_is_the_step() -> None:
    phases = with_whole(Loop().phases())
    found = contained(a_table(phases), None)
    assert found is not None and found.step == "iteration"
    assert found.inside == ("attn_fw",)


def test_a_phase_that_is_by_chance_as_long_as_others_is_not_the_step() -> None:
    phases = Loop().phases()
    phases["grad_exchange"] = phases["grad_exchange"] + 27.0  # backward, now, is all others
    rest = np.median(phases[FORWARD] + phases["grad_exchange"] + phases[UPDATE])
    assert abs(np.median(phases[BACKWARD]) / rest - 1) < 0.02
    assert contained(a_table(phases), None) is None


def test_neither_pass_of_the_contract_lies_in_the_other() -> None:
    """A loader that runs ahead is by chance as long as the rest of the step without backward."""
    phases = Loop().phases()
    whole = 1.08 * np.asarray(sum(phases.values()))
    named = {"forward-compute": phases.pop(FORWARD), "backward-compute": phases.pop(BACKWARD)}
    phases.pop(LOAD)
    rest = named["forward-compute"] + np.asarray(sum(phases.values()))
    named |= {"data-load": whole - rest, **phases}
    steps = a_table({"step": whole})
    assert contained(a_table(named), steps) is None


def test_work_that_is_uneven_in_turns_is_seen_beside_the_whole_step() -> None:
    loop = Loop()
    heavy = np.random.default_rng(1).integers(RANKS, size=STEPS)
    for name in (FORWARD, BACKWARD):
        loop.work[name][heavy, np.arange(STEPS)] *= 1.6
    found = diagnose(a_window(a_table(with_whole(loop.phases()))))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("load_imbalance", ())]
    assert found.verdicts[0].lost_fraction == pytest.approx(0.32, abs=0.06)


def test_an_even_loop_with_a_phase_around_it_is_healthy() -> None:
    found = diagnose(a_window(a_table(with_whole(Loop().phases()))))
    assert found.verdicts == () and found.state == "healthy"


def late_loader() -> dict[str, Floats]:
    loop = Loop()
    random = np.random.default_rng(2)
    loop.work[LOAD][3, 40:] += 120 * np.exp(0.3 * random.standard_normal(STEPS - 40))
    return loop.phases()


def test_a_slow_loader_is_not_a_rise_of_the_whole_step() -> None:
    found = diagnose(a_window(a_table(with_whole(late_loader()))))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("data_loading", (3,))]


def test_nor_where_a_logger_says_when_all_phases_ended_by_its_own_clock() -> None:
    phases = with_whole(late_loader())
    phases["bucket_reduce"] = phases["grad_exchange"] + 0.4 * phases[BACKWARD]  # beside backward
    end = np.cumsum(phases["iteration"], axis=1)
    starts = {name: np.round(end - lasted) for name, lasted in phases.items()}
    at = end - phases["iteration"]
    for name in (LOAD, FORWARD, BACKWARD, "grad_exchange", UPDATE):
        starts[name], at = np.round(at), at + phases[name]
    found = diagnose(a_window(a_table(phases, starts)))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("data_loading", (3,))]


def test_phases_that_all_begin_at_once_were_written_down_then() -> None:
    phases = with_whole(late_loader())
    begin = np.cumsum(phases["iteration"], axis=1) - phases["iteration"]
    found = diagnose(a_window(a_table(phases, dict.fromkeys(phases, begin))))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("data_loading", (3,))]


STAGES = 4


def staged(heavy: int | None) -> dict[str, Floats]:
    """Totals of a pipeline with two replicas a stage, and bubbles in no timer but the outermost."""
    random = np.random.default_rng(3)
    times = np.ones(STAGES)
    if heavy is not None:
        times[heavy] = 1.5
    noise = np.exp(0.01 * random.standard_normal((2, RANKS, STEPS)))
    stage = np.arange(RANKS) // 2
    forward, backward = (
        300 * times[stage][:, None] * noise[0],
        600 * times[stage][:, None] * noise[1],
    )
    work = forward + backward
    slowest = np.array([work[one::2].max(axis=0) for one in (0, 1)])[np.arange(RANKS) % 2]
    drained = slowest + 12.0 * (STAGES - stage)[:, None]
    level = drained.max(axis=0) + 8.0
    inner = 20 * times[stage][:, None] * np.ones((RANKS, STEPS))
    return {
        "step-time": level + inner.max() + np.zeros((RANKS, STEPS)),
        "fwd-and-bwd": drained, "fwd": forward, "bwd": backward,
        "exchange-grads": level - drained, "optim-inner": inner,
        "optim": inner.max() + np.zeros((RANKS, STEPS)),
    }  # fmt: skip


def a_pipeline(table: Table, steps: Table | None = None) -> Window:
    groups = [ProcessGroup(f"pp-{at}", "pp", tuple(range(at, RANKS, 2))) for at in (0, 1)]
    groups += [ProcessGroup(f"dp-{at}", "dp", (2 * at, 2 * at + 1)) for at in range(STAGES)]
    hosts = tuple(Host(f"n{at}", tuple(range(4 * at, 4 * at + 4))) for at in (0, 1))
    tables = {"phases": table} | ({} if steps is None else {"steps": steps})
    schedule = Schedule("1f1b", 64)
    return Window(Job("stages", RANKS, hosts, groups=tuple(groups), schedule=schedule), tables)


def test_a_total_gives_way_to_its_pieces_and_steps_are_as_long_as_they_are() -> None:
    phases = staged(heavy=3)
    found = diagnose(a_pipeline(a_table(phases)))
    assert found.ledger is not None
    assert found.ledger.step_ns == pytest.approx(np.median(phases["step-time"]) * MS, rel=0.02)
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("load_imbalance", (6, 7))]


def test_equal_stages_are_not_blamed() -> None:
    assert diagnose(a_pipeline(a_table(staged(heavy=None)))).verdicts == ()


def test_recorded_steps_say_the_same() -> None:
    phases = staged(heavy=2)
    whole = a_table({"whole": phases.pop("step-time")})
    steps = Table({name: whole.ints(name) for name in ("rank", "step", "duration_ns")})
    found = diagnose(a_pipeline(a_table(phases), steps))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("load_imbalance", (4, 5))]


def test_loading_beside_a_device_makes_no_total_of_a_phase_that_is_as_long_as_two() -> None:
    """The host loads for as long as the device computes forward, which is half of backward."""
    phases = Loop().phases()
    phases[FORWARD] = phases[BACKWARD] / 2
    phases[LOAD] = phases[FORWARD] * 1.02
    whole = np.sum([value for name, value in phases.items() if name != LOAD], axis=0)
    steps = a_table({"whole": whole})
    steps = Table({name: steps.ints(name) for name in ("rank", "step", "duration_ns")})
    ordered = {name: phases[name] for name in (LOAD, FORWARD, BACKWARD, *phases)}
    assert without_totals(a_table(ordered), steps)[1] == ()


def test_a_total_of_pieces_is_one_beside_steps_that_say_how_long_they_are() -> None:
    phases = Loop().phases()
    whole = np.sum([*phases.values()], axis=0)
    steps = a_table({"whole": whole})
    steps = Table({name: steps.ints(name) for name in ("rank", "step", "duration_ns")})
    both = {"both": phases[FORWARD] + phases[BACKWARD]}
    ordered = {FORWARD: phases[FORWARD], BACKWARD: phases[BACKWARD], **both, **phases}
    assert without_totals(a_table(ordered), steps)[1] == ("both",)


def test_what_runs_beside_others_is_no_part_of_the_step_although_lengths_fit() -> None:
    """The host loads while its device still computes, by chance for as long as the device computes
    forward and updates parameters."""
    rows, now = [], START
    device = {"fwd": 310, "bwd": 625, "sync": 75, "opt": 56}
    for step in range(40):
        for rank in range(4):
            begin = now
            for name, lasted in device.items():
                rows.append((rank, step, name, begin, lasted * MS))
                begin += lasted * MS + MS // 3
            rows.append((rank, step + 1, "batch_input", begin - 378 * MS, 385 * MS))
        now = begin + 15 * MS
    phases = timed("rank step phase start_ns duration_ns", rows)
    steps = [(rank, step, 1092 * MS) for rank in range(4) for step in range(40)]
    found = contained(phases, timed("rank step duration_ns", steps))
    assert found is not None and set(found.inside) == {"batch_input"}

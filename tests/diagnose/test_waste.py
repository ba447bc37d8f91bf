"""What all ranks spend beside training: a function of the user's own, waiting for data."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.diagnose.account import waste
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.numeric import intervals
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.unnamed import covered
from stepscope.trace import DATA_LOAD, Host
from stepscope.window import Floats, Strings, Table, Window

from .jobs import LOOP, Fault, a_job, put, with_samples

ALL = (0, 1, 2, 3)
USUAL_MS = 88.0
"""A step of the job without faults, with what its last transfer takes."""
FORWARD = "forward (model.py:31)"
MODULE = "Module._call_impl (/usr/lib/python3.11/site-packages/torch/nn/modules/module.py:1789)"
NORMS = "log_norms (metrics.py:8)"


def logging_norms(ms: float, first: int = 0, stop: int = 10**9, every: int = 1) -> list[Fault]:
    """All ranks compute norms for their log after the optimizer's step."""
    return [Fault(ALL, "optimizer", first, stop, ms, every=every, function=LOOP)]


def with_paths(window: Window, modules: str = MODULE, function: str = NORMS) -> Window:
    """With the paths that real stacks have: forward passes run in modules of PyTorch."""
    stacks = window.tables["stacks"]
    frames = stacks.strings("frames")
    called = f";{function}" if function else ""
    renamed = [value.replace(FORWARD, f"{modules};{FORWARD}").replace(LOOP, f"{LOOP}{called}")
               for value in frames.values]  # fmt: skip
    return put(window, stacks=stacks.with_column("frames", Strings(frames.codes, tuple(renamed))))


def as_kernels(phases: Table) -> Table:
    return phases.with_column("kernel", phases.strings("phase"))


def verdicts(window: Window) -> tuple[Verdict, ...]:
    return diagnose(window).verdicts


def test_a_function_of_ones_own_that_holds_all_ranks_from_the_first_step() -> None:
    (verdict,) = verdicts(with_paths(a_job(noise=0.02, faults=logging_norms(20.0))))
    assert (verdict.cause, verdict.ranks, verdict.function) == ("code", (), NORMS)
    assert verdict.lost_fraction == pytest.approx(20 / (20 + USUAL_MS), abs=0.03)
    assert verdict.evidence[0].method == "user-code" and "metrics.py:8" in verdict.summary
    assert "log such numbers" in verdict.advice


def test_a_function_of_ones_own_that_takes_longer_and_longer_is_said_to() -> None:
    """It goes through the losses of all steps before again, in each step."""
    faults = [Fault(ALL, "optimizer", step, step + 1, ms=0.05 * step, function=LOOP)
              for step in range(5, 400)]  # fmt: skip
    (verdict,) = verdicts(with_paths(a_job(steps=400, noise=0.15, faults=faults)))
    assert "in log_norms (metrics.py:8), and more and more: " in verdict.summary


def test_a_function_of_ones_own_that_takes_equally_long_is_not_said_to_grow() -> None:
    (verdict,) = verdicts(with_paths(a_job(noise=0.02, faults=logging_norms(20.0))))
    assert "more and more" not in verdict.summary


def test_a_function_of_ones_own_that_holds_all_ranks_for_a_part_of_the_job() -> None:
    (verdict,) = verdicts(with_paths(a_job(noise=0.02, faults=logging_norms(20.0, 60, 110))))
    assert (verdict.cause, verdict.ranks, verdict.function) == ("code", (), NORMS)
    assert verdict.steps is not None
    assert np.abs(np.array(verdict.steps) - (60, 109)).max() <= 3


def test_a_function_began_where_its_own_time_begins_and_not_where_steps_got_longer() -> None:
    busier = Fault(ALL, "forward-compute", 100, ms=30.0)
    window = with_paths(a_job(noise=0.02, faults=[*logging_norms(20.0), busier]))
    (found,) = [one for one in verdicts(window) if one.function == NORMS]
    assert found.steps is not None and found.steps[0] <= 5
    assert "from step" not in found.summary


def test_single_steps_that_a_crowded_host_makes_longer_hide_no_function() -> None:
    """None of them saves or evaluates, so that the steps around them count as well."""
    crowded = Fault(ALL, "backward-compute", 0, ms=30.0, every=7)
    window = with_paths(a_job(noise=0.3, faults=[*logging_norms(20.0), crowded]))
    assert NORMS in [one.function for one in verdicts(window)]


def test_a_function_that_waits_for_the_device_explains_the_rise_it_causes() -> None:
    waiting = "synchronize (metrics.py:12)"
    window = with_paths(a_job(noise=0.02, faults=logging_norms(25.0, 80)), function=waiting)
    (verdict,) = verdicts(window)
    assert (verdict.cause, verdict.ranks, verdict.function) == ("code", (), waiting)
    assert verdict.steps is not None and abs(verdict.steps[0] - 80) <= 3


@pytest.mark.parametrize("ms", [0.0, 3.0])
def test_a_little_code_of_ones_own_is_ordinary(ms: float) -> None:
    assert verdicts(with_paths(a_job(noise=0.02, faults=logging_norms(ms)))) == ()


def test_what_is_done_every_twenty_steps_is_planned() -> None:
    evaluation = logging_norms(300.0, first=10, every=20)
    assert not [one for one in verdicts(with_paths(a_job(noise=0.02, faults=evaluation)))
                if one.evidence[0].method == "user-code"]  # fmt: skip


def test_where_stacks_do_not_show_modules_a_function_may_be_the_model() -> None:
    window = with_paths(a_job(noise=0.02, faults=logging_norms(20.0)), modules="call (layers.py:3)")
    assert verdicts(window) == ()


def test_beside_a_gpu_of_which_nothing_was_recorded_a_function_may_cost_nothing() -> None:
    window = with_paths(a_job(noise=0.02, faults=logging_norms(20.0)))
    hosts = tuple(replace(host, gpus=("GPU-0",)) for host in window.job.hosts)
    assert verdicts(replace(window, job=replace(window.job, hosts=hosts))) == ()


@pytest.mark.parametrize(("computes", "cause"), [(True, "compute"), (False, "host")])
def test_what_one_rank_does_is_its_own(computes: bool, cause: str) -> None:
    """Without a device, processor time tells whether it computes, or sleeps on its host."""
    one = [replace(logging_norms(20.0)[0], ranks=(2,), computes=computes)]
    (verdict,) = verdicts(with_paths(a_job(noise=0.02, faults=one)))
    assert (verdict.cause, verdict.ranks, verdict.function) == (cause, (2,), NORMS)


def test_loading_that_holds_all_ranks_from_the_first_step() -> None:
    loading = [Fault(ALL, DATA_LOAD, 0, ms=40.0, computes=False)]
    (verdict,) = verdicts(a_job(noise=0.02, faults=loading))
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("data_loading", (), DATA_LOAD)
    assert verdict.lost_fraction == pytest.approx(41 / (40 + USUAL_MS), abs=0.03)
    assert verdict.evidence[0].method == "shared-loading"
    assert "more workers" in verdict.advice


def test_what_loading_runs_on_the_main_thread_is_named() -> None:
    loading = [Fault(ALL, DATA_LOAD, 0, ms=40.0, computes=False)]
    job = a_job(noise=0.02, faults=loading)
    stacks, loader = job.tables["stacks"], "__next__ (dataloader.py:700)"
    frames = stacks.strings("frames")
    called = [f"{one};collate (train.py:7)" if one.endswith(loader) else one
              for one in frames.values]  # fmt: skip
    stacks = stacks.with_column("frames", Strings(frames.codes, tuple(called)))
    (verdict,) = verdicts(put(job, stacks=stacks))
    assert verdict.function == "collate (train.py:7)"
    assert "waiting for data, in collate (train.py:7)" in verdict.summary


def test_loading_that_takes_a_few_percent_is_ordinary() -> None:
    assert verdicts(a_job(noise=0.02, faults=[Fault(ALL, DATA_LOAD, 0, ms=4.0)])) == ()


def test_loading_that_holds_all_ranks_for_a_part_of_the_job() -> None:
    loading = [Fault(ALL, DATA_LOAD, 60, 110, ms=25.0, computes=False)]
    found = verdicts(a_job(noise=0.02, faults=loading))
    assert [(one.cause, one.ranks) for one in found] == [("data_loading", ())]


def test_one_slow_loader_is_its_own() -> None:
    found = verdicts(a_job(noise=0.02, faults=[Fault((1,), DATA_LOAD, 0, ms=40.0)]))
    assert [(one.cause, one.ranks) for one in found] == [("data_loading", (1,))]


def test_of_two_loaders_one_that_is_always_slower_takes_no_turns() -> None:
    slow = [Fault((1,), DATA_LOAD, 60, ms=60.0, computes=False)]
    found = verdicts(a_job(2, 140, noise=0.02, faults=slow))
    assert [(one.cause, one.ranks) for one in found] == [("data_loading", (1,))]


def test_loaders_that_are_too_slow_make_another_rank_late_in_each_step() -> None:
    """Whoever has its batch waits for the one that has not, and its loader catches up meanwhile."""

    def late(own: Floats) -> Floats:
        random = np.random.default_rng(3)
        for step in range(60, own.shape[2]):
            own[0, random.integers(len(ALL)), step] += 40e6
        return own

    (verdict,) = verdicts(a_job(noise=0.02, edit=late))
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("data_loading", (), DATA_LOAD)
    assert verdict.steps is not None and abs(verdict.steps[0] - 60) <= 3
    assert verdict.lost_fraction == pytest.approx(40 / (40 + USUAL_MS), abs=0.05)
    assert "waiting for the data of one of them" in verdict.summary


def test_a_rank_whose_turns_are_much_longer_is_named_beside_the_others() -> None:
    """All loaders are too slow, and one of them is slow for another reason as well for a while."""

    def late(own: Floats) -> Floats:
        random = np.random.default_rng(3)
        for step in range(5, own.shape[2]):
            own[0, random.integers(len(ALL)), step] += 40e6
        own[0, 2, 60:90] += 200e6
        return own

    found = verdicts(a_job(noise=0.02, edit=late))
    assert {(one.cause, one.ranks) for one in found} == {
        ("data_loading", ()), ("data_loading", (2,))}  # fmt: skip


@pytest.mark.parametrize(("busy", "said"), [(1.0, True), (1.5, False)])
def test_loading_that_takes_longer_as_everything_does_is_a_symptom(busy: float, said: bool) -> None:
    """On a busy machine all ranks take longer for a while, and load for longer, too."""

    def slower(own: Floats) -> Floats:
        own[1:, :, 60:110] *= busy
        own[0, :, 60:110] += 8e6
        return own

    found = diagnose(a_job(noise=0.02, edit=slower, stacks=False))
    assert any(one.cause == "data_loading" for one in found.verdicts) == said


@pytest.mark.parametrize(("waits", "loads"), [(0.1, True), (0.5, False)])
def test_ranks_that_wait_for_processors_are_late_with_their_data_as_well(
    waits: float, loads: bool
) -> None:
    def late(own: Floats) -> Floats:
        random = np.random.default_rng(3)
        for step in range(60, own.shape[2]):
            own[0, random.integers(len(ALL)), step] += 15e6
        return own

    window = with_samples(a_job(noise=0.02, edit=late), "run_delay", lambda *_: waits)
    said = [one.summary for one in verdicts(window)]
    assert any("waiting for the data of one of them" in one for one in said) == loads


def one_after_the_other(others_ms: float) -> Window:
    """Who is behind stays behind for some steps: the loaders of the others catch up meanwhile.

    Args:
        others_ms: how long each of the others waits for its loader now and then.
    """

    def late(own: Floats) -> Floats:
        random = np.random.default_rng(3)
        for step in range(60, own.shape[2]):
            waits = random.random(8) < 0.3
            own[0, waits, step] += others_ms * 1e6
            own[0, 1 if step // 14 % 2 else 6, step] += 40e6
        return own

    return a_job(8, noise=0.02, edit=late, stacks=False)


@pytest.mark.parametrize("others_ms", [25, 12])
def test_ranks_that_lead_for_a_while_each_share_what_all_wait_for(others_ms: float) -> None:
    (verdict,) = verdicts(one_after_the_other(others_ms))
    assert (verdict.cause, verdict.ranks) == ("data_loading", ())


def test_two_slow_loaders_are_not_the_loading_of_all() -> None:
    assert all(one.ranks for one in verdicts(one_after_the_other(others_ms=0)))


@pytest.mark.parametrize(("batches", "all_of_them"), [(5, True), (1, False)])
def test_loaders_with_nothing_ahead_yet_show_whether_they_keep_up(
    batches: int, all_of_them: bool
) -> None:
    """Two of them lead, and the others' catch up; for the first batch all wait in any job."""

    def late(own: Floats) -> Floats:
        own[0, :, :batches] += 30e6
        for step in range(own.shape[2]):
            own[0, 1 if step // 14 % 2 else 6, step] += 40e6
        return own

    found = verdicts(a_job(8, noise=0.02, edit=late, stacks=False))
    said = [one.summary for one in found if not one.ranks]
    assert any("waiting for the data of one of them" in one for one in said) == all_of_them


def test_ranks_of_one_host_that_wait_for_data_in_turns_are_the_host() -> None:
    def late(own: Floats) -> Floats:
        random = np.random.default_rng(3)
        for step in range(60, own.shape[2]):
            own[0, random.integers(4, 8), step] += 60e6
        return own

    window = a_job(8, noise=0.02, edit=late, stacks=False)
    hosts = (Host("a", (0, 1, 2, 3)), Host("b", (4, 5, 6, 7)))
    (verdict,) = verdicts(replace(window, job=replace(window.job, hosts=hosts)))
    assert (verdict.cause, verdict.ranks) == ("data_loading", (4, 5, 6, 7))


@pytest.mark.parametrize("name", ["Daten laden", "dl", "batch_input"])
def test_loading_of_all_ranks_under_another_name(name: str) -> None:
    window = a_job(noise=0.02, faults=[Fault(ALL, DATA_LOAD, 0, ms=40.0, computes=False)])
    phases = window.tables["phases"]
    names = phases.strings("phase")
    renamed = tuple(name if one == DATA_LOAD else one for one in names.values)
    known = phases.with_column("phase", Strings(names.codes, renamed))
    (verdict,) = verdicts(put(window, phases=known))
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("data_loading", (), name)


def test_a_rank_whose_loader_is_slow_is_named_and_not_all() -> None:
    def late(own: Floats) -> Floats:
        own[0, 2, 60:] += 40e6
        return own

    (verdict,) = verdicts(a_job(noise=0.02, edit=late))
    assert (verdict.cause, verdict.ranks) == ("data_loading", (2,))


def test_a_loop_that_sleeps_stands_in_for_a_device() -> None:
    """Tests of training scripts do that; a function that sleeps is a function that is slow."""
    naps = a_job(noise=0.02, faults=[Fault(ALL, "optimizer", 0, ms=200.0, function=LOOP)])
    inline, called = with_paths(naps, function=""), with_paths(naps)
    assert verdicts(with_samples(inline, "cpu_util", lambda *_: 0.2)) == ()
    for slow in (inline, with_samples(called, "cpu_util", lambda *_: 0.2)):
        (verdict,) = verdicts(slow)
        assert (verdict.cause, verdict.ranks) == ("code", ())


def test_waiting_for_a_device_that_is_recorded_nowhere_else_is_no_code_to_blame() -> None:
    """Steps and stacks alone: the host launches work and waits in `item` until it is done."""
    waits = "item (metrics.py:31);synchronize (/usr/lib/python3/torch/cuda/__init__.py:1085)"
    job = with_paths(a_job(noise=0.02, faults=logging_norms(200.0)), function=waits)
    assert verdicts(job) == ()
    kernels = as_kernels(job.tables["phases"])
    kernels = kernels.take(~kernels.strings("kernel").equals("optimizer"))
    assert all(one.cause != "code" for one in verdicts(put(job, kernels=kernels)))


@given(st.lists(st.booleans(), max_size=40), st.floats(0, 60))
def test_steps_near_a_long_one_are_left_out_in_jobs_of_any_length(
    long: list[bool], steps: float
) -> None:
    near = math.ceil(steps)
    expected = [not any(long[max(at - near, 0) : at + near + 1]) for at in range(len(long))]
    assert waste._away(np.array(long, np.bool_), steps).tolist() == expected


def test_taking_a_batch_from_a_worker_that_has_it_ready_is_no_loading() -> None:
    """Steps of 10 ms: no worker more makes that millisecond shorter."""
    lengths = {"data-load": 1.5, "forward-compute": 4.0, "backward-compute": 4.0, "optimizer": 1.0}
    job = a_job(noise=0.02, steps=600, typical=lengths)
    assert "data_loading" in [one.cause for one in verdicts(job)]
    loader = "_MultiProcessingDataLoaderIter._next_data (torch/utils/data/dataloader.py:1400)"
    assert verdicts(with_paths(job, modules=f"{MODULE};{loader}", function="")) == ()


def test_when_devices_idle_is_worked_out_once_for_all_methods() -> None:
    job = Observed(a_job())
    assert waste.idle_of_devices(job) is waste.idle_of_devices(job)


def test_a_device_of_which_nothing_was_recorded_for_a_whole_step_is_not_idle() -> None:
    """A profiler records the kernels of every fourth step."""
    job = a_job(steps=20)
    phases = job.tables["phases"]
    some = as_kernels(phases.take(phases.ints("step") % 4 == 0))
    idle = waste.idle_of_devices(Observed(put(job, kernels=some)))
    assert idle is not None
    assert np.isfinite(idle).all(axis=0).tolist() == [step % 4 == 0 for step in range(20)]


@pytest.mark.parametrize("rows", [1, 3, 10**6])
def test_a_few_ranks_at_a_time_idle_as_all_at_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Observed(a_job(noise=0.02))
    phases = job.window.tables["phases"]
    start, row = phases.ints("start_ns"), job.line.rows(phases.ints("rank"))
    phased = covered(job.line, row, start, start + phases.ints("duration_ns"))
    monkeypatch.setattr(intervals, "BLOCK", rows)
    beside = waste._beside(job, phases, lambda part: np.ones(len(part), np.bool_))
    assert beside is not None
    np.testing.assert_array_equal(beside, job.line.period_ns - phased)

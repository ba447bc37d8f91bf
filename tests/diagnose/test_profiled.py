"""Profiled steps are not judged, and what patterns add to what step times show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.profiled import profiled_steps, without_profiled
from stepscope.diagnose.run import diagnose
from stepscope.window import NULL, Column, Strings, Table, Window

from .jobs import Fault, a_job
from .profiles import Share, but, profile

STEPS = (150, 169)


def with_patterns(window: Window, ranks: int, shares: list[Share]) -> Window:
    rows = profile(ranks, shares, STEPS).table()
    return replace(window, tables={**window.tables, "patterns": rows})


def working(ranks: int, **slow: float) -> list[Share]:
    """On hosts without devices: operators work, and Python waits for the others."""
    return [
        Share("aten::mm", "operator", 0.6),
        Share("parse", "python", but(0.004, ranks, **slow), location="/job/data.py:7",
              caller="/job/train.py:44 train"),
        Share("wait", "python", 0.1, location="torch/distributed/distributed_c10d.py:9"),
    ]  # fmt: skip


def test_steps_that_a_profiler_makes_longer_are_no_slowdown() -> None:
    slower = Fault((0, 1, 2, 3), None, STEPS[0], STEPS[1] + 1, times=2.0)
    job = a_job(faults=[slower], stacks=False)
    assert diagnose(job).state != "healthy"
    profiled = diagnose(with_patterns(job, 4, working(4)))
    assert (profiled.state, profiled.verdicts) == ("healthy", ())
    assert any(one.method == "21 profiled steps" for one in profiled.skipped)


def with_profiles(window: Window, ranks: int, steps: tuple[int, int]) -> Window:
    """Ranks have profiled, and nobody has summarized it."""
    columns: dict[str, Column] = {
        "rank": np.arange(ranks), "duration_ns": np.full(ranks, 10**9),
        "first_step": np.full(ranks, steps[0]), "last_step": np.full(ranks, steps[1]),
        "window": Strings.of(["w"] * ranks), "trouble": Strings.of([None] * ranks),
    }  # fmt: skip
    return replace(window, tables={**window.tables, "profiles": Table(columns)})


END = "end (stepscope/collect/hooks/kineto.py:139)"


def test_our_own_cost_is_nobodys_fault() -> None:
    """The profiler stops in the step after the window, which takes as long as fifty others."""
    everybody, long = (0, 1, 2, 3), STEPS[1] + 1
    stop = Fault(everybody, "optimizer", long, long + 1, ms=5_000, function=END)
    slow = Fault(everybody, None, *STEPS, times=1.5)
    job = a_job(faults=[slow, stop])
    assert diagnose(job).state != "healthy"
    found = diagnose(with_profiles(job, 4, STEPS))
    assert (found.state, found.verdicts) == ("healthy", ())


def test_no_verdict_names_a_function_of_ours() -> None:
    everybody = (0, 1, 2, 3)
    late = Fault(everybody, "optimizer", 100, ms=60, function=END)
    one = Fault((2,), "optimizer", 100, ms=60, function=END)
    for job in (a_job(faults=[late]), a_job(faults=[one])):
        found = diagnose(job)
        assert found.verdicts
        named = [verdict.function or "" for verdict in found.verdicts]
        assert not any("stepscope/collect" in one for one in named), named
        assert not any("stepscope/collect" in one.summary for one in found.verdicts)


def test_windows_that_were_only_asked_for_mask_nothing() -> None:
    job = with_profiles(a_job(steps=40), 4, (10, 12))
    table = job.tables["profiles"]
    columns = {**table.columns, "duration_ns": np.full(4, NULL)}
    asked = replace(job, tables={**job.tables, "profiles": replace(table, columns=columns)})
    assert profiled_steps(asked) == []
    assert profiled_steps(job) == [(10, 12)]


def test_a_job_of_which_nearly_all_steps_are_profiled_is_judged_by_them() -> None:
    job = a_job(steps=24, stacks=False)
    rows = profile(4, working(4), (0, 19)).table()
    window = replace(job, tables={**job.tables, "patterns": rows})
    assert without_profiled(window) == (window, ())


def test_a_job_without_patterns_stays_as_it_is() -> None:
    job = a_job(steps=24)
    assert without_profiled(job)[0] is job and profiled_steps(job) == []


def test_a_slow_rank_gets_its_function() -> None:
    fault = Fault((2,), "forward-compute", 100, ms=40)
    job = a_job(faults=[fault], stacks=False)
    (bare,) = diagnose(job).verdicts
    (named,) = diagnose(with_patterns(job, 4, working(4, r2=0.3))).verdicts
    assert (bare.ranks, bare.function) == ((2,), None)
    assert (named.ranks, named.function) == ((2,), "parse (/job/data.py:7)")
    assert any(one.method == "pattern-of-rank" for one in named.evidence)


def test_a_label_of_a_whole_pass_is_no_function_of_a_slow_rank() -> None:
    fault = Fault((2,), "forward-compute", 100, ms=40)
    wrapper = Share("DistributedDataParallel.forward", "python", but(0.004, 4, r2=0.3))
    job = with_patterns(a_job(faults=[fault], stacks=False), 4, [*working(4), wrapper])
    (verdict,) = diagnose(job).verdicts
    assert (verdict.ranks, verdict.function) == ((2,), None)


def test_a_function_of_another_rank_explains_nothing() -> None:
    fault = Fault((2,), "forward-compute", 100, ms=40)
    job = a_job(faults=[fault], stacks=False)
    named = diagnose(with_patterns(job, 4, working(4, r1=0.3)))
    assert [one.function for one in named.verdicts if one.ranks == (2,)] == [None]


def test_a_rise_of_all_ranks_gets_its_function_and_one_verdict() -> None:
    fault = Fault((0, 1, 2, 3), "forward-compute", 100, ms=40)
    job = a_job(faults=[fault], stacks=False)
    everywhere = {f"r{rank}": 0.3 for rank in range(4)}
    (verdict,) = diagnose(with_patterns(job, 4, working(4, **everywhere))).verdicts
    assert (verdict.ranks, verdict.function) == ((), "parse (/job/data.py:7)")
    assert verdict.steps is not None and verdict.steps[0] == pytest.approx(100, abs=3)


def test_what_was_slow_from_the_first_step_has_no_rank_and_all_steps() -> None:
    everywhere = {f"r{rank}": 0.3 for rank in range(4)}
    job = a_job(stacks=False)
    (verdict,) = diagnose(with_patterns(job, 4, working(4, **everywhere))).verdicts
    assert (verdict.cause, verdict.ranks, verdict.function) == (
        "code", (), "parse (/job/data.py:7)",
    )  # fmt: skip
    assert verdict.steps == (5, 199)


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_a_function_that_loads_and_is_called_elsewhere_counts_separately() -> None:
    """Sleeping while a batch is decoded is loading; sleeping in the training loop is not."""
    everybody = (0, 1, 2, 3)
    job = a_job(faults=[Fault(everybody, "forward-compute", 0, ms=40)], stacks=False)
    sleeps = [Share("<built-in function sleep>", "python", part, caller="/job/data.py:7 decode",
                    phase=phase) for part, phase in ((0.4, None), (0.03, "data-load"))]  # fmt: skip
    (verdict,) = diagnose(with_patterns(job, 4, [*working(4), *sleeps])).verdicts
    assert verdict.cause == "code" and "40 %" in verdict.summary


@pytest.mark.parametrize(("every_step_ms", "named"), [(0.0, False), (25.0, True)])
def test_loading_counts_as_far_as_most_steps_show_it(every_step_ms: float, named: bool) -> None:
    """A few long steps make up much of a window, and are no property of the loader."""
    everybody = (0, 1, 2, 3)
    loads = Fault(everybody, "data-load", 0, ms=every_step_ms)
    job = a_job(faults=[loads] if every_step_ms else [], stacks=False)
    shares = [*working(4), Share(LOADER, "python", 0.25)]
    causes = {one.cause for one in diagnose(with_patterns(job, 4, shares)).verdicts}
    assert ("data_loading" in causes) == named


def test_windows_without_steps_mask_nothing() -> None:
    job = a_job(steps=40)
    table = profile(4, working(4)).table()
    columns = {name: column for name, column in table.columns.items() if "step" not in name}
    bare = replace(table, columns=columns)
    window = replace(job, tables={**job.tables, "patterns": bare})
    assert without_profiled(window)[0] is window
    assert np.isfinite(diagnose(window).ledger.step_ns)  # type: ignore[union-attr]

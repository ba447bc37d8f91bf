"""Data loading that holds the steps of a single rank, with and without a device that idles."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from tests.formats.kineto.traces import AUTOGRAD, Event, event, launched, trace, write

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COMPUTE_US = 60e3


def steps(count: int, load_us: float, device: bool = True, ahead: bool = False) -> list[Event]:
    """Steps of loading, then forward and backward; `ahead`: the device still computes meanwhile."""
    events: list[Event] = []
    for number in range(count):
        at = number * (load_us + COMPUTE_US)
        compute = at + load_us
        until = compute + COMPUTE_US
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, until - at - 1),
            event("user_annotation", LOADER, at, load_us),
            event("cpu_op", "aten::linear", compute + 10, COMPUTE_US / 3),
            event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0",
                  compute + COMPUTE_US / 2, COMPUTE_US / 2 - 100, AUTOGRAD),
        ]  # fmt: skip
        if device:
            busy = COMPUTE_US - 1000 + load_us * ahead
            events += launched("gemm", compute + 20, compute + 100, busy)
    return events


def diagnosis_of(folder: Path, *ranks: list[Event]) -> Diagnosis:
    folder.mkdir(exist_ok=True)
    for rank, events in enumerate(ranks):
        info = {"backend": "nccl", "rank": rank, "world_size": len(ranks)}
        write(folder / f"rank{rank}.json", trace(events, rank, len(ranks), distributedInfo=info))
    return diagnose(read(folder).window)


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize(
    ("count", "confidence"), [(1, 0.5), (2, 0.55), (3, 0.75), (6, 0.85), (12, 0.9)]
)
def test_a_loader_that_holds_a_third_of_the_steps(
    tmp_path: Path, count: int, confidence: float, device: bool
) -> None:
    found = diagnosis_of(tmp_path, steps(count, COMPUTE_US / 2, device))
    (verdict,) = found.verdicts
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("data_loading", (0,), "data-load")
    assert verdict.confidence == confidence
    assert verdict.lost_fraction == pytest.approx(1 / 3, abs=0.01)
    assert "rank 0 spends 33 % of its steps waiting for its DataLoader" in verdict.summary
    assert found.state == "slow"


def test_a_loader_that_takes_little_is_no_fault(tmp_path: Path) -> None:
    assert diagnosis_of(tmp_path, steps(6, COMPUTE_US / 10)).verdicts == ()


def test_loading_behind_a_busy_device_costs_nothing(tmp_path: Path) -> None:
    assert diagnosis_of(tmp_path, steps(6, COMPUTE_US / 2, ahead=True)).verdicts == ()


def test_one_slow_batch_is_no_slow_loader(tmp_path: Path) -> None:
    """Many steps in which one batch comes late: the epoch began."""
    quick = steps(8, 1000)
    late = [{**one, "ts": one["ts"] + 40e3} for one in quick if one["ts"] > 3 * (COMPUTE_US + 1000)]
    waiting = event("user_annotation", LOADER, 3 * (COMPUTE_US + 1000) + 2000, 38e3)
    first = [one for one in quick if one["ts"] <= 3 * (COMPUTE_US + 1000)]
    assert not [one for one in diagnosis_of(tmp_path, [*first, waiting, *late]).verdicts
                if one.cause == "data_loading"]  # fmt: skip


def test_several_ranks_are_compared_with_one_another_instead(tmp_path: Path) -> None:
    every = steps(4, COMPUTE_US / 2)
    assert not [one for one in diagnosis_of(tmp_path, every, every).verdicts
                if one.evidence[0].method == "slow-loader"]  # fmt: skip

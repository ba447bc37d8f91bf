"""Traces with clocks apart and events lost, from files to the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from tests.cli.recordings import write_traces

from .traces import Event

RANKS, SLOW = 4, 2
Change = Callable[[int, list[Event]], list[Event]]


def clocks_apart(rank: int, events: list[Event]) -> list[Event]:
    """Up to 0.4 s, which is more than three steps, and drifting by up to 60 ppm."""
    offset_us, drift = (0, 310e3, -90e3, -400e3)[rank], (0, 60e-6, -40e-6, 20e-6)[rank]
    return [{**one, "ts": one["ts"] * (1 + drift) + offset_us + 1e6} for one in events]


def lost(*numbers: int) -> Change:
    """One rank's profiler lost the k-th collectives, kernel and all."""

    def change(rank: int, events: list[Event]) -> list[Event]:
        collectives = [one for one in events if "nccl" in one["name"]]
        dropped = [collectives[number] for number in numbers] if rank == 1 else []
        return [one for one in events if one not in dropped]

    return change


def began_late(rank: int, events: list[Event]) -> list[Event]:
    """One rank's profiler began two steps after the others."""
    first = min(one["ts"] for one in events if one["name"] == "ProfilerStep#5")
    return [one for one in events if rank != 1 or one["ts"] >= first]


def unmarked(rank: int, events: list[Event]) -> list[Event]:
    return [one for one in events if not one["name"].startswith("ProfilerStep#")]


CHANGES: dict[str, tuple[Change, ...]] = {
    "clocks": (clocks_apart,),
    "lost": (lost(2),),
    "lost, clocks": (lost(1, 4), clocks_apart),
    "late, clocks": (began_late, clocks_apart),
    "unmarked, clocks": (unmarked, clocks_apart),
    "unmarked, lost, clocks": (unmarked, lost(2), clocks_apart),
}


@pytest.fixture(params=CHANGES)
def changes(request: pytest.FixtureRequest) -> tuple[Change, ...]:
    return CHANGES[request.param]


def changed(folder: Path, changes: tuple[Change, ...]) -> Path:
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        content = json.loads(path.read_text())
        for change in changes:
            content["traceEvents"] = change(rank, content["traceEvents"])
        path.write_text(json.dumps(content))
    return folder


def diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    status = main(["diagnose", str(folder), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_slow_rank_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: tuple[Change, ...]
) -> None:
    folder = changed(write_traces(tmp_path, slow_rank=SLOW), changes)
    status, found = diagnosed(folder, capsys)
    (verdict,) = found["verdicts"]
    assert (status, verdict["ranks"], verdict["cause"]) == (1, [SLOW], "compute")
    assert verdict["phase"] == "backward-compute"


def test_equal_ranks_stay_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: tuple[Change, ...]
) -> None:
    folder = changed(write_traces(tmp_path), changes)
    status, found = diagnosed(folder, capsys)
    assert (status, found["verdicts"]) == (0, [])


def test_offsets_and_drifts_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(write_traces(tmp_path), (clocks_apart,))
    _, found = diagnosed(folder, capsys)
    offset = {clock["rank"]: clock["offset_ns"] / 1e6 for clock in found["clocks"]}
    for rank, want in enumerate((0, 310, -90, -400)):
        assert offset[rank] - offset[0] == pytest.approx(want, abs=0.2)

"""A real job with one real fault after the other: each is named, and nobody and nothing else.

One recording, because starting a job takes longer than a fault; each scene of it, half healthy and
half with the fault, is judged alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.diagnose.runner import diagnose
from stepscope.report.json import to_json
from stepscope.store.reader import JobReader
from stepscope.trace import TABLES
from stepscope.window import Ints, Mask, Table, Window

from .conftest import Jobs

pytestmark = [pytest.mark.real, pytest.mark.alone]

SCENES = {
    "slow-function": 100, "sleep-forward": 100, "slow-loader": 100, "gc-storm": 100,
    "busy-core": 200,
}  # fmt: skip
"""How many steps each has. A rank leaves its busy core no more: that scene is the last."""


@pytest.fixture(scope="module")
def recorded(shared_root: Path) -> Window:
    """All scenes; the faults of single ranks are rank 1's."""
    jobs = Jobs(shared_root)
    scenes = ",".join(f"{fault}:{steps}" for fault, steps in SCENES.items())
    finished = jobs.run("slow", *jobs.fork(3, "train.py", "--scenes", scenes))
    jobs.stop_all()
    assert finished.status == 0, finished.stderr
    assert "internal fault" not in finished.stderr
    return JobReader(str(finished.folder)).refresh()


def verdicts_of(recorded: Window, fault: str) -> list[dict[str, Any]]:
    """All that is said about a scene."""
    faults = list(SCENES)
    start = sum(SCENES[earlier] for earlier in faults[: faults.index(fault)])
    verdicts: list[dict[str, Any]] = to_json(
        diagnose(scene(recorded, start, start + SCENES[fault]))
    )["verdicts"]
    return verdicts


def the_verdict(recorded: Window, fault: str) -> dict[str, Any]:
    """The one verdict about a scene, which says since when."""
    verdicts = verdicts_of(recorded, fault)
    assert len(verdicts) == 1, verdicts
    faults = list(SCENES)
    start = sum(SCENES[earlier] for earlier in faults[: faults.index(fault)])
    assert abs(verdicts[0]["steps"][0] - (start + SCENES[fault] // 2)) <= 10
    return verdicts[0]


def scene(job: Window, start: int, end: int) -> Window:
    """What there would be had the job had these steps only."""
    steps = job.tables["steps"]
    steps = steps.take(_between(steps.ints("step"), start, end))
    begun = steps.ints("start_ns").min()
    ended = (steps.ints("start_ns") + steps.ints("duration_ns")).max()

    def cut(name: str, table: Table) -> Table:
        if table.has("step"):
            return table.take(_between(table.ints("step"), start, end))
        return table.take(_between(table.ints(TABLES[name].time), begun, ended))

    return Window(job.job, {name: cut(name, table) for name, table in job.tables.items()})


def _between(values: Ints, start: int, end: int) -> Mask:
    return (values >= start) & (values < end)


def test_a_rank_that_sleeps_in_forward(recorded: Window) -> None:
    verdict = the_verdict(recorded, "sleep-forward")
    assert verdict["ranks"] == [1]
    assert verdict["phase"] == "forward-compute"
    assert verdict["cause"] in ("compute", "host")


def test_a_rank_whose_data_loader_is_slow(recorded: Window) -> None:
    verdict = the_verdict(recorded, "slow-loader")
    assert verdict["ranks"] == [1]
    assert verdict["phase"] == "data-load"
    assert verdict["cause"] == "data_loading"


def test_a_rank_with_garbage_collection_storms(recorded: Window) -> None:
    verdict = the_verdict(recorded, "gc-storm")
    assert verdict["ranks"] == [1]
    assert verdict["cause"] == "gc"


def test_a_function_that_is_slow_on_all_ranks(recorded: Window) -> None:
    verdict = the_verdict(recorded, "slow-function")
    assert verdict["ranks"] == []
    assert verdict["cause"] == "code"
    assert "tokenize_slowly" in verdict["function"]


def test_a_rank_that_shares_its_core_with_its_own_busy_processes(recorded: Window) -> None:
    """The other ranks share what cores are left, and may starve each other; it comes first."""
    verdicts = verdicts_of(recorded, "busy-core")
    assert verdicts[0]["ranks"] == [1]
    assert {verdict["cause"] for verdict in verdicts} <= {"host", "contention"}

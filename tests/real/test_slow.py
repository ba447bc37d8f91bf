"""A real job with one real fault after the other: each is named, and nobody and nothing else.

One recording, because starting a job takes longer than a fault; each scene of it, half healthy and
half with the fault, is judged alone. The busy core has a job of two ranks: with more ranks than
cores they starve one another, which stepscope rightly tells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.report.json import to_json
from stepscope.store.reader import JobReader
from stepscope.trace import TABLES
from stepscope.window import Ints, Mask, Table, Window

from .conftest import Jobs

pytestmark = [pytest.mark.real, pytest.mark.alone]

SCENES = {"sleep-forward": 100, "slow-loader": 100, "gc-storm": 100, "slow-function": 100}
"""How many steps each has. The one that needs stacks is the last: sampling takes time to begin."""
BUSY_CORE_STEPS = 200


def recording(root: Path, name: str, ranks: int, scenes: dict[str, int]) -> Window:
    """What is stored of a job that plays scenes; the faults of single ranks are rank 1's."""
    jobs = Jobs(root)
    words = ",".join(f"{fault}:{steps}" for fault, steps in scenes.items())
    finished = jobs.run(name, *jobs.fork(ranks, "train.py", "--scenes", words))
    jobs.stop_all()
    assert finished.status == 0, finished.stderr
    assert "internal fault" not in finished.stderr
    assert list(finished.folder.parent.glob(f"_devices/{name}/*.json")), "its devices are judged"
    return JobReader(str(finished.folder)).refresh()


@pytest.fixture(scope="module")
def recorded(shared_root: Path) -> Window:
    """All scenes of the job with three ranks."""
    return recording(shared_root, "slow", 3, SCENES)


def verdict_of(job: Window) -> dict[str, Any]:
    """The one verdict there is."""
    verdicts: list[dict[str, Any]] = to_json(diagnose(job))["verdicts"]
    assert len(verdicts) == 1, verdicts
    return verdicts[0]


def the_verdict(recorded: Window, fault: str) -> dict[str, Any]:
    """The one verdict about a scene, which says since when."""
    faults = list(SCENES)
    start = sum(SCENES[earlier] for earlier in faults[: faults.index(fault)])
    verdict = verdict_of(scene(recorded, start, start + SCENES[fault]))
    assert abs(verdict["steps"][0] - (start + SCENES[fault] // 2)) <= 10
    return verdict


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


def test_a_rank_that_shares_its_core_with_its_own_busy_processes(shared_root: Path) -> None:
    verdict = verdict_of(recording(shared_root, "busy", 2, {"busy-core": BUSY_CORE_STEPS}))
    assert verdict["ranks"] == [1]
    assert verdict["cause"] == "host"

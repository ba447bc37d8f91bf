"""What becomes of traces: summarized by a child, kept for a while, deleted oldest first."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.processor.profiling.archive import KEPT_SECONDS, prune
from stepscope.processor.profiling.summaries import Rows, Summaries, Task
from tests.formats.kineto.traces import gpu_events, trace, write

from .daemons import wait_for

NOW_S = 1_766_000_000.0


def kept(folder: Path, window: str, rank: int, age_s: float, size_bytes: int = 1_000) -> Path:
    path = folder / window / f"rank{rank}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)
    os.utime(path, (NOW_S - age_s,) * 2)
    return path


def test_the_oldest_of_what_is_too_much_goes(tmp_path: Path) -> None:
    old, older, new = (
        kept(tmp_path, window, 0, age) for window, age in (("b", 20), ("a", 30), ("c", 10))
    )
    assert list(prune(tmp_path, 1_500, NOW_S)) == [older, old]
    assert not older.parent.exists() and new.exists()


def test_what_is_older_than_a_week_goes(tmp_path: Path) -> None:
    gone, stays = kept(tmp_path, "a", 0, KEPT_SECONDS + 1), kept(tmp_path, "a", 1, 1)
    assert list(prune(tmp_path, 1e9, NOW_S)) == [gone]
    assert stays.exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "traces"
    (folder / "w").mkdir(parents=True)
    (folder / "w" / "rank0.json.gz").symlink_to(precious)
    prune(folder, 0, time.time() + 1)
    assert precious.read_text() == "mine"


def test_a_folder_that_is_not_there_has_nothing_to_delete(tmp_path: Path) -> None:
    assert list(prune(tmp_path / "none", 0, NOW_S)) == []


class Done:
    def __init__(self) -> None:
        self.results: list[tuple[Task, Rows, str | None]] = []

    def __call__(self, task: Task, rows: Rows, trouble: str | None) -> None:
        self.results.append((task, rows, trouble))

    def of(self, summaries: Summaries, *tasks: Task) -> list[tuple[Rows, str | None]]:
        for task in tasks:
            summaries.add(task)

        def turned() -> bool:
            summaries.turn()
            return len(self.results) == len(tasks)

        wait_for(turned, "summaries")
        return [(rows, trouble) for _, rows, trouble in self.results]


def test_a_trace_becomes_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "rank3.json.gz", trace(gpu_events()))
    done = Done()
    task = Task("job", 3, source, ("--first-step", "100", "--last-step", "101"))
    ((rows, trouble),) = done.of(Summaries(done), task)
    assert trouble is None
    assert set(rows["rank"]) == {3} and set(rows["first_step"]) == {100}
    assert "gemm_backward" in rows["function"]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys; sys.exit('too large')", "cannot be summarized: too large"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("print('no stream')", "cannot be summarized"),
        ("import sys; sys.stdout.write('x' * (17 << 20))", "bytes of patterns"),
    ],
)
def test_a_child_may_fail(program: str, says: str) -> None:
    done = Done()
    summaries = Summaries(done, [sys.executable, "-c", program])
    ((rows, trouble),) = done.of(summaries, Task("job", 0, Path("trace"), ()))
    assert not rows and trouble is not None and says in trouble


def test_a_program_that_is_not_there() -> None:
    done = Done()
    ((_, trouble),) = done.of(Summaries(done, ["/no/such"]), Task("job", 0, Path("trace"), ()))
    assert trouble is not None


def test_one_child_at_a_time_and_none_is_left_behind() -> None:
    done = Done()
    summaries = Summaries(done, [sys.executable, "-c", "import time; time.sleep(600)"])
    tasks = [Task("job", rank, Path("trace"), ()) for rank in range(3)]
    for task in tasks:
        summaries.add(task)
        summaries.turn()
    assert summaries.busy and not done.results
    child: Any = summaries._child
    summaries.close()
    assert child.process.returncode is not None
    assert [task.rank for task, _, _ in done.results] == [0, 1, 2]

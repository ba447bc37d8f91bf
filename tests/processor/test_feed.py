"""What the processor observes of a window is written for its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stepscope.processor.profiling.feed import MARGIN_NS, MOST_ROWS, Feed
from stepscope.processor.sampling.runs import rows_of, runs_of_counts

SECOND = 1_000_000_000
START = 1_766_000_000 * SECOND


def stacks(rank: int, at_s: float, active: bool | None = True) -> dict[str, Any]:
    return {
        "rank": [rank], "thread": ["MainThread"], "start_ns": [START + round(at_s * SECOND)],
        "duration_ns": [SECOND // 10], "frames": ["main (a.py:1)"], "active": [active],
        "gil": [None],
    }  # fmt: skip


def counter(rank: int, at_s: float, **more: Any) -> dict[str, Any]:
    time_ns = START + round(at_s * SECOND)
    return {"rank": [rank], "host": ["h"], "metric": ["cpu_util"], "ts_ns": [time_ns],
            "value": [0.5], **more}  # fmt: skip


def written(feed: Feed, folder: Path, rank: int = 3) -> dict[str, list[dict[str, Any]]]:
    words = feed.write("job", rank, START, START + 10 * SECOND, folder)
    files = dict(zip(words[::2], words[1::2], strict=True))
    return {option: pq.read_table(path).to_pylist() for option, path in files.items()}


def test_rows_of_the_rank_and_its_host_within_the_window(tmp_path: Path) -> None:
    feed = Feed()
    feed.collect("job", 100.0)
    for at_s in (-5.0, 0.0, 5.0, 9.9, 30.0):
        feed.note("job", "stacks", stacks(3, at_s, None if at_s == 5.0 else True))
        feed.note("job", "stacks", stacks(4, at_s))
    feed.note("job", "hardware", counter(3, 5.0))
    feed.note("job", "hardware", counter(-1, 5.0, period_ns=[SECOND]))
    feed.note("job", "steps", {"rank": [3]})
    files = written(feed, tmp_path)
    assert [row["start_ns"] - START for row in files["--stacks"]] == [0, 5 * SECOND, 9_900_000_000]
    assert [row["active"] for row in files["--stacks"]] == [True, None, True]
    assert [row["period_ns"] for row in files["--counters"]] == [None, SECOND]
    assert "--phases" not in files


def test_who_held_the_gil_is_known_for_a_whole_look_only(tmp_path: Path) -> None:
    """Its rows follow each other in any order: what a window needs may lie before it."""
    text = "thread (7): Thread-1;burn (a.py:1) 800\nthread (8): MainThread;main (a.py:9) 400"
    feed = Feed()
    feed.collect("job", 100.0)
    for first, last in ((-60, -50), (-18, 10)):
        begin, end = START + first * SECOND, START + last * SECOND
        feed.note("job", "stacks", rows_of(3, runs_of_counts(text, begin, end, 50)))
    found = [
        (row["thread"], row["start_ns"] - START) for row in written(feed, tmp_path)["--stacks"]
    ]
    assert found == [("GIL: Thread-1", -18 * SECOND), ("GIL: MainThread", -2 * SECOND)]


def test_only_while_a_window_is_under_way(tmp_path: Path) -> None:
    feed = Feed()
    feed.note("job", "stacks", stacks(3, 1.0))
    assert written(feed, tmp_path) == {}
    feed.collect("job", 100.0)
    feed.note("job", "stacks", stacks(3, 1.0))
    feed.note("another", "stacks", stacks(3, 1.0))
    feed.forget(99.0)
    assert len(written(feed, tmp_path)["--stacks"]) == 1
    feed.forget(101.0)
    feed.note("job", "stacks", stacks(3, 1.0))
    assert written(feed, tmp_path) == {}


def test_memory_is_bounded(tmp_path: Path) -> None:
    feed = Feed()
    feed.collect("job", 100.0)
    many = {name: values * MOST_ROWS for name, values in stacks(3, 1.0).items()}
    feed.note("job", "stacks", stacks(3, 2.0))
    feed.note("job", "stacks", many)
    assert len(written(feed, tmp_path)["--stacks"]) == MOST_ROWS
    assert MARGIN_NS == SECOND

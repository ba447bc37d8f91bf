"""Patterns of threads, from sampled call stacks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.patterns import Pattern, Span
from stepscope.patterns.frames import LOADER_WAIT
from stepscope.patterns.sampled import sampled_patterns, training_use
from stepscope.window import Strings, Table

SECOND = 10**9
UNKNOWN = -1
Row = tuple[str, float, float, str, int]
"""Thread, start, length, frames, active."""
MAIN = "main (train.py:30)"


def stacks(*rows: Row) -> Table:
    return Table({
        "rank": np.zeros(len(rows), np.int64),
        "thread": Strings.of([row[0] for row in rows]),
        "start_ns": np.array([round(row[1] * SECOND) for row in rows], np.int64),
        "duration_ns": np.array([round(row[2] * SECOND) for row in rows], np.int64),
        "frames": Strings.of([row[3] for row in rows]),
        "active": np.array([row[4] for row in rows], np.int64),
    })  # fmt: skip


def found(table: Table, seconds: float, training: bool = True) -> dict[str, Pattern]:
    some = sampled_patterns(table, Span(0, round(seconds * SECOND)), training)
    return {one.function: one for one in some}


def test_the_training_thread_counts_in_any_state() -> None:
    rows = stacks(
        ("MainThread", 0, 6, f"{MAIN};read (data.py:12)", 0),
        ("MainThread", 6, 1, f"{MAIN};read (data.py:12)", 1),
        ("MainThread", 7, 3, f"{MAIN};work (train.py:9)", 1),
    )
    read = found(rows, 10)["read"]
    assert read.beta == pytest.approx(0.7) and read.thread is None
    assert read.mu == pytest.approx(1 / 7) and read.resource == "cpu"
    assert (read.location, read.caller) == ("data.py:12", "train.py:30 main")
    assert found(rows, 10, training=False) == {}


def test_other_threads_count_while_they_are_active() -> None:
    pins, loop = "Thread-3 (_pin_memory_loop)", "_pin_memory_loop (pin_memory.py:50)"
    rows = stacks(
        (pins, 0, 4, f"{loop};spin (x.py:1)", 1),
        (pins, 4, 6, loop, 0),
        ("loader worker 2", 0, 9, "_worker_loop (worker.py:9);decode (images.py:8)", 1),
        ("prefetch", 0, 10, "wait (threading.py:300)", 0),
    )  # fmt: skip
    some = found(rows, 10)
    assert some["spin"].thread == "pin memory" and some["spin"].beta == pytest.approx(0.4)
    assert some["decode"].thread == "loader worker 2" and some["decode"].beta == pytest.approx(0.9)
    assert some["wait"].beta == 0 and some["wait"].mu == 0


def test_threads_of_unknown_state_say_nothing() -> None:
    rows = stacks(
        ("helper", 0, 10, "spin (x.py:1)", UNKNOWN),
        ("MainThread", 0, 10, MAIN, UNKNOWN),
    )
    assert set(found(rows, 10)) == {"main"}
    assert found(rows, 10)["main"].mu is None


def test_snapshots_stand_for_equal_parts_of_the_window() -> None:
    rows = stacks(
        *(("MainThread", at, 0, f"{MAIN};a (t.py:1)", 1) for at in range(3)),
        *(("MainThread", at, 0, f"{MAIN};b (t.py:2)", 0) for at in range(3, 4)),
        ("helper", 1, 0, "spin (x.py:1)", 1),
    )
    some = found(rows, 4)
    assert [some[name].beta for name in ("a", "b", "spin")] == [0.75, 0.25, 0.25]


def test_the_line_that_was_seen_most_is_reported() -> None:
    rows = stacks(
        ("MainThread", 0, 1, "main (train.py:8);load (data.py:10)", 1),
        ("MainThread", 1, 3, "main (train.py:9);load (data.py:12)", 1),
    )
    load = found(rows, 4)["load"]
    assert (load.location, load.caller) == ("data.py:12", "train.py:9 main")
    assert load.beta == 1


def test_waiting_for_loader_workers_is_the_loaders_time() -> None:
    path = "/opt/python/site-packages/torch/utils/data/dataloader.py"
    frames = (
        f"{MAIN};__next__ ({path}:7);_try_get_data ({path}:12);get (/lib/python3.11/queue.py:1)"
    )
    waits = found(stacks(("MainThread", 0, 1, frames, 0)), 2)[LOADER_WAIT]
    assert (waits.beta, waits.caller) == (0.5, "train.py:30 main")


def test_the_use_of_the_training_thread_by_instants() -> None:
    series = training_use(stacks(
        ("MainThread", 0, 0.04, MAIN, 1), ("MainThread", 0.04, 0.02, MAIN, 0),
        ("MainThread", 0.06, 0.02, MAIN, UNKNOWN), ("helper", 0, 1, MAIN, 1),
    ))  # fmt: skip
    assert series.use.tolist() == [1, 1, 1, 1, 0, 0]
    assert (series.middle_ns / SECOND).tolist() == [0.005, 0.015, 0.025, 0.035, 0.045, 0.055]


words = st.text(max_size=30) | st.sampled_from((
    "MainThread", "a (b.py:3);", ";;", "f (x:1);_try_get_data (torch/utils/data/dataloader.py:9)",
    "(:1)", " (:99999999999999999999)",
))  # fmt: skip
times = st.integers(-(2**62), 2**62)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(words, times, times, words, st.integers(-1, 2)), max_size=6))
def test_no_rows_crash_it(rows: list[tuple[str, int, int, str, int]]) -> None:
    table = stacks(*(("MainThread", 0.0, 0.0, "", 0) for _ in rows))
    table = Table({
        **table.columns,
        "thread": Strings.of([row[0] for row in rows]),
        "start_ns": np.array([row[1] // 2 for row in rows], np.int64),
        "duration_ns": np.array([row[2] // 2 for row in rows], np.int64),
        "frames": Strings.of([row[3] for row in rows]),
        "active": np.array([row[4] for row in rows], np.int64),
    })  # fmt: skip
    for pattern in sampled_patterns(table, Span(0, SECOND), training=True):
        assert 0 <= pattern.beta <= 1
        assert pattern.mu is None or 0 <= pattern.mu <= 1
    assert training_use(table).use.size <= 1_000_000 + len(rows)


def test_loader_workers_of_unknown_state_count_by_what_they_do() -> None:
    rows = stacks(("loader worker 0", 0, 6, "decode (images.py:8)", UNKNOWN),
                  ("loader worker 0", 6, 4, "select (selectors.py:4)", UNKNOWN))  # fmt: skip
    some = found(rows, 10)
    assert some["decode"].beta == pytest.approx(0.6)
    assert some["select"].beta == pytest.approx(0.4)
    assert some["decode"].mu is None


def test_who_held_the_gil_counts_as_part_of_the_sampled_time() -> None:
    """Sampled from 20 s before the window on; when it was held is not known."""
    rows = stacks(("GIL: Thread-1 (spin)", -20, 12, "spin (x.py:1)", 1),
                  ("GIL: MainThread", -8, 3, MAIN, 1))  # fmt: skip
    some = found(rows, 4)
    assert some["spin"].beta == pytest.approx(12 / 24)
    assert some["main"].beta == pytest.approx(3 / 24)

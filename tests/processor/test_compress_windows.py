"""Summaries of a host's kernel events for every minute that is over, with a fake clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.processor.compress.windows import GRACE_NS, Finished, Lost, SummaryWindows
from stepscope.store.encode import arrow_table, parquet_bytes
from stepscope.trace.modes import WINDOW_NS
from stepscope.window import Ints

SECOND = 1_000_000_000
START = 1_766_000_000 * SECOND // WINDOW_NS * WINDOW_NS


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


class Host:
    """One that tells of its kernels when they end."""

    def __init__(self, windows: SummaryWindows | None = None) -> None:
        self.windows = windows or SummaryWindows()
        self.finished: list[Finished] = []

    def ran(self, rank: int, at_s: float, durations: Sequence[int], seen_s: float | None = None,
            kernel: int = 4, stream: int = 7, parts: int = 1) -> None:  # fmt: skip
        ends = ints([START + int(at_s * SECOND)] * len(durations))
        same = np.ones_like(ends)
        now = START + int((at_s if seen_s is None else seen_s) * SECOND)
        columns = kernel * same, stream * same, ints(durations), ends
        self.finished += self.windows.add(rank, *columns, now, parts)

    def is_it(self, at_s: float) -> None:
        self.finished += self.windows.tick(START + int(at_s * SECOND))

    def rows(self) -> list[tuple[Any, ...]]:
        """Window, rank, kernel, stream, cluster, count and, to a tenth of a us, p50 and p99."""
        found: list[tuple[Any, ...]] = []
        for window in self.finished:
            rows = window.rows(lambda rank, kernel: f"k{rank}.{kernel}")
            number = (window.window_start_ns - START) // WINDOW_NS
            names = [rows["kernel"][at] for at in range(len(rows["rank"]))]
            tenths = (rows[name].round(-2) for name in ("p50_ns", "p99_ns"))
            columns = (rows["stream"], rows["cluster"], rows["count"], *tenths)
            numbers = zip(*(column.tolist() for column in columns), strict=True)
            found += [(number, rank, name, *rest) for rank, name, rest in
                      zip(rows["rank"].tolist(), names, numbers, strict=True)]  # fmt: skip
        return found


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_window_is_reported_after_the_grace_period_for_late_events(host: Host) -> None:
    host.ran(0, 10, [1000] * 6)
    host.ran(1, 59, [2000] * 6, seen_s=64)
    host.ran(0, 61, [3000] * 6)
    assert host.finished == []
    host.is_it(65)
    first = [(0, 0, "k0.4", 7, 0, 6, 1000, 1000), (0, 1, "k1.4", 7, 0, 6, 2000, 2000)]
    assert host.rows() == first
    host.is_it(125)
    assert host.rows() == [*first, (1, 0, "k0.4", 7, 0, 6, 3000, 3000)]
    assert host.windows.take_lost() == []


def test_kernels_and_streams_are_kept_apart_and_modes_numbered(host: Host) -> None:
    host.ran(0, 1, [1000] * 9 + [2500] * 5 + [1000], kernel=1)
    host.ran(0, 1, [1000] * 5, kernel=1, stream=-1)
    host.ran(0, 1, [1000] * 5, kernel=2)
    host.finished += host.windows.finish()
    assert host.rows() == [
        (0, 0, "k0.1", -1, 0, 5, 1000, 1000), (0, 0, "k0.1", 7, 0, 10, 1000, 1000),
        (0, 0, "k0.1", 7, 1, 5, 2500, 2500), (0, 0, "k0.2", 7, 0, 5, 1000, 1000),
    ]  # fmt: skip


def test_one_packet_may_hold_events_of_two_windows(host: Host) -> None:
    ends = START + ints([59, 61, 59, 61]) * SECOND
    host.windows.add(3, ints([1] * 4), ints([7] * 4), ints([1000, 2000, 1000, 2000]), ends,
                     START + 62 * SECOND)  # fmt: skip
    host.is_it(200)
    assert [(row[0], *row[5:]) for row in host.rows()] == [(0, 2, 1000, 1000), (1, 2, 2000, 2000)]


def test_a_kernel_that_hung_for_an_hour_belongs_to_the_minute_of_its_end(host: Host) -> None:
    host.ran(0, 3600, [3600 * SECOND])
    host.is_it(3600 + 65)
    assert [row[0] for row in host.rows()] == [60]


def test_what_comes_too_late_or_from_the_future_is_counted_by_rank(host: Host) -> None:
    host.is_it(65)
    host.ran(0, 59, [100] * 3, seen_s=65)
    host.ran(0, 50, [100] * 2, seen_s=66)
    host.ran(1, 10_000, [100], seen_s=66)
    assert host.windows.take_lost() == [
        Lost(0, START + 50 * SECOND, START + 59 * SECOND, 5),
        Lost(1, START + 10_000 * SECOND, START + 10_000 * SECOND, 1),
    ]
    assert host.windows.take_lost() == []
    assert host.windows.finish() == []


def test_a_clock_that_is_set_back_opens_no_window_twice(host: Host) -> None:
    host.is_it(65)
    host.ran(0, 30, [100], seen_s=30)
    assert [lost.events for lost in host.windows.take_lost()] == [1]


def test_impossible_durations_are_lost_and_no_more() -> None:
    host = Host()
    host.ran(0, 1, [100, -5, 100, 10**15])
    host.is_it(65)
    assert [row[5] for row in host.rows()] == [2]
    assert [lost.events for lost in host.windows.take_lost()] == [2]


def test_memory_has_an_end_however_many_kernels_there_are() -> None:
    host = Host(SummaryWindows(most_groups=10, most_blocks=10))
    for kernel in range(1000):
        host.ran(0, 1, [100], kernel=kernel)
    full = host.windows.size_bytes
    for kernel in range(1000):
        host.ran(1, 2, [100], kernel=kernel)
    assert host.windows.size_bytes == full < 20_000
    host.is_it(65)
    assert len(host.rows()) == 10 and host.windows.size_bytes == 0
    assert [lost.events for lost in host.windows.take_lost()] == [990, 1000]


def test_no_more_than_three_windows_are_open_whenever_events_ended(host: Host) -> None:
    rng = np.random.default_rng(0)
    for now in range(0, 600, 7):
        for end in rng.integers(-300, 900, 20).tolist():
            host.ran(0, end, [100], seen_s=now)
        assert len(host.windows._open) <= 3
    told = sum(row[5] for row in host.rows())
    open_still = sum(int(f.modes["count"].sum()) for f in host.windows.finish())
    assert told + open_still + sum(lost.events for lost in host.windows.take_lost()) == 86 * 20


def test_shorter_windows_than_the_grace_are_refused() -> None:
    with pytest.raises(AssertionError):
        SummaryWindows(window_ns=GRACE_NS - 1)


def test_rows_are_of_the_table_kernel_summaries(host: Host, tmp_path: Path) -> None:
    host.ran(0, 1, [1000] * 5 + [9000] * 5)
    host.is_it(65)
    table = arrow_table("kernel_summaries", host.finished[0].rows(lambda rank, kernel: "gemm"))
    assert table.to_pylist()[1] == {
        "rank": 0, "window_start_ns": START, "window_ns": WINDOW_NS, "kernel": "gemm",
        "stream": 7, "cluster": 1, "count": 5, "p50_ns": table["p50_ns"][1].as_py(),
        "p99_ns": table["p99_ns"][1].as_py(), "max_ns": table["max_ns"][1].as_py(),
    }  # fmt: skip
    assert len(parquet_bytes(table)) > 0
    unknown = host.finished[0].rows(lambda rank, kernel: None)
    assert arrow_table("kernel_summaries", unknown)["kernel"].null_count == 2


def test_what_was_recorded_partly_stands_for_more(host: Host) -> None:
    """Six of one part, and six of one in four: thirty in all. Another rank counts as it is."""
    host.ran(0, 10, [1000] * 6)
    host.ran(0, 20, [1000] * 6, parts=4)
    host.ran(1, 20, [1000] * 6)
    host.is_it(65)
    assert [(row[1], row[5]) for row in host.rows()] == [(0, 30), (1, 6)]

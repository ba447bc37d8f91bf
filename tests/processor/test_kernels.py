"""Kernels received from ranks: summaries of every minute, and rows if they are kept."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.processor.compress.windows import GRACE_NS
from stepscope.processor.state import host_state, kernels
from stepscope.processor.state.host_state import HOLD_NS, KERNELS_NS
from stepscope.store.encode import arrow_table
from stepscope.trace.modes import WINDOW_NS
from stepscope.window import NULL

from .producers import OFFSET_NS
from .test_state import CONNECTION, Story, appended

MINUTE = WINDOW_NS
START = -OFFSET_NS % MINUTE
"""Monotonic time at which a window begins."""


def rows(found: list[Any], table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of some appended pieces, as the store would have them."""
    plain = [row for piece in found for row in arrow_table(table, piece).to_pylist()]
    return [tuple(row[name] for name in columns) for row in plain]


def begun(rank: int = 0, at: int = CONNECTION, names: tuple[str, ...] = ("gemm", "flash"),
          host: host_state.HostState | None = None) -> Story:  # fmt: skip
    story = Story(rank, host, at)
    story.now_ns = OFFSET_NS + START
    story.begin()
    story.tell("loader", "optimizer", *names)
    return story


def ran(story: Story, name: str, durations: list[int], start: int = START) -> Any:
    rank = story.rank
    return story.records(*(rank.kernel(name, start + n, took) for n, took in enumerate(durations)))


def sums(instructions: Any) -> list[tuple[Any, ...]]:
    found = appended(instructions, "kernel_summaries")
    return rows(found, "kernel_summaries", "rank", "kernel", "stream", "count", "p50_ns", "p99_ns")


def test_a_minute_of_kernels_is_reported_when_it_is_over() -> None:
    story = begun()
    ran(story, "gemm", [100] * 6)
    ran(story, "flash", [200] * 7)
    end = OFFSET_NS + START + MINUTE
    assert sums(story.state.tick(end + GRACE_NS - 1)) == []
    assert sums(story.state.tick(end + GRACE_NS)) == [
        (0, "gemm", 7, 6, 100, 100), (0, "flash", 7, 7, 200, 200)
    ]  # fmt: skip
    assert sums(story.state.tick(end + 2 * GRACE_NS)) == []


def test_ranks_that_number_names_differently_share_one_table() -> None:
    first = begun()
    second = begun(1, CONNECTION + 1, ("flash", "gemm"), first.state)
    ran(first, "gemm", [100] * 5)
    ran(second, "gemm", [100] * 5)
    found = sums(first.state.tick(OFFSET_NS + START + MINUTE + GRACE_NS))
    assert [(row[0], row[1]) for row in found] == [(0, "gemm"), (1, "gemm")]


def test_everything_is_reported_when_the_last_rank_leaves() -> None:
    first = begun()
    second = begun(1, CONNECTION + 1, host=first.state)
    ran(first, "gemm", [100] * 5)
    assert sums(first.hang_up()) == []
    ran(second, "gemm", [300] * 5)
    assert [row[0] for row in sums(second.hang_up())] == [0, 1]


def test_a_job_that_came_back_starts_anew() -> None:
    story = begun()
    ran(story, "gemm", [100] * 5)
    story.hang_up()
    story.state.forget("job-1")
    again = begun(0, CONNECTION, ("other",), story.state)
    ran(again, "other", [100] * 5)
    assert [row[1] for row in sums(again.hang_up())] == ["other"]


def test_executions_that_no_summary_counts_are_losses() -> None:
    story = begun()
    story.now_ns += 10 * MINUTE
    ran(story, "gemm", [100, 100, 100])
    ran(story, "gemm", [100, -7], start=START + 10 * MINUTE)
    out = story.hang_up()
    assert sums(out) == [(0, "gemm", 7, 1, 100, 100)]
    lost = rows(appended(out, "losses"), "losses", "rank", "table", "start_ns", "rows")
    assert lost == [(0, "kernel_summaries", OFFSET_NS + START + 100, 4)]


def test_more_names_than_there_is_room_for_are_summed_up_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "MOST_NAMES", 1)
    story = begun()
    for name in ("gemm", "flash", "loader"):
        ran(story, name, [100] * 5)
    found = sums(story.hang_up())
    assert sorted((row[1] is None, row[3]) for row in found) == [(False, 5), (True, 10)]


def kernel_rows(instructions: Any) -> list[tuple[Any, ...]]:
    found = appended(instructions, "kernels")
    names = ("rank", "step", "kernel", "stream", "start_ns", "duration_ns", "enqueue_ns")
    return rows(found, "kernels", *names)


def test_each_kernel_is_reported_once_its_step_is_known() -> None:
    story = begun()
    assert kernel_rows(ran(story, "gemm", [100])) == []
    start = OFFSET_NS + START
    assert kernel_rows(story.state.tick(story.now_ns + KERNELS_NS)) == []
    story.train(10)
    told = kernel_rows(story.state.tick(story.now_ns + KERNELS_NS))
    assert told == [(0, 0, "gemm", 7, start, 100, start - 50)]
    story.records(story.rank.kernel("gemm", START, 100, launched_ns=None))
    assert kernel_rows(story.hang_up()) == [(0, 10, "gemm", 7, start, 100, None)]


def test_kernels_that_wait_have_an_end_and_the_others_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_state, "MOST_KERNELS", 3)
    story = begun()
    assert kernel_rows(ran(story, "gemm", [1, 2])) == []
    told = appended(ran(story, "flash", [3, 4]), "kernels")
    assert [piece["step"].tolist() for piece in told] == [[NULL] * 4]
    ran(story, "gemm", [5])
    released = story.state.tick(story.now_ns + HOLD_NS + 1)
    assert [row[1:3] for row in kernel_rows(released)] == [(0, "gemm")]


def test_no_window_ends_while_kernels_of_it_wait() -> None:
    first = begun()
    second = begun(1, CONNECTION + 1, host=first.state)
    late = OFFSET_NS + START + MINUTE + GRACE_NS - 1
    first.now_ns = second.now_ns = late
    for story in (first, second):
        story.train(10)
        ran(story, "gemm", [100] * 5)
    second.now_ns += 2
    out = ran(second, "gemm", [100] * 5, start=START + MINUTE)
    assert sums([*out, *second.hang_up()]) == []
    found = sums(first.state.tick(late + KERNELS_NS))
    assert sorted((row[0], row[3]) for row in found) == [(0, 5), (1, 5)]

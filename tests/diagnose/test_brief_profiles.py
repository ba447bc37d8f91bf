"""Functions of ranks whose profile lasts a second or two, sampled each millisecond."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.views.stack_rows import _index as indexed
from stepscope.diagnose.views.stacks import Samples, slower_than_peers

TRAIN, LOADS = "main (train.py:10)", "main (train.py:10);load (train.py:4)"
SLEEPS = f"{LOADS};<built-in function sleep>"
READS = f"{LOADS};read (torch/serialization.py:7);<built-in method read of File object>"
MS = 1_000_000


def samples(ms: int, slow: str, share: float = 0.4) -> Samples:
    """Rank 0 spends a part of each step of 50 ms in a function that its three peers never call."""
    rows: list[tuple[int, int, int, int]] = []
    """Rank, stack, start and length in ms."""
    late = round(50 * share)
    for begin in range(0, ms, 50):
        rows.append((0, 1, begin, late))
        rows += [(0, 0, begin + at, 1) for at in range(late, 50)]
        rows += [(rank, 0, begin + at, 1) for rank in (1, 2, 3) for at in range(50)]
    row, code, start, lasted = np.array(rows, np.int64).T
    return Samples(row, code, start * MS, lasted * float(MS), *indexed([TRAIN, slow]), 2)


def named(found: Samples) -> str | None:
    everything = np.ones(found.row.size, np.bool_)
    slow = slower_than_peers(found, 0, [1, 2, 3], everything, 0.4)
    return None if slow is None else slow.function


@pytest.mark.parametrize("ms", [500, 1500])
def test_samples_count_not_the_time(ms: int) -> None:
    assert named(samples(ms, LOADS)) == "load (train.py:4)"


def test_the_users_caller_of_a_function_in_c_is_named() -> None:
    assert named(samples(1000, SLEEPS)) == "load (train.py:4)"


def test_a_function_in_c_that_a_library_calls_stays_itself() -> None:
    assert named(samples(1000, READS)) == "<built-in method read of File object>"


@pytest.mark.parametrize(("count", "function"), [(15, None), (25, "load (train.py:4)")])
def test_ten_samples_a_second_need_two_seconds(count: int, function: str | None) -> None:
    row = np.repeat(np.arange(4), count)
    time_ns = np.tile(np.arange(count) * 100 * MS, 4)
    code = ((row == 0) & (time_ns % (200 * MS) == 0)).astype(np.int64)
    weight = np.full(row.size, 100.0 * MS)
    assert named(Samples(row, code, time_ns, weight, *indexed([TRAIN, LOADS]), 2)) == function

"""Numbers as people read them."""

from __future__ import annotations

import pytest

from stepscope.report import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 s"), (412, "412 ns"), (12_345, "12.3 µs"), (1_234_567_890, "1.23 s"),
     (0.4, "0.40 ns"), (999_400, "999 µs"), (999_600, "1.00 ms"), (9_998_000, "10.0 ms"),
     (-3_412_000, "-3.41 ms"), (119e9, "119 s"), (300e9, "5 min"), (3900e9, "1 h 05 min"),
     (200_000e9, "2 d 7 h")],
)  # fmt: skip
def test_durations(ns: float, text: str) -> None:
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.0004, "<0.1%"), (0.012, "1.2%"), (0.05, "5%"), (0.18, "18%"), (1, "100%")],
)
def test_shares(share: float, text: str) -> None:
    assert units.percent(share) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((37,), "rank 37"), ((3, 1, 2, 0, 12), "ranks 0-3, 12"),
     (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, … (20 in all)")],
)  # fmt: skip
def test_ranks(numbers: tuple[int, ...], text: str) -> None:
    assert units.ranks(numbers) == text


def test_sizes() -> None:
    assert [units.size(n) for n in (12, 4096, 48_200_000)] == ["12 B", "4.10 kB", "48.2 MB"]

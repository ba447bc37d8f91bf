"""In which parts of the time kernels are recorded, so that it costs no more than it may."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from .compiling import ADDRESSES, HERE, NATIVE, compiled

SECOND = 10**9
PERIOD = 10 * SECOND
NOW = 1_800_000_000 * SECOND
"""A wall-clock time."""


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Path:
    sources = [HERE / "budget_driver.cpp", NATIVE / "cupti" / "budget.cpp"]
    return compiled(pytestconfig, "budget-driver", sources, ADDRESSES)


def ask(program: Path, share: float, lines: Sequence[str]) -> list[list[int]]:
    done = subprocess.run(
        [program, str(share)], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def seconds(rate: int, count: int, since: int = NOW) -> list[str]:
    """`count` seconds, all recorded, with so many records in each."""
    return [f"took {since + at * SECOND} {rate} {SECOND}" for at in range(count)]


@pytest.mark.parametrize(
    ("rate", "parts"), [(0, 1), (5_000, 1), (5_001, 2), (40_000, 8), (10**6, 64), (10**7, 64)]
)
def test_as_many_parts_as_keep_the_cost_within_the_budget(
    program: Path, rate: int, parts: int
) -> None:
    """A record costs a microsecond: 5,000 a second are half a percent."""
    assert ask(program, 0.005, seconds(rate, 5))[-1] == [parts]


def test_whoever_allows_all_records_all(program: Path) -> None:
    assert ask(program, 1.0, seconds(10**6, 3))[-1] == [1]


def test_a_quiet_start_does_not_delay_the_answer_to_a_busy_second(program: Path) -> None:
    told = ask(program, 0.005, [*seconds(0, 9), *seconds(80_000, 1, NOW + 9 * SECOND)])
    assert [row[0] for row in told] == [1] * 9 + [16]


def test_more_is_recorded_again_when_a_minute_was_quiet(program: Path) -> None:
    busy, quiet = seconds(40_000, 1), seconds(0, 80, NOW + PERIOD)
    told = [row[0] for row in ask(program, 0.005, [*busy, *quiet])]
    assert told[0] == 8 and told[-1] == 1
    assert told == sorted(told, reverse=True)


@pytest.mark.parametrize(("rate", "parts"), [(0, 1), (20_000, 4), (300_000, 64)])
def test_one_part_of_every_ten_seconds_is_recorded(program: Path, rate: int, parts: int) -> None:
    """At times that look drawn, and the same for whoever asks."""
    fine = 20 * SECOND // 1000
    looks = [f"on {NOW + PERIOD + at * fine}" for at in range(500 * 8)]
    told = ask(program, 0.005, [*seconds(rate, 1), *looks])
    assert told[0] == [parts]
    on = [row[0] for row in told[1:]]
    each = [on[at : at + 500] for at in range(0, len(on), 500)]
    for period in each:
        assert abs(sum(period) - 500 / parts) <= 1
        assert sum(a != b for a, b in pairwise(period)) <= 2, "in one piece"
    begins = {period.index(1) for period in each}
    assert len(begins) == 1 if parts == 1 else len(begins) > 4
    assert told == ask(program, 0.005, [*seconds(rate, 1), *looks])


def test_the_rest_of_a_period_with_too_many_is_not_recorded(program: Path) -> None:
    """Or what is recorded of it would stand for more than there was."""
    looks = [f"on {NOW + at * SECOND}" for at in range(1, 10)]
    told = ask(program, 0.005, [*seconds(40_000, 1), *looks])
    assert [row[0] for row in told[1:]] == [0] * 9
    assert told[1][1] == 9 * SECOND


def test_it_changes_exactly_when_it_says(program: Path) -> None:
    asked = NOW
    state = None
    for _ in range(12):
        (_, (on, until)) = ask(program, 0.005, [*seconds(20_000, 1), f"on {asked}"])
        assert until > 0
        if state is not None and asked % PERIOD:
            assert on != state
        state, asked = on, asked + until

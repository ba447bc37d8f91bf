"""Numbers as they appear in sentences."""

from __future__ import annotations

from collections.abc import Sequence

LISTED = 6
"""Runs of steps that a sentence names."""


def percent(part: float) -> str:
    """A share of a whole, never below 0 nor above 100: noise may make it so."""
    return f"{100 * min(max(part, 0.0), 1.0):.0f} %"


def time_apart(ns: int) -> str:
    """`2.9 ms`, `12 s`."""
    return f"{ns / 1e9:.0f} s" if ns >= 10**10 else (
        f"{ns / 1e9:.1f} s" if ns >= 10**9 else f"{ns / 1e6:.1f} ms")  # fmt: skip


def duration(ns: float) -> str:
    """`312 ms`, `1.25 s`."""
    return f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.0f} ms"


def ranks_wait(count: int, inside: int, where: str) -> str:
    """Who waits in an operator, and how many wait elsewhere because of it.

    >>> ranks_wait(3, 3, "AllReduce 6 of dp-0")
    '3 ranks wait in AllReduce 6 of dp-0'
    >>> ranks_wait(15, 1, "AllReduce 6 of dp-0")
    '15 ranks wait, 1 of them in AllReduce 6 of dp-0'
    """
    who = "1 rank waits" if count == 1 else f"{count} ranks wait"
    return f"{who}, {inside} of them in {where}" if 0 < inside < count else f"{who} in {where}"


def steps_of(numbers: Sequence[int]) -> str:
    """Some of many steps, in order.

    >>> steps_of([7, 12, 13, 14, 20])
    'steps 7, 12-14, 20'
    >>> steps_of(range(0, 20, 2))
    'steps 0, 2, 4, 6, 8, 10, … (10 in all)'
    """
    begins = [at for at, one in enumerate(numbers) if not at or one != numbers[at - 1] + 1]
    bounds = zip(begins, [*begins[1:], len(numbers)], strict=True)
    runs = [(numbers[first], numbers[stop - 1]) for first, stop in bounds]
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:LISTED])
    return f"steps {text}" + (f", … ({len(numbers)} in all)" if len(runs) > LISTED else "")

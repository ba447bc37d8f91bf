"""The definitions of EROICA's section 4.2, written down as they read: slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Call = tuple[int, int, int]
"""Start, end and function."""


def in_order(calls: Sequence[Call]) -> list[Call]:
    """By start; the longest first."""
    return sorted(calls, key=lambda call: (call[0], -call[1]))


def columns(calls: Sequence[Call]) -> tuple[bytes, bytes, bytes]:
    start, end, of = ([call[at] for call in calls] for at in range(3))
    return (
        np.array(start, np.int64).tobytes(),
        np.array(end, np.int64).tobytes(),
        np.array(of, np.int32).tobytes(),
    )


def innermost_at(calls: Sequence[Call], time: int) -> int | None:
    """The last of the calls in order that runs at a time."""
    running = [at for at, (start, end, _) in enumerate(calls) if start <= time < end]
    return running[-1] if running else None


def critical_at(classes: Sequence[Sequence[Call]], time: int) -> set[int]:
    """Equation 3: the functions of the highest class of which any runs at a time."""
    for calls in classes:
        running = {of for start, end, of in calls if start <= time < end}
        if running:
            return running
    return set()


def critical_times(
    classes: Sequence[Sequence[Call]], functions: int, start: int, end: int
) -> list[int]:
    """Equation 2, before the division by |T|, second by second."""
    on_path = [critical_at(classes, time) for time in range(start, end)]
    return [sum(of in now for now in on_path) for of in range(functions)]


def critical_duration(use: Sequence[float], share: float = 0.8) -> tuple[int, int, int] | None:
    """Algorithm 1 as printed: bisection over g; returns g and the longest subinterval found that
    begins and ends with use."""
    total = sum(use)
    left, right = 0, len(use)
    best = None
    while left <= right:
        g = (left + right) // 2
        found = _subinterval(use, share * total, g)
        if found is not None:
            best, right = (g, *found), g - 1
        else:
            left = g + 1
    return best


def _subinterval(use: Sequence[float], need: float, g: int) -> tuple[int, int] | None:
    found = [
        (begin, end)
        for begin in range(len(use))
        for end in range(begin + 1, len(use) + 1)
        if use[begin] and use[end - 1] and sum(use[begin:end]) >= need * (1 - 1e-12)
        and _longest_zeros(use[begin:end]) <= g
    ]  # fmt: skip
    return max(found, key=lambda one: one[1] - one[0], default=None)


def _longest_zeros(use: Sequence[float]) -> int:
    longest = run = 0
    for one in use:
        run = 0 if one else run + 1
        longest = max(longest, run)
    return longest

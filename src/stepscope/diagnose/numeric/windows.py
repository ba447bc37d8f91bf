"""Windows of steps: how many steps each mean is taken over."""

from __future__ import annotations

WINDOW = 10
"""Steps per window (algorithm notes, section 4: means of ten windows, 0 false ranks). Our
simulator."""
MOST_WINDOWS = 64
"""Longer series get wider windows, which bounds the work and the number of tests. Our simulator."""
LEAST_WINDOWS = 3
"""A stretch of fewer windows is transient. Our simulator."""


def window_width(steps: int) -> int:
    """Steps per window: ten, more in long series and fewer in very short ones."""
    if steps < LEAST_WINDOWS * 2 * WINDOW:
        return max(2, steps // (LEAST_WINDOWS * 2))
    return max(WINDOW, -(-steps // MOST_WINDOWS))

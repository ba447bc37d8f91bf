"""Numbers as they appear in sentences."""

from __future__ import annotations


def percent(part: float) -> str:
    """A share of a whole, never below 0 nor above 100: noise may make it so."""
    return f"{100 * min(max(part, 0.0), 1.0):.0f} %"

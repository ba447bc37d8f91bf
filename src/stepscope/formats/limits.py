"""Limits of plausible jobs: a file beyond them is damaged, or made to exhaust memory."""

MOST_RANKS = 1 << 20
"""Ten times the largest existing clusters."""

"""What no job has: beyond it a file is damaged, or was made to fill the memory."""

MOST_RANKS = 1 << 20
"""Ten times the largest clusters there are."""

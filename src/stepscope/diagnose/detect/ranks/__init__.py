"""Ranks that take longer than their peers: always, for a while, now and then, or in turns."""

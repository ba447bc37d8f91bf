"""Functions that ranks execute unlike their peers, or too long, by profiled steps (EROICA)."""

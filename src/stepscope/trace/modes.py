"""Modes of durations: the summary of a kernel's executions on one stream of one rank in a window.

ARGUS (Zhou et al., 2026), section 5.2: executions of one kernel fall into a few modes. Each mode is
kept as a count and the 50th and 99th percentile of durations. The 50th is the lower median; the
99th is the shortest duration that 99 % do not exceed. Modes cannot be merged, histograms can.
"""

WINDOW_NS = 60_000_000_000
"""A minute (ARGUS, section 5.2)."""
LARGEST_ERROR = 1 / 128
"""Largest relative error of a percentile from a histogram: a bin's width (`log_bins.hpp`)."""

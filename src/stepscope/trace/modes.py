"""Modes of durations: what a window keeps of a kernel's executions on one stream of one rank.

ARGUS (Zhou et al., 2026), section 5.2: executions of one kernel fall into a few modes, each kept as
how many there were and how long they took at the 50th and 99th percentile. The 50th is the lower
median; the 99th the least duration that 99 % do not exceed. Modes do not merge, histograms do.
"""

WINDOW_NS = 60_000_000_000
"""A minute (ARGUS, section 5.2)."""
LARGEST_ERROR = 1 / 128
"""Of a percentile out of a histogram, relative: the width of a bin (`native/src/log_bins.hpp`)."""

"""Kernel events of a minute to the table `kernel_summaries` (ARGUS, section 5.2).

    events ─▶ windows: which minute ─▶ histograms: how often how long ─▶ modes ─▶ rows

`windows` keeps what a host sees until a minute is over. `published` finds the modes as the paper
does, out of all durations at once, so that its claims can be checked. Both need the native part,
and say so where it is missing.
"""

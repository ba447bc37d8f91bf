"""Summarises the kernel events of each minute into the table `kernel_summaries` (ARGUS, section
5.2).

    events ─▶ windows by minute ─▶ histograms of durations ─▶ modes ─▶ rows

`windows` keeps a host's events until a minute is over. `published` finds the modes as the paper
does, from all durations at once, so that its claims can be checked. Both need the native part and
raise an error if it is missing.
"""

"""A rank's runtime behaviour patterns in a profiled window: EROICA (2026), section 4.2.

    profiler's events ─▶ lanes ─▶ critical ─▶ rows ─▶ table `patterns`
    sampled stacks    ─▶ sampled ────────────▶
    counters          ─▶ use (critical durations)

`summarize` does it; `python -m stepscope.patterns` reads the files and writes the rows.
`docs/methods/patterns.md` has the formulas and the limits.
"""

from stepscope.patterns.activity import Activity, Span
from stepscope.patterns.rows import Pattern, Patterns, table_of
from stepscope.patterns.summary import summarize

__all__ = ["Activity", "Pattern", "Patterns", "Span", "summarize", "table_of"]

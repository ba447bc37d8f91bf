"""Writes one merged timeline of all ranks, for https://ui.perfetto.dev.

    select ─▶ trace ─▶ stepscope.perfetto
    rows      verdicts, ranks, hosts     bytes

Ranks are written one after the other, each in blocks, so memory holds only the window and the rows
of one rank. It needs numpy only.
"""

from stepscope.report.perfetto.select import select
from stepscope.report.perfetto.trace import Scene, draw, span_of

__all__ = ["Scene", "draw", "select", "span_of"]

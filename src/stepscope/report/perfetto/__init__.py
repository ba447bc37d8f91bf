"""One merged timeline of all ranks, as a file that https://ui.perfetto.dev opens.

    select ─▶ trace ─▶ stepscope.perfetto
    rows      verdicts, ranks, hosts     bytes

Ranks are written one after the other, and each in blocks, so memory holds the window and one rank's
rows. Nothing but numpy is needed.
"""

from stepscope.report.perfetto.select import select
from stepscope.report.perfetto.trace import Scene, draw, span_of

__all__ = ["Scene", "draw", "select", "span_of"]

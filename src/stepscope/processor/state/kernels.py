"""Kernels of a job's ranks on this host to the table `kernel_summaries`, window by window.

Pure, as `state` is: rows go in and rows come out. Ranks number their names each in its own way, and
anew when they start again; here all share one numbering. Memory is bounded: so many names, and what
`compress.windows` keeps.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from stepscope.errors import MissingNativeError
from stepscope.processor.records.normalise import Rows
from stepscope.window import Ints, Strings

if TYPE_CHECKING:
    from stepscope.processor.compress.windows import Finished, Lost, SummaryWindows

logger = logging.getLogger(__name__)

MOST_NAMES = 1 << 15
"""Of kernels of one job here. A compiler that makes kernels as it goes has hundreds; twice what
windows have room for."""
UNNAMED = -1
_LOSSES = ("rank", "table", "start_ns", "end_ns", "rows")
NewRows = list[tuple[str, Rows]]
"""Tables and the rows to add to them."""


class KernelSums:
    """One job."""

    def __init__(self) -> None:
        self._windows = _windows()
        self._numbers: dict[str, int] = {}

    def add(self, rank: int, rows: Rows, now_ns: int, oldest_ns: int) -> NewRows:
        """Takes rows of `kernels`; gives those of windows that are over.

        Args:
            now_ns: when the last of them came.
            oldest_ns: since when some of any rank wait to be added.
        """
        if self._windows is None:
            return []
        told = self.tick(oldest_ns)
        ends = rows["start_ns"] + rows["duration_ns"]
        numbers = self._numbered(rows["kernel"])
        self._windows.count(rank, numbers, rows["stream"], rows["duration_ns"], ends, now_ns)
        return told

    def tick(self, now_ns: int) -> NewRows:
        """Gives windows that are over by now, and with them what no window counts."""
        done = [] if self._windows is None else self._windows.tick(now_ns)
        return self._told(done) if done else []

    def finish(self) -> NewRows:
        """Gives all that is there: the ranks have left."""
        return [] if self._windows is None else self._told(self._windows.finish())

    def _told(self, done: list[Finished]) -> NewRows:
        assert self._windows is not None
        names = [*self._numbers, None]  # the last one is for UNNAMED
        told: NewRows = [
            ("kernel_summaries", one.rows(lambda _, number: names[number]))
            for one in done
            if len(one.modes)
        ]
        lost = self._windows.take_lost()
        return [*told, ("losses", _loss_rows(lost))] if lost else told

    def _numbered(self, kernels: Strings) -> Ints:
        numbers = [self._number(text) for text in kernels.values]
        # the last one is for null, whose code is -1
        return np.array([*numbers, UNNAMED], np.int64)[kernels.codes]

    def _number(self, text: str) -> int:
        """Names beyond the most are summed up together, as those that never came are."""
        if len(self._numbers) >= MOST_NAMES:
            return self._numbers.get(text, UNNAMED)
        return self._numbers.setdefault(text, len(self._numbers))


def _windows() -> SummaryWindows | None:
    try:
        from stepscope.processor.compress.windows import SummaryWindows
    except MissingNativeError as error:
        logger.warning("%s", error)
        return None
    return SummaryWindows()


def _loss_rows(lost: list[Lost]) -> Rows:
    """Executions that no summary counts; the table they are missing in is that of summaries."""
    columns = [(one.rank, "kernel_summaries", one.start_ns, one.end_ns, one.events) for one in lost]
    return {
        name: list(column) for name, column in zip(_LOSSES, zip(*columns, strict=True), strict=True)
    }

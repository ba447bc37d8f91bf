"""Summarises the kernels of a job's ranks on this host into `kernel_summaries`, per window.

Pure: rows go in and rows come out. Each rank numbers kernel names in its own way, and again after a
restart; here all share one numbering. Memory is bounded by `MOST_NAMES` and by what
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
"""Kernel names of one job on this host. A JIT compiler generates hundreds; windows have room for
half as many."""
UNNAMED = -1
_LOSSES = ("rank", "table", "start_ns", "end_ns", "rows")
NewRows = list[tuple[str, Rows]]
"""Table names with the rows to append."""


class KernelSums:
    """The kernel summaries of one job."""

    def __init__(self) -> None:
        self._windows = _windows()
        self._numbers: dict[str, int] = {}

    def add(self, rank: int, rows: Rows, now_ns: int, oldest_ns: int, parts: int = 1) -> NewRows:
        """Takes rows of `kernels`; returns the rows of windows that are over.

        Args:
            now_ns: when the last of the kernels arrived.
            oldest_ns: since when kernels of any rank have been waiting to be added.
            parts: one in how many parts of the time these were recorded; each stands for as many.
        """
        if self._windows is None:
            return []
        new_rows = self.tick(oldest_ns)
        ends = rows["start_ns"] + rows["duration_ns"]
        numbers = self._numbered(rows["kernel"])
        self._windows.count(rank, numbers, rows["stream"], rows["duration_ns"], ends, now_ns, parts)
        return new_rows

    def tick(self, now_ns: int) -> NewRows:
        """Returns the rows of windows that are over by now, and of what no window counts."""
        done = [] if self._windows is None else self._windows.tick(now_ns)
        return self._new_rows(done) if done else []

    def finish(self) -> NewRows:
        """Returns all rows: the ranks have left."""
        return [] if self._windows is None else self._new_rows(self._windows.finish())

    def _new_rows(self, done: list[Finished]) -> NewRows:
        assert self._windows is not None
        names = [*self._numbers, None]  # the last one is for UNNAMED
        new_rows: NewRows = [
            ("kernel_summaries", one.rows(lambda _, number: names[number]))
            for one in done
            if len(one.modes)
        ]
        lost = self._windows.take_lost()
        return [*new_rows, ("losses", _loss_rows(lost))] if lost else new_rows

    def _numbered(self, kernels: Strings) -> Ints:
        numbers = [self._number(text) for text in kernels.values]
        # the last one is for null, whose code is -1
        return np.array([*numbers, UNNAMED], np.int64)[kernels.codes]

    def _number(self, text: str) -> int:
        """Kernels beyond `MOST_NAMES` are summarised together with unnamed ones."""
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
    """Kernel executions that no summary counts, as losses of table `kernel_summaries`."""
    columns = [(one.rank, "kernel_summaries", one.start_ns, one.end_ns, one.events) for one in lost]
    return {
        name: list(column) for name, column in zip(_LOSSES, zip(*columns, strict=True), strict=True)
    }

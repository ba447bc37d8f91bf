"""Native producers (`cupti`, `nccl`) and the steps that their records belong to.

A native producer knows the time and little else. The Python producer of the same process knows its
rank, if the script sets it (`init_process_group(rank=…)`), and how many steps it has taken. The
Python producer's clock is used for both, so that rows of one process share one clock.

Cost: a binary search per record.
"""

from __future__ import annotations

import numpy as np

from stepscope.processor.records.normalise import Records
from stepscope.window import Ints
from stepscope.wire.frames import PYTHON, Hello
from stepscope.wire.records import UNKNOWN_ORDINAL, RecordKind

CUPTI, NCCL = "cupti", "nccl"
"""The `source` of native producers' hello."""
MOST_STEPS = 4096
"""So many ends of optimizer steps are remembered, up to twice as many until the next cut: native
rows are at most seconds late, and no process takes a thousand steps a second."""

_TIME_FIELD = {RecordKind.KERNEL: 2, RecordKind.TRANSFER: 2}
"""The field with the time that decides a record's step; operators are joined first."""


def is_native(hello: Hello) -> bool:
    return hello.source != PYTHON


def process_of(hello: Hello) -> tuple[str, str, int]:
    """The key that all producers of one process share."""
    return hello.job, hello.host, hello.pid


class StepEnds:
    """The times at which a process finished its recent optimizer steps.

    They fill one block of memory that is taken at the start: one Python integer a step, kept among
    all that is made and freed in a step, made the processor's memory grow for `MOST_STEPS` steps.
    """

    def __init__(self) -> None:
        self._ends_ns = np.full(2 * MOST_STEPS, 0, np.int64)
        self._count = 0
        self._first_ordinal = 0

    def add(self, end_ns: int, ordinal: int) -> None:
        """An optimizer step ended; `ordinal` counts those before it."""
        if not self._count or ordinal != self._first_ordinal + self._count:
            self._count, self._first_ordinal = 0, ordinal
        elif self._count == len(self._ends_ns):
            self._forget_older()
        self._ends_ns[self._count] = end_ns
        self._count += 1

    def _forget_older(self) -> None:
        self._ends_ns[:MOST_STEPS] = self._ends_ns[MOST_STEPS:]
        self._count -= MOST_STEPS
        self._first_ordinal += MOST_STEPS

    def ordinals(self, times_ns: Ints) -> Ints:
        """How many steps were finished at each time; times before the oldest remembered step
        belong to that step."""
        ends = self._ends_ns[: self._count]
        return self._first_ordinal + np.searchsorted(ends, times_ns, side="right")


def with_ordinals(records: Records, ends: StepEnds) -> Records:
    """Fills in the unknown ordinals of records by their times."""
    out: Records = records.copy()
    for kind, column in _TIME_FIELD.items():
        wanted = (out["kind"] == int(kind)) & (out["ordinal"] == UNKNOWN_ORDINAL)
        out["ordinal"][wanted] = ends.ordinals(out["field"][wanted, column])
    return out

"""Native producers (`cupti`, `nccl`): they stand beside the Python one of their process.

They know the time, and little else: which rank their process is, if the script says so itself
(`init_process_group(rank=…)`), and how many steps it has taken, is known to the Python producer of
the same process. Its clock counts for both, so that rows of one process lie on one time.

Cost: a binary search per record.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from stepscope.processor.records.normalise import Records
from stepscope.window import Ints
from stepscope.wire.frames import PYTHON, Hello
from stepscope.wire.records import UNKNOWN_ORDINAL, RecordKind

CUPTI, NCCL = "cupti", "nccl"
"""As native producers introduce themselves."""
MOST_STEPS = 4096
"""Ends of optimizer steps that are remembered: native rows are seconds late at the most, and no
process takes a thousand steps in a second."""

_TIME_FIELD = {RecordKind.KERNEL: 2, RecordKind.TRANSFER: 2}
"""Where the time of a record stands that counts for its step; operators are joined first."""


def is_native(hello: Hello) -> bool:
    return hello.source != PYTHON


def process_of(hello: Hello) -> tuple[str, str, int]:
    """What producers of one process have in common."""
    return hello.job, hello.host, hello.pid


class StepEnds:
    """When a process finished its last optimizer steps."""

    def __init__(self) -> None:
        self._ends_ns: deque[int] = deque(maxlen=MOST_STEPS)
        self._first_ordinal = 0

    def add(self, end_ns: int, ordinal: int) -> None:
        """An optimizer step ended; `ordinal` counts those before it."""
        if not self._ends_ns or ordinal != self._first_ordinal + len(self._ends_ns):
            self._ends_ns.clear()
            self._first_ordinal = ordinal
        elif len(self._ends_ns) == MOST_STEPS:
            self._first_ordinal += 1
        self._ends_ns.append(end_ns)

    def ordinals(self, times_ns: Ints) -> Ints:
        """How many steps were finished at each time; what came before all that is remembered
        belongs to the first of it."""
        ends = np.array(self._ends_ns, np.int64)
        return self._first_ordinal + np.searchsorted(ends, times_ns, side="right")


def with_ordinals(records: Records, ends: StepEnds) -> Records:
    """The records, each of whose ordinal was unknown with that of its time."""
    out: Records = records.copy()
    for kind, column in _TIME_FIELD.items():
        mine = (out["kind"] == int(kind)) & (out["ordinal"] == UNKNOWN_ORDINAL)
        out["ordinal"][mine] = ends.ordinals(out["field"][mine, column])
    return out

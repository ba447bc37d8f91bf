"""Converts one rank's rows of a simulated job into the wire records its hooks would have sent.

The wire format of this release cannot carry everything. These are lost: when the host issued an
operator (the wire has one start time per operator, and it gets the device's), operators that had
not started, receives that the device got before its rank called them, and the column `match`. A
phase that is all communication, and for which the tables do not say how long it waited, counts as
waiting from start to end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.processor.records.normalise import RECORD_TYPE, Records
from stepscope.trace import DATA_LOAD
from stepscope.window import NULL, Ints, Mask, Table
from stepscope.wire.records import COMM_DONE, COMM_OPEN, UNKNOWN, EventKind, RecordKind

TABLES = ("steps", "phases", "comm_ops", "pauses", "kernels")
"""The tables that a training process sends itself."""
LOADER, OPTIMIZER = "DataLoader", "optimizer"
_BEFORE_ALL = -1

Made = tuple[Ints, Records]
"""When each record was made, and the records."""


class RankRecords:
    """Makes the records of one rank. `offset_ns` is its wall clock minus its monotonic clock."""

    def __init__(self, offset_ns: int) -> None:
        self.names: dict[str, int] = {}
        """The id of every string that the records refer to."""
        self._offset_ns = offset_ns

    def of(self, tables: Mapping[str, Table]) -> Made:
        """All records of this rank's rows, in the order in which they were made."""
        nothing = np.zeros(0, np.int64), np.zeros(0, RECORD_TYPE)
        made = [nothing, *self._events(tables.get("steps"), tables.get("phases"))]
        makers = {"phases": self._phases, "comm_ops": self._operators, "pauses": self._pauses,
                  "kernels": self._kernels}  # fmt: skip
        made += [make(tables[name]) for name, make in makers.items() if name in tables]
        moments = np.concatenate([moment for moment, _ in made])
        order = np.argsort(moments, kind="stable")
        return moments[order], np.concatenate([records for _, records in made])[order]

    def name(self, text: str) -> int:
        """The id of a string."""
        return self.names.setdefault(text, len(self.names))

    def _phases(self, table: Table) -> Made:
        start, lasted = table.ints("start_ns"), table.ints("duration_ns")
        wait = table.ints("wait_ns") if table.has("wait_ns") else np.zeros_like(lasted)
        waits = table.mask("waits") if table.has("waits") else wait > 0
        wait = np.where(wait == NULL, np.where(waits, lasted, 0), wait)
        fields = (self._ids(table, "phase"), start - self._offset_ns, lasted, wait,
                  np.full_like(lasted, UNKNOWN), table.ints("microbatch"))  # fmt: skip
        return start + lasted, _made(RecordKind.PHASE, 0, table.ints("step"), *fields)

    def _operators(self, table: Table) -> Made:
        table = table.take((table.ints("start_ns") != NULL) & ~_ahead(table))
        start, end = table.ints("start_ns"), table.ints("end_ns")
        running = end == NULL
        peer = table.ints("peer") & 0xFFFFFFFF
        fields = (
            self._ids(table, "group"), (self._ids(table, "op") << 32) | peer, table.ints("seq"),
            _known(table, "bytes"), start - self._offset_ns,
            np.where(running, UNKNOWN, end - self._offset_ns),
            np.where(running, UNKNOWN, _known(table, "blocked_ns")),
        )  # fmt: skip
        flags = np.where(running, COMM_OPEN, COMM_DONE)
        made = _made(RecordKind.COMM, flags, table.ints("step"), *fields)
        return np.where(running, start, end), made

    def _pauses(self, table: Table) -> Made:
        start, lasted = table.ints("start_ns"), table.ints("duration_ns")
        fields = (self._ids(table, "kind"), start - self._offset_ns, lasted)
        return start + lasted, _made(RecordKind.PAUSE, 0, table.ints("step"), *fields)

    def _kernels(self, table: Table) -> Made:
        start, lasted = table.ints("start_ns"), table.ints("duration_ns")
        launched = _known(table, "enqueue_ns")
        launched = np.where(launched == UNKNOWN, UNKNOWN, launched - self._offset_ns)
        fields = (self._ids(table, "kernel"), table.ints("stream"), start - self._offset_ns,
                  lasted, launched)  # fmt: skip
        made = _made(RecordKind.KERNEL, 0, table.ints("step"), *fields)
        return start + lasted, made

    def _events(self, steps: Table | None, phases: Table | None) -> list[Made]:
        """The events from which steps are found: a step begins when a batch is loaded and ends with
        an optimizer step. A step that never ended has only the batch."""
        step, start, end = (np.zeros(0, np.int64),) * 3
        if steps is not None:
            step, start = steps.ints("step"), steps.ints("start_ns")
            end = start + steps.ints("duration_ns")
        begun, since = _begun(phases, int(step.max(initial=_BEFORE_ALL)))
        loads, load_steps = np.append(start, since), np.append(step, begun)
        return [(end, self._event(EventKind.OPTIMIZER, OPTIMIZER, step, end)),
                (loads, self._event(EventKind.LOAD, LOADER, load_steps, loads))]  # fmt: skip

    def _event(self, kind: EventKind, name: str, step: Ints, moment: Ints) -> Records:
        at = moment - self._offset_ns
        return _made(RecordKind.EVENT, int(kind), step, np.full_like(step, self.name(name)), at, at)

    def _ids(self, table: Table, column: str) -> Ints:
        words = table.strings(column)
        used = np.unique(words.codes)
        ids = np.array([self.name(words.values[code]) for code in used.tolist()], np.int64)
        found: Ints = ids[np.searchsorted(used, words.codes)]
        return found


def by_rank(table: Table | None) -> Mapping[int, Table]:
    """The rows of every rank that has any."""
    return {} if table is None else dict(table.per_rank())


def _begun(phases: Table | None, last: int) -> tuple[Ints, Ints]:
    """The steps after the last finished one whose batch was loaded, and when it was."""
    if phases is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = phases.strings("phase").equals(DATA_LOAD) & (phases.ints("step") > last)
    return phases.ints("step")[rows], phases.ints("start_ns")[rows]


def _ahead(table: Table) -> Mask:
    """Outstanding receives that the device got before the rank called them. A hook sees a receive
    when it is called, and counts it as outstanding until the rank may go on."""
    if not table.has("blocked_ns"):
        return np.zeros(len(table), np.bool_)
    waits = (table.ints("end_ns") == NULL) & table.strings("op").equals("Recv")
    ahead: Mask = waits & (table.ints("blocked_ns") != NULL)
    return ahead


def _known(table: Table, column: str) -> Ints:
    if not table.has(column):
        return np.full(len(table), UNKNOWN)
    values = table.ints(column)
    return np.where(values == NULL, UNKNOWN, values)


def _made(kind: RecordKind, flags: int | Ints, step: Ints, *fields: Ints) -> Records:
    made = np.zeros(len(step), RECORD_TYPE)
    made["kind"], made["flags"], made["ordinal"] = int(kind), flags, step
    for at, values in enumerate(fields):
        made["field"][:, at] = values
    return made

"""Turns the records of one producer into rows of the job folder's tables, a packet at a time.

Times become wall-clock nanoseconds, name ids become strings, the ordinal becomes the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import NULL, Ints, Strings
from stepscope.wire.records import COMM_OPEN, ON_DEVICE, UNKNOWN, RecordKind

RECORD_TYPE = np.dtype(
    [("kind", "<u2"), ("flags", "<u2"), ("ordinal", "<u4"), ("field", "<i8", (7,))]
)
assert RECORD_TYPE.itemsize == 64

Rows = Mapping[str, Any]
"""Column name to a list or array; all of the same length."""
Records = NDArray[Any]


@dataclass(frozen=True)
class Translation:
    """Translates a producer's numbers into the job's: its rank, clock, names and steps."""

    rank: int
    offset_ns: int
    names: Mapping[int, str]
    step_of: Callable[[int], int]

    def strings(self, ids: NDArray[np.int64]) -> list[str | None]:
        return [self.names.get(id) for id in ids.tolist()]

    def words(self, ids: Ints) -> Strings:
        """Like `strings`, as dictionary codes: for many ids with few distinct values."""
        used, codes = _distinct(ids)
        texts = [self.names.get(id) for id in used.tolist()]
        known: dict[str | None, int] = {None: -1}
        for text in texts:
            known.setdefault(text, len(known) - 1)
        of_used = np.array([known[text] for text in texts], np.int32)
        return Strings(of_used[codes], tuple(text for text in known if text is not None))

    def wall(self, mono_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return mono_ns + self.offset_ns

    def steps(self, ordinals: NDArray[Any]) -> list[int]:
        """The step of each ordinal; a packet has few distinct ones."""
        every: list[int] = ordinals.tolist()
        step = {ordinal: self.step_of(ordinal) for ordinal in set(every)}
        return [step[ordinal] for ordinal in every]

    def steps_of_many(self, ordinals: NDArray[Any]) -> Ints:
        """Like `steps`, for thousands of ordinals in long runs of equal ones."""
        firsts = np.flatnonzero(np.diff(ordinals, prepend=~ordinals[:1]))
        steps = np.array([self.step_of(ordinal) for ordinal in ordinals[firsts].tolist()], np.int64)
        return np.repeat(steps, np.diff(firsts, append=len(ordinals)))


_STATES = ("done", "started")
"""States of a finished and of an outstanding operator."""
_SMALL = 1 << 16
"""Name ids count from 0; a trainer has hundreds."""


def _distinct(ids: Ints) -> tuple[Ints, Ints]:
    """The distinct ids in order, and the index of each id among them. Small ids are not sorted,
    which takes a tenth of the time."""
    if not ids.size or ids.min() < 0 or ids.max() >= _SMALL:
        used, codes = np.unique(ids, return_inverse=True)
        return used, codes
    there = np.zeros(int(ids.max()) + 1, np.bool_)
    there[ids] = True
    place = np.cumsum(there) - 1
    return np.flatnonzero(there), place[ids]


def parse(payload: memoryview) -> Records:
    """A RECORDS payload as a structured array; sizes were checked by `wire.frames.unpack`."""
    return np.frombuffer(payload, dtype=RECORD_TYPE)


def of_kind(records: Records, kind: RecordKind) -> Records:
    chosen: Records = records[records["kind"] == int(kind)]
    return chosen


def phases(records: Records, to: Translation) -> Rows:
    """Rows of `phases`."""
    field = records["field"]
    wait = field[:, 3]
    rows: dict[str, Any] = {
        "rank": np.full(len(records), to.rank, np.int32),
        "step": to.steps(records["ordinal"]),
        "phase": to.strings(field[:, 0]),
        "microbatch": field[:, 5].astype(np.int32),
        "start_ns": to.wall(field[:, 1]),
        "duration_ns": field[:, 2],
        "waits": wait != 0,
        "wait_ns": _known(wait),
        "cpu_ns": _nullable(field[:, 4]),
    }
    on_device = records["flags"] == ON_DEVICE
    if on_device.any():
        host = to.wall(field[:, 6]).tolist()
        rows["host_start_ns"] = [at if on else None for at, on in zip(host, on_device, strict=True)]
    return rows


def _known(values: Ints) -> Any:
    """The values, with None for UNKNOWN."""
    if (values != UNKNOWN).all():
        return values
    return [None if value == UNKNOWN else value for value in values.tolist()]


def _nullable(values: Ints) -> Ints:
    """The values, with NULL for UNKNOWN."""
    return np.where(values == UNKNOWN, NULL, values)


def pauses(records: Records, to: Translation) -> Rows:
    """Rows of `pauses`."""
    field = records["field"]
    return {
        "rank": np.full(len(records), to.rank, np.int32),
        "step": to.steps(records["ordinal"]),
        "kind": to.strings(field[:, 0]),
        "start_ns": to.wall(field[:, 1]),
        "duration_ns": field[:, 2],
    }


def comm_ops(records: Records, to: Translation) -> Rows:
    """Rows of `comm_ops`. gloo runs an operator when it is called, so it starts when enqueued."""
    field = records["field"]
    is_open = records["flags"] == COMM_OPEN
    blocks = is_open | (field[:, 5] != UNKNOWN)
    enqueue = to.wall(field[:, 4])
    peers = (field[:, 1] & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)
    return {
        "rank": np.full(len(records), to.rank, np.int32),
        "step": to.steps(records["ordinal"]),
        "group": to.strings(field[:, 0]),
        "seq": field[:, 2],
        "op": to.strings(field[:, 1] >> 32),
        "peer": peers,
        "bytes": _nullable(field[:, 3]),
        "enqueue_ns": enqueue,
        "start_ns": np.where(blocks, enqueue, NULL),
        "end_ns": np.where(field[:, 5] == UNKNOWN, NULL, to.wall(field[:, 5])),
        "state": Strings(is_open.astype(np.int32), _STATES),
        "blocked_ns": _nullable(field[:, 6]),
    }


def kernels(records: Records, to: Translation) -> Rows:
    """Rows of `kernels`."""
    field = records["field"]
    enqueue = field[:, 4]
    return {
        "rank": np.full(len(records), to.rank, np.int32),
        "step": to.steps_of_many(records["ordinal"]),
        "kernel": to.words(field[:, 0]),
        "stream": field[:, 1].copy(),
        "start_ns": to.wall(field[:, 2]),
        "duration_ns": field[:, 3].copy(),
        "enqueue_ns": np.where(enqueue == UNKNOWN, NULL, to.wall(enqueue)),
    }


def counts(records: Records, to: Translation, host: str) -> Rows:
    """Rows of `hardware` from counters inside the training process."""
    field = records["field"]
    return {
        "rank": np.full(len(records), to.rank, np.int32),
        "host": [host] * len(records),
        "metric": to.strings(field[:, 0]),
        "ts_ns": to.wall(field[:, 2]),
        "value": field[:, 1].astype(np.float64),
    }

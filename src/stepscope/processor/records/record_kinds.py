"""Finds the kinds of records in a packet in one pass, in C++ if it was compiled.

Without this, half of the cost of a packet was finding out what it does not contain."""

from __future__ import annotations

import numpy as np

from stepscope.errors import WireError
from stepscope.processor.records import normalise
from stepscope.wire.frames import HEADER, MAX_TIME_NS
from stepscope.wire.records import RecordKind

try:
    from stepscope._native import record_kinds as _compiled
except ImportError:  # installed where nothing could be compiled
    _compiled = None  # type: ignore[assignment]

Kinds = int
"""Bit `k` is set if there is a record of kind `k`; the last bit stands for unknown kinds."""
_LAST_KIND = 62
_BEYOND = -1

EVENTS, PHASES, COMMS, PAUSES, COUNTS, KERNELS, TRANSFERS = (1 << int(kind) for kind in RecordKind)


def kinds_in(packet: bytes) -> Kinds:
    """The kinds of the records of a RECORDS packet, whose sizes were checked by `unpack`.

    Raises:
        WireError: a number is too large for any clock or counter, or for a table.
    """
    look = kinds_slowly if _compiled is None else _compiled
    kinds = look(packet, HEADER.size, MAX_TIME_NS)
    if kinds == _BEYOND:
        raise WireError(f"a record holds a number beyond {MAX_TIME_NS}")
    return kinds


def kinds_slowly(packet: bytes, offset: int, limit: int) -> Kinds:
    """`_native.record_kinds` in numpy; takes ten times as long."""
    records = normalise.parse(memoryview(packet)[offset:])
    field = records["field"]
    if len(records) and (field.max() > limit or field.min() < -limit):
        return _BEYOND
    kinds = np.minimum(records["kind"], _LAST_KIND)
    return sum(1 << kind for kind in set(kinds.tolist()))

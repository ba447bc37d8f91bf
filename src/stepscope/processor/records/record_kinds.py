"""What a packet of records holds, told before any of them is looked at: in one pass, in C++ where
that was compiled. Half of what a packet cost was finding out what is not in it."""

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
"""Bit `k` is set where there is a record of kind `k`; the last one where one is of none of ours."""
_LAST_KIND = 62
_BEYOND = -1

EVENTS, PHASES, COMMS, PAUSES, COUNTS, KERNELS, TRANSFERS = (1 << int(kind) for kind in RecordKind)


def kinds_in(packet: bytes) -> Kinds:
    """The kinds of the records of a RECORDS packet, whose sizes were checked by `unpack`.

    Raises:
        WireError: there are numbers that no clock or counter gives and no table could hold.
    """
    look = kinds_slowly if _compiled is None else _compiled
    kinds = look(packet, HEADER.size, MAX_TIME_NS)
    if kinds == _BEYOND:
        raise WireError(f"a record holds a number beyond {MAX_TIME_NS}")
    return kinds


def kinds_slowly(packet: bytes, offset: int, limit: int) -> Kinds:
    """`_native.record_kinds` by numpy: ten times its time."""
    records = normalise.parse(memoryview(packet)[offset:])
    field = records["field"]
    if len(records) and (field.max() > limit or field.min() < -limit):
        return _BEYOND
    kinds = np.minimum(records["kind"], _LAST_KIND)
    return sum(1 << kind for kind in set(kinds.tolist()))

"""One event of a trace as decoded from JSON: what any PyTorch since 1.12 may write of use to us.

Numbers may come as strings and anything may be missing. What is of another kind altogether makes
its event unreadable, and only that.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec
import numpy as np

from stepscope.window import Floats

Number = int | float | str | None
Time = TypeVar("Time")
NOTHING = msgspec.Raw(b"null")


class Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "python_id": "Python id",
        "python_parent": "Python parent id",
        "collective": "Collective name",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "group_size": "Group size",
        "group_name": "Process Group Name",
        "group_words": "Process Group Description",
        "group_ranks": "Process Group Ranks",
        "group_first": "Global rank start",
        "group_stride": "Global rank stride",
        "sequence": "Seq",
        "source": "Src Rank",
        "target": "Dst Rank",
        "shapes": "Input Dims",
        "types": "Input type",
        "values": "Concrete Inputs",
    },
):
    """The `args` of an event."""

    external: Number = None
    correlation: Number = None
    stream: Number = None
    python_id: Number = None
    python_parent: Number = None
    collective: str | None = None
    elements_in: Number = None
    elements_out: Number = None
    dtype: str | None = None
    group_size: Number = None
    group_name: Number = None
    group_words: str | None = None
    group_ranks: str | None = None
    group_first: Number = None
    group_stride: Number = None
    sequence: Number = None
    source: Number = None
    target: Number = None
    shapes: msgspec.Raw = NOTHING
    types: msgspec.Raw = NOTHING
    values: msgspec.Raw = NOTHING


class Event(msgspec.Struct, Generic[Time], gc=False):
    """An event; `Time` is float, or Decimal where a float would lose nanoseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: Time | None = None
    dur: float | None = None
    tid: Number = None
    pid: Number = None
    args: Arguments | None = None


Batch = list[Event[float]] | list[Event[Decimal]]

_FAST = msgspec.json.Decoder(list[Event[float]])
_FLOATS_EXACT_BELOW = 2.0**43
"""Beyond it a float64 of microseconds no longer tells two nanoseconds apart."""
_WHOLE_EXACT_BELOW = 2.0**53

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no events."""

_NO_JSON = re.compile(rb"(?<=[:\s,\[])-?(?:nan(?:\(\w*\))?|inf(?:inity)?)(?=\s*[,}\]])", re.I)
"""How C++ and Python print numbers that are none."""


_START = attrgetter("ts")


@cache
def _exact() -> msgspec.json.Decoder[list[Event[Decimal]]]:
    """Made when needed: it takes as long as a megabyte of events."""
    return msgspec.json.Decoder(list[Event[Decimal]])


class Decoder:
    """Decodes arrays of events; turns to exact times for good where one needs it."""

    def __init__(self) -> None:
        self._exact = False

    def decode(self, data: bytes) -> Batch:
        """Events of a JSON array.

        Raises:
            UNREADABLE: it is no array of events.
        """
        if self._exact:
            return _exact().decode(data)
        batch = _FAST.decode(data)
        if lost_digits(np.array(list(map(_START, batch)), np.float64)):
            self._exact = True
            return _exact().decode(data)
        return batch


def lost_digits(times: Floats) -> bool:
    """Whether one of the times, in microseconds, was rounded by more than half a nanosecond."""
    large = np.abs(times[np.abs(times) >= _FLOATS_EXACT_BELOW])
    return bool(np.any((large != np.floor(large)) | (large >= _WHOLE_EXACT_BELOW)))


def mended(data: bytes) -> bytes:
    """The same without bytes that are no UTF-8 and numbers that are none."""
    return _NO_JSON.sub(b"null", data.decode("utf-8", "replace").encode())

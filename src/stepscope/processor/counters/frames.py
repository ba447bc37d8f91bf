"""Decodes the frames that a child sends through its pipe; `native/pm/pipe.hpp` draws the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_METRICS = 8
SAMPLE_TYPE = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("value", "<f8", (MOST_METRICS,))])
_HEAD = struct.Struct("<II")
_LOST = struct.Struct("<qqq")
_FAILURE, _METRICS, _SAMPLES, _LOSS, _NOTE = range(1, 6)


@dataclass(frozen=True)
class Failure:
    """The reason why nothing (more) is sampled."""

    why: str


@dataclass(frozen=True)
class Note:
    """Information, such as metrics that were left out."""

    text: str


@dataclass(frozen=True)
class Metrics:
    """The metrics of each sample's values, in order. Sent before all samples."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Samples:
    of: NDArray[Any]
    """Array of SAMPLE_TYPE; missing values are NaN."""


@dataclass(frozen=True)
class Lost:
    """The number of missing samples, and the interval they are missing in."""

    samples: int
    start_ns: int
    end_ns: int


Frame = Failure | Note | Metrics | Samples | Lost


class Frames:
    """Reassembles frames from pieces of the pipe."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Takes a piece; returns the frames that are now complete."""
        data, at = self._left + piece, 0
        while at + _HEAD.size <= len(data):
            kind, size = _HEAD.unpack_from(data, at)
            if at + _HEAD.size + size > len(data):
                break
            yield _frame(kind, data[at + _HEAD.size : at + _HEAD.size + size])
            at += _HEAD.size + size
        self._left = data[at:]


def _frame(kind: int, payload: bytes) -> Frame:
    if kind == _SAMPLES:
        return Samples(np.frombuffer(payload, SAMPLE_TYPE))
    if kind == _LOSS:
        return Lost(*_LOST.unpack(payload))
    text = payload.decode(errors="replace")
    if kind == _METRICS:
        return Metrics(tuple(text.split("\n")))
    return Failure(text) if kind == _FAILURE else Note(text)

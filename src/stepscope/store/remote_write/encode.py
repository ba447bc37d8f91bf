"""Encodes samples as the body of a Remote Write 1.0 request: protobuf in one snappy block.

    WriteRequest  1: repeated TimeSeries
    TimeSeries    1: repeated Label (sorted by name)   2: repeated Sample
    Label         1: string name                       2: string value
    Sample        1: double value                      2: int64 milliseconds since 1970

From `prompb/remote.proto` and `types.proto` of Prometheus. Only lengths, strings, doubles and
non-negative varints of protobuf are needed. Arrow provides snappy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

Labels = tuple[tuple[str, str], ...]
"""Pairs of name and value; the metric's name is not among them."""

STALE = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
"""Prometheus' staleness marker: a special NaN that ends a series."""

_LENGTH, _DOUBLE, _VARINT = 2, 1, 0
"""Wire types of protobuf."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series at one time."""

    name: str
    labels: Labels
    value: float
    time_ms: int


def request_body(samples: Iterable[Sample]) -> bytes:
    """The compressed body of a request."""
    return bytes(pa.compress(write_request(samples), codec="snappy", asbytes=True))


def write_request(samples: Iterable[Sample]) -> bytes:
    """A WriteRequest: the samples of a series are together, in the order given."""
    series: dict[tuple[str, Labels], list[Sample]] = {}
    for sample in samples:
        series.setdefault((sample.name, sample.labels), []).append(sample)
    return b"".join(
        _field(1, _labels(name, labels) + b"".join(_field(2, _sample(one)) for one in group))
        for (name, labels), group in series.items()
    )


def _labels(name: str, labels: Labels) -> bytes:
    pairs = sorted([("__name__", name), *labels])
    return b"".join(_field(1, _text(1, key) + _text(2, value)) for key, value in pairs if value)


def _sample(sample: Sample) -> bytes:
    value = _key(1, _DOUBLE) + struct.pack("<d", sample.value)
    return value + _key(2, _VARINT) + _varint(sample.time_ms)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, data: bytes) -> bytes:
    return _key(number, _LENGTH) + _varint(len(data)) + data


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the highest bit is set if more bytes follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

"""Durations of many groups to the modes of each, twice: out of histograms, and as published.

Groups are numbers from 0 on; what they stand for is the caller's. Durations are int64 nanoseconds;
0 counts as 1, negative ones and those of eleven days are impossible.

Histograms (`native/src/division.hpp`) are the default. What they lose: a percentile differs by less
than `trace.modes.LARGEST_ERROR` from that of the same durations, and not at all below 256 ns. What
both lose: fewer than five executions, or than 1 % of a group, make no mode of their own; how long
the longest took is kept with the mode that they fall to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.processor.compress import compiled
from stepscope.window import Ints

ROW = np.dtype([(n, "<i8") for n in ("group", "cluster", "count", "p50_ns", "p99_ns", "max_ns")])
"""One mode of one group; `cluster` counts a group's modes from the shortest."""
Modes = NDArray[Any]
"""Rows of `ROW`, by group and cluster."""
Groups = NDArray[np.uint32]
GROUP, NANOSECONDS = np.dtype("<u4"), np.dtype("<i8")

MOST_GROUPS = 1 << 14
"""Kernels and streams of a host's ranks: sixteen ranks with ten times the hundred that ARGUS
(section 5.2) counts with. 3 MB."""
MOST_BLOCKS = 1 << 16
"""Octaves in use, of all groups. Synthetic groups have 3 to 4 each; 32 MB."""
_BIN = np.dtype([("group", "<u4"), ("bin", "<u4"), ("count", "<u8")])


@dataclass(frozen=True)
class Refused:
    """Events that are in no histogram."""

    impossible: int = 0
    no_room: int = 0


class Histograms:
    """How often how long, by group. Pieces and merged histograms are as all at once."""

    def __init__(self, most_groups: int = MOST_GROUPS, most_blocks: int = MOST_BLOCKS) -> None:
        self._native = compiled.Histograms(most_groups, most_blocks)

    def add(self, groups: Groups, durations_ns: Ints) -> Refused:
        return self.add_packed(packed(groups, GROUP), packed(durations_ns, NANOSECONDS))

    def add_packed(self, groups: bytes, durations_ns: bytes) -> Refused:
        """The same of numbers as the native part takes them."""
        return Refused(*self._native.add(groups, durations_ns))

    def merge(self, other: Histograms, groups: Groups) -> Refused:
        """Adds another one, whose group i is `groups[i]` here."""
        bins = np.frombuffer(other._native.bins(), _BIN).copy()
        bins["group"] = groups[bins["group"]]
        return Refused(*self._native.put(bins.tobytes()))

    def modes(self) -> Modes:
        return np.frombuffer(self._native.modes(), ROW)

    @property
    def size_bytes(self) -> int:
        return self._native.size_bytes


def as_published(groups: Groups, durations_ns: Ints, number: int) -> tuple[Modes, Refused]:
    """Modes of the groups 0 to `number` - 1 as ARGUS finds them, and what could not be true."""
    data = packed(groups, GROUP), packed(durations_ns, NANOSECONDS)
    rows, impossible = compiled.published(*data, number)
    return np.frombuffer(rows, ROW), Refused(impossible)


def packed(numbers: NDArray[Any], kind: np.dtype[Any] = NANOSECONDS) -> bytes:
    """Numbers as the native part takes them."""
    return numbers.astype(kind, copy=False).tobytes()

"""Finds the modes of durations in many groups, in two ways: from histograms, and as published.

Groups are numbers from 0 on, with a meaning that the caller defines. Durations are int64
nanoseconds; 0 counts as 1, and negative ones or those of eleven days and more are impossible.

Histograms (`native/src/division.hpp`) are the default. Lossy: a percentile differs by less than
`trace.modes.LARGEST_ERROR` from the exact one, and not at all below 256 ns. Both ways lose modes of
fewer than five executions or less than 1 % of a group: these join another mode, which keeps the
longest duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.processor.compress import compiled
from stepscope.window import Ints

ROW = np.dtype([(n, "<i8") for n in ("group", "cluster", "count", "p50_ns", "p99_ns", "max_ns")])
"""One mode of one group; `cluster` numbers a group's modes from the shortest."""
Modes = NDArray[Any]
"""Rows of `ROW`, by group and cluster."""
Groups = NDArray[np.uint32]
GROUP, NANOSECONDS = np.dtype("<u4"), np.dtype("<i8")

MOST_GROUPS = 1 << 14
"""Pairs of kernel and stream of a host's ranks: sixteen ranks with ten times the hundred that ARGUS
(section 5.2) assumes. 3 MB."""
MOST_BLOCKS = 1 << 16
"""Octaves in use in all groups. Synthetic groups have 3 to 4 each; 32 MB."""


@dataclass(frozen=True)
class Refused:
    """The number of events that no histogram took."""

    impossible: int = 0
    no_room: int = 0


class Histograms:
    """Histograms of durations by group. Adding in pieces gives the same result."""

    def __init__(self, most_groups: int = MOST_GROUPS, most_blocks: int = MOST_BLOCKS) -> None:
        self._native = compiled.Histograms(most_groups, most_blocks)

    def add(self, groups: Groups, durations_ns: Ints) -> Refused:
        return self.add_packed(packed(groups, GROUP), packed(durations_ns, NANOSECONDS))

    def add_packed(self, groups: bytes, durations_ns: bytes) -> Refused:
        """Like `add`, for numbers in the native part's format."""
        return Refused(*self._native.add(groups, durations_ns))

    def modes(self) -> Modes:
        return np.frombuffer(self._native.modes(), ROW)

    @property
    def size_bytes(self) -> int:
        return self._native.size_bytes


def as_published(groups: Groups, durations_ns: Ints, number: int) -> tuple[Modes, Refused]:
    """Modes of groups 0 to `number` - 1 by ARGUS's algorithm, and the impossible durations."""
    data = packed(groups, GROUP), packed(durations_ns, NANOSECONDS)
    rows, impossible = compiled.published(*data, number)
    return np.frombuffer(rows, ROW), Refused(impossible)


def packed(numbers: NDArray[Any], kind: np.dtype[Any] = NANOSECONDS) -> bytes:
    """Numbers in the native part's format."""
    return numbers.astype(kind, copy=False).tobytes()

"""How fast data moved in each place and step, against what is usual for places like it.

The transfer of an operator is its shortest member's duration: that one came last and waited for
nobody (blame rule 2), and its duration is no matter of clocks. Transfers are compared per byte
with those of one name and about one size in equal places, so that a step with fewer operators, or
other sizes, is no faster step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.matching import Matched, match
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.places import COMPARED, Place, find_places
from stepscope.window import NULL, Floats, Ints, Mask

LEAST_BYTES = 1 << 20
"""Smaller operators take what a message takes, whatever the bandwidth: at 25 GB/s a megabyte needs
40 microseconds, the latency of a collective between hosts."""
SIZES_PER_OCTAVE = 2
"""Operators are of about one size within a factor of 1.4: per byte they take the same."""


@dataclass(frozen=True)
class Paces:
    """`[place, step]` of transfers. NaN where nothing was seen to move."""

    places: Sequence[Place]
    equals: Ints
    """The number of each place's class of equals."""
    taken_ns: Floats
    usual_ns: Floats
    """The same bytes at the median pace of the class."""

    @property
    def slowness(self) -> Floats:
        """Natural logarithm of how many times the usual it took."""
        ratio: Floats = np.log(self.taken_ns / self.usual_ns)
        return ratio


@dataclass(frozen=True)
class _Operators:
    """Matched operators that count, one entry each."""

    places: Sequence[Place]
    place: Ints
    column: Ints
    size_bytes: Ints
    kind: Ints
    """One number for each name and size class."""
    transfer_ns: Floats


def measure_paces(seen: Observed) -> Paces | None:
    """The paces of all places, or None where nothing tells them."""
    operators = _operators(seen)
    if operators is None:
        return None
    equals = _classes(operators.places)
    usual = operators.size_bytes * _pace(operators, equals)
    columns = len(seen.line.steps)
    shape = (len(operators.places), columns)
    cell = operators.place * columns + operators.column
    taken, expected = (
        stats.sums(cell, values, shape[0] * columns).reshape(shape)
        for values in (operators.transfer_ns, usual)
    )
    known = expected > 0
    return Paces(operators.places, equals, np.where(known, taken, np.nan),
                 np.where(known, expected, np.nan))  # fmt: skip


def _classes(places: Sequence[Place]) -> Ints:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(one.shape, len(numbers)) for one in places], np.int64)


def _pace(operators: _Operators, equals: Ints) -> Floats:
    """Nanoseconds per byte of each operator's class and kind, on the median."""
    pace = operators.transfer_ns / operators.size_bytes
    key = equals[operators.place] * (int(operators.kind.max()) + 1) + operators.kind
    order = np.lexsort((pace, key))
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    length = np.diff(np.append(begins, order.size))
    middle = pace[order][begins + length // 2]
    out = np.empty_like(pace)
    out[order] = np.repeat(middle, length)
    return out


def _operators(seen: Observed) -> _Operators | None:
    """Operators of which every member was seen in one step, and gave as much as the others."""
    comm = seen.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "end_ns", "bytes", "step", "peer"):
        return None
    matched = match(comm.take(comm.strings("op").equals(*COMPARED)))
    return _gathered(seen, matched) if matched.order.size else None


def _gathered(seen: Observed, matched: Matched) -> _Operators | None:
    table, begins = matched.table.take(matched.order), matched.bounds[:-1]
    start, end, size = (table.ints(name) for name in ("start_ns", "end_ns", "bytes"))
    column = seen.line.columns(table.ints("step"))
    known = (start != NULL) & (end != NULL) & (size >= LEAST_BYTES) & (column >= 0)
    lasted = np.where(known, end, 0) - np.where(known, start, 0)
    shortest = np.minimum.reduceat(lasted, begins)
    usable = np.logical_and.reduceat(known, begins) & (shortest > 0)
    usable &= _alike(size, begins) & _alike(column, begins)
    places, place = find_places(seen.window, table, begins)
    members = np.array([len(one.members) for one in places])
    usable &= members[place] == np.diff(matched.bounds)
    if not usable.any():
        return None
    sent = table.strings("op").equals("Send", "Recv")[begins]
    op = np.where(sent, 0, table.strings("op").codes[begins] + 1)[usable]
    size_bytes = size[begins][usable]
    octave = np.rint(np.log2(size_bytes) * SIZES_PER_OCTAVE).astype(np.int64)
    return _Operators(places, place[usable], column[begins][usable], size_bytes,
                      op * 200 + octave, shortest[usable].astype(np.float64))  # fmt: skip


def _alike(values: Ints, begins: Ints) -> Mask:
    alike: Mask = np.minimum.reduceat(values, begins) == np.maximum.reduceat(values, begins)
    return alike

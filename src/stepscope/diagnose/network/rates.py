"""How fast data moved in each place and step, against what is usual for places like it.

The transfer of an operator is its shortest member's duration: that one came last and waited for
nobody (blame rule 2), and its duration is no matter of clocks. Transfers are compared per byte
with those of one name and about one size in equal places, so that a step with fewer operators, or
other sizes, is no faster step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.edges import COMPARED, Ends, Place, find_places
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import match
from stepscope.window import NULL, Floats, Ints, Table

LEAST_BYTES = 1 << 20
"""Smaller operators take what a message takes, whatever the bandwidth: at 25 GB/s a megabyte needs
40 microseconds, the latency of a collective between hosts."""
SIZES_PER_OCTAVE = 2
"""Operators are of about one size within a factor of 1.4: per byte they take the same."""

PORTION = 1 << 20
"""Rows matched at once: sorting costs 1.2 microseconds a row then, and memory stays bounded."""
MOST_ROWS = 1 << 23
"""Of larger tables every k-th step is looked at: eight million rows take ten seconds."""
LEAST_SAMPLED = 40
"""But no fewer steps than this."""


@dataclass(frozen=True)
class Single:
    """One operator's transfer, an entry each."""

    place: Ints
    column: Ints
    ended_ns: Ints
    taken_ns: Floats
    usual_ns: Floats
    """The same bytes at the median pace of the class."""

    @property
    def slowness(self) -> Floats:
        """As of `Paces`."""
        return _slowness(self.taken_ns, self.usual_ns)


@dataclass(frozen=True)
class Rates:
    """`[place, step]` of transfers. NaN where nothing was seen to move."""

    places: Sequence[Place]
    equals: Ints
    """The number of each place's class of equals."""
    taken_ns: Floats
    usual_ns: Floats
    """The same bytes at the median pace of the class."""
    single: Single
    """All that they are sums of."""

    @property
    def slowness(self) -> Floats:
        """Natural logarithm of how many times the usual it took."""
        return _slowness(self.taken_ns, self.usual_ns)


def _slowness(taken_ns: Floats, usual_ns: Floats) -> Floats:
    return np.asarray(np.log(taken_ns / usual_ns))


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
    ended_ns: Ints


def measure_rates(job: Observed) -> Rates | None:
    """The paces of all places, or None where nothing tells them."""
    operators = _operators(job)
    if operators is None:
        return None
    equals = _classes(operators.places)
    usual = operators.size_bytes * _pace(operators, equals)
    columns = len(job.line.steps)
    shape = (len(operators.places), columns)
    cell = operators.place * columns + operators.column
    taken, expected = (
        stats.sums(cell, values, shape[0] * columns).reshape(shape)
        for values in (operators.transfer_ns, usual)
    )
    known = expected > 0
    single = Single(
        operators.place, operators.column, operators.ended_ns, operators.transfer_ns, usual
    )
    return Rates(operators.places, equals, np.where(known, taken, np.nan),
                 np.where(known, expected, np.nan), single)  # fmt: skip


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


def _operators(job: Observed) -> _Operators | None:
    """Operators of which every member was seen in one step, and gave as much as the others."""
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "end_ns", "bytes", "step", "peer"):
        return None
    compared = comm.strings("op").equals(*COMPARED)
    column = np.where(compared, job.line.columns(comm.ints("step")), -1)
    parts = [part for rows in _portions(column) if (part := _matched(job, comm.take(rows)))]
    if not parts:
        return None
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    joined = _Matched(*map(np.concatenate, columns))
    return _placed(job, comm.strings("group").values, joined)


def _portions(column: Ints) -> Iterator[Ints]:
    """Rows of a few steps at a time, so that sorting them stays cheap; of large jobs not of all."""
    steps = int(column.max(initial=-1)) + 1
    every = max(1, min(-(-column.size // MOST_ROWS), steps // LEAST_SAMPLED))
    known = np.flatnonzero((column >= 0) & (column % every == 0))
    at_once = max(1, PORTION * steps // max(column.size, 1)) * every
    portion = column[known] // at_once
    order = np.argsort(portion, kind="stable")
    yield from np.split(known[order], np.flatnonzero(np.diff(portion[order])) + 1)


@dataclass(frozen=True)
class _Matched:
    """One entry per operator."""

    group: Ints
    source: Ints
    target: Ints
    members: Ints
    column: Ints
    size_bytes: Ints
    op: Ints
    transfer_ns: Ints
    ended_ns: Ints


def _matched(job: Observed, comm: Table) -> _Matched | None:
    matched = match(comm)
    if not matched.order.size:
        return None
    table, begins = matched.table.take(matched.order), matched.bounds[:-1]
    start, end, size = (table.ints(name) for name in ("start_ns", "end_ns", "bytes"))
    column = job.line.columns(table.ints("step"))
    known = (start != NULL) & (end != NULL) & (size >= LEAST_BYTES)
    lasted = np.where(known, end, 0) - np.where(known, start, 0)
    shortest = np.minimum.reduceat(lasted, begins)
    usable = np.logical_and.reduceat(known, begins) & (shortest > 0)
    usable &= ~stats.varies(size, begins) & ~stats.varies(column, begins)
    at, op, ends = begins[usable], table.strings("op"), Ends.of(table, begins)
    return _Matched(
        ends.group[usable], ends.source[usable], ends.target[usable],
        np.diff(matched.bounds)[usable], column[at], size[at],
        np.where(op.equals("Send", "Recv"), 0, op.codes + 1)[at], shortest[usable],
        np.maximum.reduceat(end, begins)[usable],
    )  # fmt: skip


def _placed(job: Observed, names: Sequence[str], matched: _Matched) -> _Operators | None:
    """Those of which no member is missing."""
    ends = Ends(matched.group, matched.source, matched.target)
    places, place = find_places(job.window, names, ends)
    members = np.array([len(one.members) for one in places], np.int64)
    whole = members[place] == matched.members
    if not whole.any():
        return None
    octave = np.rint(np.log2(matched.size_bytes) * SIZES_PER_OCTAVE).astype(np.int64)
    kind = matched.op.astype(np.int64) * 2 * SIZES_PER_OCTAVE * 64 + octave
    return _Operators(places, place[whole], matched.column[whole], matched.size_bytes[whole],
                      kind[whole], matched.transfer_ns[whole].astype(np.float64),
                      matched.ended_ns[whole])  # fmt: skip

"""Transfer rates: how fast data moved in each place and step, relative to comparable places.

The transfer time of an operator is the shortest duration of its members: that member arrived last
and waited for no other (blame rule 2), and a duration does not depend on clock offsets. Transfers
are compared per byte, among operators of the same name and about the same size in equal places. So
a step with fewer operators, or with other sizes, does not count as faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.diagnose.network.edges import COMPARED, Ends, Place, Places
from stepscope.diagnose.network.unknown_sizes import UNKNOWN, by_position, with_sizes
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, Sent, match
from stepscope.diagnose.thresholds import LEAST_COST
from stepscope.window import (
    NULL,
    Floats,
    Ints,
    Mask,
    Table,
    distinct,
    gathered,
    ranges,
    runs,
    stable_order,
    taken,
)

LEAST_BYTES = 1 << 20
"""The time of smaller operators is latency, not bandwidth: at 25 GB/s a megabyte takes 40
microseconds, the latency of a collective between hosts. They count where all of a place together
take long enough to be worth a verdict, as those of tensors in inference. Our simulator."""
LEAST_NS = 1e6
"""What takes longer than this exceeds the latency of 40 microseconds by far: `LEAST_BYTES` where
sizes are unknown. Our choice."""
SIZES_PER_OCTAVE = 2
"""Operators within a factor of 1.4 in size take the same time per byte. Our simulator."""
INSTANT = 0.05
"""Part of the transfers of one kind that may take no time at all by their clock. Our choice."""

PORTION = 1 << 19
"""About so many rows are matched at a time, those of a step at least: memory stays bounded."""
MOST_ROWS = 1 << 23
"""Of larger tables only every k-th step is read: eight million rows take ten seconds."""
LEAST_SAMPLED = 40
"""At least this many steps are read."""

Small = NDArray[np.int32]
"""Numbers of which there are millions."""


class _Timed:
    """Times of transfers, and what is usual for as many bytes."""

    taken_ns: Floats
    usual_ns: Floats

    @property
    def slowness(self) -> Floats:
        """Natural logarithm of the transfer time relative to the usual one."""
        ratio = self.taken_ns / self.usual_ns
        return np.log(ratio, out=ratio)  # of millions of transfers


@dataclass(frozen=True)
class Single(_Timed):
    """Transfers of single operators, one entry each."""

    place: Small
    column: Small
    ended_ns: Ints
    taken_ns: Floats
    usual_ns: Floats
    """Time for the same bytes at the median rate of the class."""


@dataclass(frozen=True)
class Rates(_Timed):
    """Transfer times, `[place, step]`; NaN without transfers."""

    places: Sequence[Place]
    equals: Ints
    """The number of each place's class of equals."""
    alike: Ints
    """The number of the larger class of all that move data over the same kind of hop."""
    taken_ns: Floats
    usual_ns: Floats
    """Time for the same bytes at the median rate of the larger class."""
    single: Single
    """The transfers that these times are sums of."""


@dataclass(frozen=True)
class DeviceTransfers:
    """Matched operators that are compared, one entry each."""

    places: Sequence[Place]
    place: Small
    column: Small
    size_bytes: Ints
    kind: Small
    """One number for each name and size class."""
    transfer_ns: Floats
    ended_ns: Ints
    alone: Mask
    """Whether their kernels move nothing to or from other peers, and so end with them."""

    @property
    def unsized(self) -> Mask:
        """Operators whose bytes were not recorded."""
        return np.asarray(self.size_bytes == UNKNOWN)

    def only(self, kept: Mask | slice) -> DeviceTransfers:
        if isinstance(kept, np.ndarray) and kept.all():
            return self  # millions of rows
        return DeviceTransfers(self.places, *(getattr(self, name)[kept] for name in _COLUMNS))


_COLUMNS = tuple(one.name for one in fields(DeviceTransfers) if one.name != "places")


def measure_rates(job: Observed) -> Rates | None:
    """The transfer rates of all places, or None if the recording does not show them."""
    operators = device_transfers(job)
    if operators is None:
        return None
    alike = _numbers([one.alike for one in operators.places])
    usual = operators.size_bytes * _usual_ns_per_byte(operators, alike)
    columns = np.int64(len(job.line.steps))
    shape = (len(operators.places), int(columns))
    cell = operators.place * columns + operators.column
    taken, expected = (
        stats.sums(cell, values, shape[0] * shape[1]).reshape(shape)
        for values in (operators.transfer_ns, usual)
    )
    known = expected > 0
    single = Single(
        operators.place, operators.column, operators.ended_ns, operators.transfer_ns, usual
    )
    equals = _numbers([one.shape for one in operators.places])
    return Rates(operators.places, equals, alike, np.where(known, taken, np.nan),
                 np.where(known, expected, np.nan), single)  # fmt: skip


def _numbers(classes: Sequence[tuple[object, ...]]) -> Ints:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in classes], np.int64)


def _measurable(operators: DeviceTransfers) -> DeviceTransfers | None:
    """The operators that took time, of kinds that are long enough for the clock.

    Of transfers that are shorter than its ticks only the slow ones seem to take any time: then all
    of them seem as slow as ever. So do those that are over before a late receiver asks for them.
    """
    took = operators.transfer_ns > 0
    key = _key(operators, _numbers([one.alike for one in operators.places]))
    count = np.bincount(key)
    instant = np.bincount(key[~took], minlength=count.size)
    kept = took & (instant <= INSTANT * count)[key]
    return operators.only(kept) if kept.any() else None


def _key(operators: DeviceTransfers, alike: Ints) -> Ints:
    """A number for each class of places and kind of operator."""
    return alike[operators.place] * (int(operators.kind.max(initial=0)) + 1) + operators.kind


def _usual_ns_per_byte(operators: DeviceTransfers, alike: Ints) -> Floats:
    """Median nanoseconds per byte of each operator's class and kind."""
    key = _key(operators, alike)
    count = np.bincount(key)
    there = np.flatnonzero(count)
    ns_per_byte = (operators.transfer_ns / operators.size_bytes)[stable_order(key)]
    usual = np.full(count.size, np.nan)
    usual[there] = [*map(_middle, np.split(ns_per_byte, np.cumsum(count[there])[:-1]))]
    return usual[key]


def _middle(values: Floats) -> float:
    values.partition(values.size // 2)
    return float(values[values.size // 2])


@once
def device_transfers(job: Observed) -> DeviceTransfers | None:
    """Operators whose members were all recorded, in the same step and with the same size, and
    which show how long data moves.

    Small ones are left out where they take less time than could cost anything.
    """
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "end_ns", "step", "peer"):
        return None
    comm = with_sizes(comm)
    pairing = _Pairing(Places(job.window, comm.strings("group").values))
    column = _columns(job, comm)
    parts = (_sized(part) for rows in _portions(column)
             for part in _matched(pairing, comm.take(rows), gathered(column, rows)))  # fmt: skip
    room = int(np.count_nonzero(column >= 0)) // 2 + 1  # mostly an operator has two rows or more
    moved = _joined(pairing.places.known, parts, room)
    return None if moved is None else _measurable(_long_enough(job, moved))


def _columns(job: Observed, comm: Table) -> Small:
    """The column of each row's step; -1 for rows that are not compared."""
    columns = np.empty(len(comm), np.int32)
    for at, part in comm.parts():
        compared = part.strings("op").equals(*COMPARED)
        columns[at] = np.where(compared, job.line.columns(part.ints("step")), -1)
    return columns


def _sized(moved: DeviceTransfers) -> DeviceTransfers:
    """Those of unknown size as kinds of their own."""
    kind = by_position(moved.kind, moved.unsized, moved.place, moved.column, moved.ended_ns)
    return replace(moved, kind=kind.astype(np.int32, copy=False))


def _long_enough(job: Observed, moved: DeviceTransfers) -> DeviceTransfers:
    """Without the small operators of places where these take less than could cost anything."""
    small = _is_small(moved)
    took = stats.sums(
        moved.place[small].astype(np.int64), moved.transfer_ns[small], len(moved.places)
    )
    steps = np.flatnonzero(np.bincount(moved.column))
    least = LEAST_COST * float(np.nansum(job.line.job_period_ns[steps]))
    kept = ~small | (took >= least)[moved.place]
    if kept.all():
        return moved
    rows = np.flatnonzero(kept)
    for name in _COLUMNS:
        column = getattr(moved, name)
        column[: rows.size] = gathered(column, rows)  # a copy of all of them would be large
    return moved.only(slice(rows.size))


def _is_small(moved: DeviceTransfers) -> Mask:
    """Those of few bytes, and of unknown size those whose kind mostly takes as little time."""
    small = moved.size_bytes < LEAST_BYTES
    if moved.unsized.any():
        brief = np.zeros(int(moved.kind.max()) + 1, np.bool_)
        for kind in np.unique(moved.kind[moved.unsized]).tolist():
            brief[kind] = np.median(moved.transfer_ns[moved.kind == kind]) < LEAST_NS
        small &= ~moved.unsized | brief[moved.kind]
    return small


def _portions(column: Small) -> Iterator[Ints]:
    """The rows of a few steps at a time, to keep sorting cheap; large jobs are subsampled."""
    steps = int(column.max(initial=-1)) + 1
    every = max(1, min(-(-column.size // MOST_ROWS), steps // LEAST_SAMPLED))
    at_once = max(1, PORTION * steps // max(column.size, 1)) * every
    begins, lengths = runs(column)
    of = column[begins]
    for first in range(0, steps, at_once):
        some = np.flatnonzero((of >= first) & (of < first + at_once) & (of % every == 0))
        if some.size:
            yield ranges(begins[some], lengths[some])


_MATCHED = ("group", "op", "rank", "start_ns", "end_ns", "bytes")
"""What is looked at of matched operators."""


class _Pairing:
    """Finds the receives and the places of sends: mostly they are the same in each step."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._ends: list[NDArray[Any]] = []
        self._size: Ints = np.zeros(0, np.int64)
        self._kind: Small = np.zeros(0, np.int32)

    def of(self, comm: Table) -> tuple[Sent, Small]:
        """The sends and receives of a portion, and the place of each pair; -1 if unknown."""
        ends: list[NDArray[Any]] = [comm.strings("op").codes, comm.strings("group").codes,
                                    comm.numbers("rank"), comm.numbers("peer")]  # fmt: skip
        if not self._ends or not self._holds_for(ends, comm.ints("seq")):
            self._ends, self._sent = ends, Sent.of(comm)
            self._place = self._places_of(comm, self._sent)
        return self._sent, self._place

    def kind_of(self, size: Ints) -> Small:
        """The size class of each pair."""
        if not np.array_equal(size, self._size):
            self._size, self._kind = size, _octave(size)
        return self._kind

    def _holds_for(self, ends: list[NDArray[Any]], seq: Ints) -> bool:
        same = all(np.array_equal(*both) for both in zip(ends, self._ends, strict=True))
        return same and self._sent.holds_for(seq)

    def _places_of(self, comm: Table, sent: Sent) -> Small:
        """The place of each pair; those of collectives get their numbers among them, by group."""
        some = sent.pairs > 0
        first = comm.take(sent.rows[sent.begins[some, 0]])
        together = ~comm.strings("op").equals(*POINT_TO_POINT)
        groups = distinct(comm.strings("group").codes[together].astype(np.int64))
        groups = groups[groups >= 0]
        group = np.concatenate((first.strings("group").codes.astype(np.int64), groups))
        source, target = (np.append(first.ints(name), np.full(groups.size, -1))
                          for name in ("rank", "peer"))  # fmt: skip
        place = self.places.of(Ends(group, source, target))[: len(first)]
        known = np.array([bool(one.members) for one in self.places.known], np.bool_)
        each = np.where(known[place], place, -1).astype(np.int32)
        return np.repeat(each, sent.pairs[some])


def _matched(pairing: _Pairing, comm: Table, column: Small) -> Iterator[DeviceTransfers]:
    """The operators of some rows of which no member is missing."""
    if comm.has("match"):
        yield from _operators(pairing.places, comm, column)
        return
    yield _sends(pairing, comm, column)  # first, as it numbers the places of both
    together = ~comm.strings("op").equals(*POINT_TO_POINT)
    yield from _operators(pairing.places, comm.take(together), column[together])


def _sends(pairing: _Pairing, comm: Table, column: Small) -> DeviceTransfers:
    """Sends with their receives, as `_operators`, but in a third of the time: rows need no sorting
    by operator if both are compared as columns."""
    sent, place = pairing.of(comm)
    # each of these columns once for all rows, which are in order, and from there for both ends
    sends, receives = sent.matched
    size, start, end = (comm.ints(name) for name in ("bytes", "start_ns", "end_ns"))
    known, lasted = (size > 0) & _timed(comm), end - start
    sent_in, sent_bytes = column[sends], size[sends]
    usable = (sent_bytes == size[receives]) & (sent_in == column[receives]) & (place >= 0)
    if not known.all():
        usable &= known[sends] & known[receives]
    shared = _shares_kernel(comm)
    alone = ~(shared[sends] | shared[receives]) if shared.any() else np.ones(sends.size, np.bool_)
    return DeviceTransfers(
        pairing.places.known, place, sent_in, sent_bytes, pairing.kind_of(sent_bytes),
        np.minimum(lasted[sends], lasted[receives]).astype(np.float64),
        np.maximum(end[sends], end[receives]), alone,
    ).only(usable)  # fmt: skip


def _timed(comm: Table) -> Mask:
    return np.asarray((comm.ints("start_ns") != NULL) & (comm.ints("end_ns") != NULL))


def _octave(size_bytes: Ints) -> Small:
    octave = np.rint(np.log2(np.maximum(size_bytes, 1)) * SIZES_PER_OCTAVE)
    return np.asarray(octave, np.int32)


def _operators(places: Places, comm: Table, column: Small) -> Iterator[DeviceTransfers]:
    matched = match(comm)
    if not matched.order.size:
        return
    # from columns that are taken already, some of them to match by
    table = Table({name: taken(matched.table.columns[name], matched.order) for name in _MATCHED})
    begins = matched.bounds[:-1]
    start, end, size = (table.ints(name) for name in ("start_ns", "end_ns", "bytes"))
    column = column[matched.order]
    known = _timed(table) & (size > 0)
    lasted = np.where(known, end, 0) - np.where(known, start, 0)
    place = places.of(Ends.of(table, begins))
    usable = (
        np.logical_and.reduceat(known, begins)
        & ~stats.varies(size, begins)
        & ~stats.varies(column, begins)
        & (places.members_of(place) == np.diff(matched.bounds))
    )
    at, op = begins[usable], table.strings("op")
    name = np.where(op.equals(*POINT_TO_POINT), 0, op.codes + 1)[at]
    yield DeviceTransfers(
        places.known, place[usable].astype(np.int32), column[at], size[at],
        (name * 2 * SIZES_PER_OCTAVE * 64 + _octave(size[at])).astype(np.int32),
        np.minimum.reduceat(lasted, begins)[usable].astype(np.float64),
        np.maximum.reduceat(end, begins)[usable],
        ~np.logical_or.reduceat(_shares_kernel(comm)[matched.order], begins)[usable],
    )  # fmt: skip


def _joined(
    places: Sequence[Place], parts: Iterator[DeviceTransfers], room: int
) -> DeviceTransfers | None:
    """All of these, of which each is let go when it was added.

    Args:
        room: their expected number; more are possible at the price of a copy.
    """
    columns: list[NDArray[Any]] = []
    count = 0
    for part in parts:
        added = [getattr(part, name) for name in _COLUMNS]
        stop = count + added[0].size
        columns = columns or [np.empty(room, one.dtype) for one in added]
        if stop > columns[0].size:
            columns = [np.append(one[:count], np.empty(stop, one.dtype)) for one in columns]
        for column, one in zip(columns, added, strict=True):
            column[count:stop] = one
        count = stop
    return DeviceTransfers(places, *(one[:count] for one in columns)) if count else None


def _shares_kernel(comm: Table) -> Mask:
    """Sends and receives that one kernel does together with those of another peer: it ends when
    all of them have."""
    shared = np.zeros(len(comm), np.bool_)
    sent = np.flatnonzero(comm.strings("op").equals(*POINT_TO_POINT))
    if not comm.has("peer", "start_ns") or not sent.size:
        return shared
    rank, start, peer = (gathered(comm.numbers(name), sent)
                         for name in ("rank", "start_ns", "peer"))  # fmt: skip
    # they are called one after the other, and rows are in this order
    apart = (rank[1:] != rank[:-1]) | (start[1:] != start[:-1])
    if not (~apart & (peer[1:] != peer[:-1])).any():
        return shared
    begins = np.flatnonzero(np.append(True, apart))
    shared[sent] = np.repeat(stats.varies(peer, begins), np.diff(np.append(begins, sent.size)))
    return shared

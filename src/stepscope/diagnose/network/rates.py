"""Transfer rates: how fast data moved in each place and step, relative to comparable places.

The transfer time of an operator is the shortest duration of its members: that member arrived last
and waited for no other (blame rule 2), and a duration does not depend on clock offsets. Transfers
are compared per byte, among operators of the same name and about the same size in equal places. So
a step with fewer operators, or with other sizes, does not count as faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.network.edges import COMPARED, Ends, Place, find_places
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import match
from stepscope.diagnose.thresholds import LEAST_COST
from stepscope.window import NULL, Floats, Ints, Mask, Table

LEAST_BYTES = 1 << 20
"""The time of smaller operators is latency, not bandwidth: at 25 GB/s a megabyte takes 40
microseconds, the latency of a collective between hosts. They count where all of a place together
take long enough to be worth a verdict, as those of tensors in inference. Our simulator."""
SIZES_PER_OCTAVE = 2
"""Operators within a factor of 1.4 in size take the same time per byte. Our simulator."""
INSTANT = 0.05
"""Part of the transfers of one kind that may take no time at all by their clock. Our choice."""

PORTION = 1 << 20
"""Rows that are matched at a time: sorting then costs 1.2 microseconds a row, and memory stays
bounded."""
MOST_ROWS = 1 << 23
"""Of larger tables only every k-th step is read: eight million rows take ten seconds."""
LEAST_SAMPLED = 40
"""At least this many steps are read."""


@dataclass(frozen=True)
class Single:
    """Transfers of single operators, one entry each."""

    place: Ints
    column: Ints
    ended_ns: Ints
    taken_ns: Floats
    usual_ns: Floats
    """Time for the same bytes at the median rate of the class."""

    @property
    def slowness(self) -> Floats:
        """As in `Rates`."""
        return _slowness(self.taken_ns, self.usual_ns)


@dataclass(frozen=True)
class Rates:
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

    @property
    def slowness(self) -> Floats:
        """Natural logarithm of the transfer time relative to the usual one."""
        return _slowness(self.taken_ns, self.usual_ns)


def _slowness(taken_ns: Floats, usual_ns: Floats) -> Floats:
    return np.asarray(np.log(taken_ns / usual_ns))


@dataclass(frozen=True)
class DeviceTransfers:
    """Matched operators that are compared, one entry each."""

    places: Sequence[Place]
    place: Ints
    column: Ints
    size_bytes: Ints
    kind: Ints
    """One number for each name and size class."""
    transfer_ns: Floats
    ended_ns: Ints

    def only(self, kept: Mask) -> DeviceTransfers:
        columns = ("place", "column", "size_bytes", "kind", "transfer_ns", "ended_ns")
        return replace(self, **{name: getattr(self, name)[kept] for name in columns})


def measure_rates(job: Observed) -> Rates | None:
    """The transfer rates of all places, or None if the recording does not show them."""
    comm = job.window.table("comm_ops")
    operators = None if comm is None else device_transfers(job, comm, 1)
    if operators is None:
        return None
    alike = _numbers([one.alike for one in operators.places])
    operators = _measurable(_long_enough(job, operators), alike)
    if operators is None:
        return None
    usual = operators.size_bytes * _usual_ns_per_byte(operators, alike)
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
    equals = _numbers([one.shape for one in operators.places])
    return Rates(operators.places, equals, alike, np.where(known, taken, np.nan),
                 np.where(known, expected, np.nan), single)  # fmt: skip


def _numbers(classes: Sequence[tuple[object, ...]]) -> Ints:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in classes], np.int64)


def _long_enough(job: Observed, operators: DeviceTransfers) -> DeviceTransfers:
    """Without the small operators of places where these take less than could cost anything."""
    small = operators.size_bytes < LEAST_BYTES
    took = stats.sums(operators.place[small], operators.transfer_ns[small], len(operators.places))
    steps = np.unique(operators.column)
    least = LEAST_COST * float(np.nansum(job.line.job_period_ns[steps]))
    return operators.only(~small | (took >= least)[operators.place])


def _measurable(operators: DeviceTransfers, alike: Ints) -> DeviceTransfers | None:
    """The operators that took time, of kinds that are long enough for the clock.

    Of transfers that are shorter than its ticks only the slow ones seem to take any time: then all
    of them seem as slow as ever.
    """
    took = operators.transfer_ns > 0
    key = _key(operators, alike)
    count = np.bincount(key)
    instant = np.bincount(key[~took], minlength=count.size)
    kept = took & (instant <= INSTANT * count)[key]
    return operators.only(kept) if kept.any() else None


def _key(operators: DeviceTransfers, alike: Ints) -> Ints:
    """A number for each class of places and kind of operator."""
    return alike[operators.place] * (int(operators.kind.max(initial=0)) + 1) + operators.kind


def _usual_ns_per_byte(operators: DeviceTransfers, alike: Ints) -> Floats:
    """Median nanoseconds per byte of each operator's class and kind."""
    ns_per_byte = operators.transfer_ns / operators.size_bytes
    key = _key(operators, alike)
    order = np.lexsort((ns_per_byte, key))
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    length = np.diff(np.append(begins, order.size))
    middle = ns_per_byte[order][begins + length // 2]
    out = np.empty_like(ns_per_byte)
    out[order] = np.repeat(middle, length)
    return out


def device_transfers(
    job: Observed, comm: Table, least_bytes: int = LEAST_BYTES
) -> DeviceTransfers | None:
    """Operators whose members were all recorded, in the same step and with the same size."""
    if not comm.has("start_ns", "end_ns", "bytes", "step", "peer"):
        return None
    compared = comm.strings("op").equals(*COMPARED)
    column = np.where(compared, job.line.columns(comm.ints("step")), -1)
    parts = [
        part for rows in _portions(column) if (part := _matched(job, comm.take(rows), least_bytes))
    ]
    if not parts:
        return None
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    joined = _Matched(*map(np.concatenate, columns))
    return _placed(job, comm.strings("group").values, joined)


def _portions(column: Ints) -> Iterator[Ints]:
    """The rows of a few steps at a time, to keep sorting cheap; large jobs are subsampled."""
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


def _matched(job: Observed, comm: Table, least_bytes: int) -> _Matched | None:
    matched = match(comm)
    if not matched.order.size:
        return None
    table, begins = matched.table.take(matched.order), matched.bounds[:-1]
    start, end, size = (table.ints(name) for name in ("start_ns", "end_ns", "bytes"))
    column = job.line.columns(table.ints("step"))
    known = (start != NULL) & (end != NULL) & (size >= least_bytes)
    lasted = np.where(known, end, 0) - np.where(known, start, 0)
    shortest = np.minimum.reduceat(lasted, begins)
    usable = (
        np.logical_and.reduceat(known, begins)
        & ~stats.varies(size, begins)
        & ~stats.varies(column, begins)
    )
    at, op, ends = begins[usable], table.strings("op"), Ends.of(table, begins)
    return _Matched(
        ends.group[usable], ends.source[usable], ends.target[usable],
        np.diff(matched.bounds)[usable], column[at], size[at],
        np.where(op.equals("Send", "Recv"), 0, op.codes + 1)[at], shortest[usable],
        np.maximum.reduceat(end, begins)[usable],
    )  # fmt: skip


def _placed(job: Observed, names: Sequence[str], matched: _Matched) -> DeviceTransfers | None:
    """The operators of which no member is missing."""
    ends = Ends(matched.group, matched.source, matched.target)
    places, place = find_places(job.window, names, ends)
    members = np.array([len(one.members) for one in places], np.int64)
    whole = members[place] == matched.members
    if not whole.any():
        return None
    octave = np.rint(np.log2(matched.size_bytes) * SIZES_PER_OCTAVE).astype(np.int64)
    kind = matched.op.astype(np.int64) * 2 * SIZES_PER_OCTAVE * 64 + octave
    return DeviceTransfers(places, place[whole], matched.column[whole], matched.size_bytes[whole],
                      kind[whole], matched.transfer_ns[whole].astype(np.float64),
                      matched.ended_ns[whole])  # fmt: skip

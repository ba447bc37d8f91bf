"""Groups in which data moves slower than in equal groups, after all members have arrived.

Fault: a slow link, NIC or switch behind one group, or between two neighbours of a pipeline.
Papers: Holmes (2025) and VenusTrace (2025), section 4, compare the durations of operators, which
contain waiting.
What differs: only the shortest member of an operator counts. It arrived last, so it waited for
no other, and clocks do not matter. Compared are groups of one shape (equal distances between their
ranks, equally spread over hosts if these are known), in the operators of equal size that all of
them run while they compute nothing (where sizes were not recorded, in the n-th of each step;
all-to-alls per byte, which are uneven by design); persistence as in `straggler_brief`.
Cost: one sort of `comm_ops`, one union of the computing kernels. Cannot see: what all groups of a
shape suffer, a job of one group, groups with an unrecorded member, and gloo, whose transfers are
the work of processors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.detect.ranks import straggler_brief as brief
from stepscope.diagnose.network.edges import COMPARED, Ends, Place, find_places
from stepscope.diagnose.network.unknown_sizes import UNEVEN, UNKNOWN, by_position, with_sizes
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import Matched, match_among
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.window import NULL, Floats, Ints, Mask, Table, numbered, occurrence, union

ALONE = 0.5
"""Part of the transfer: operators whose ranks compute for longer beside it compete with that
computation and do not count. Our simulator."""
RATIO = 1.5
"""Smallest ratio: half as long again, as for spikes of L1. There are no labelled traces to fit it
to. Our simulator."""
RATIO_OF_TWO = 2.0
"""The same for two groups, which have no third one that shows what is usual. Our simulator."""
RATIO_UNEVEN = 2.0
"""The same where experts' tokens move: who receives k times as many takes k times as long for them,
and sends as many back, so transfers take 2 k / (1 + k) times as long per byte sent."""
PRESENT = 0.8
"""Part of a group's steps in which an operator must have been recorded, for the group to be
compared in it. Our simulator."""
LINK = 2
"""A link has two ends: of more members none is named. Our simulator."""


@dataclass(frozen=True)
class SlowTransfer:
    """Where data moves slower: a group, or two neighbours in it."""

    group: str
    members: tuple[int, ...]
    places: tuple[Place, ...]
    """The group, and those that were joined with it."""
    culprits: tuple[int, ...]
    """The ends of the link; none where it is somewhere in a larger group."""
    equals: int
    """How many others it was compared with."""
    own_ns: float
    usual_ns: float
    """Per step, and the same of the equals."""
    first: int
    stop: int
    z: float
    needed: float
    ratio: float
    """Of its transfers to as many of the equals."""


@dataclass(frozen=True)
class _Operators:
    """The operators to compare; `place` numbers `places`, `kind` those of equal name and size."""

    places: Sequence[Place]
    place: Ints
    column: Ints
    kind: Ints
    transfer_ns: Floats
    end_ns: Ints
    uneven: Mask
    """Whether its members may move unequal amounts."""
    parts: int
    """How many columns one step has."""


def slow_transfers(job: Observed) -> list[SlowTransfer]:
    """All places that are persistently slower than their equals, the costliest first."""
    operators = _operators(job)
    if operators is None:
        return []
    if len(job.line.steps) - job.line.warm_up < brief.SEVERAL:
        operators = _in_turn(job, operators)
    classes = _classes(operators.places)
    tests = sum(map(len, classes))
    found = [one for places in classes for one in _slower(job, operators, places, tests)]
    found = _joined(operators, found)
    return sorted(found, key=lambda one: one.usual_ns - one.own_ns)


def _in_turn(job: Observed, operators: _Operators) -> _Operators:
    """The operators of a single step, those of each kind one after the other in place of steps:
    equal operators of one place scatter as steps do."""
    judged = operators.column >= job.line.warm_up
    number = numbered(operators.column, operators.place, operators.kind)
    turn = occurrence(number, operators.end_ns)
    parts = int(turn[judged].max(initial=0)) + 1
    return replace(operators, column=operators.column * parts + np.minimum(turn, parts - 1),
                   parts=parts)  # fmt: skip


def _slower(
    job: Observed, operators: _Operators, places: list[int], tests: int
) -> Iterator[SlowTransfer]:
    """The slow ones among places that are equals."""
    columns, skip = len(job.line.steps) * operators.parts, job.line.warm_up * operators.parts
    kept, own, exposed = _per_step(operators, places, columns)
    places, own, exposed = [places[at] for at in kept], own[kept, skip:], exposed[kept, skip:]
    everybody = [np.arange(len(places))]
    uneven = bool(operators.uneven[np.isin(operators.place, places)].any())
    least = RATIO_UNEVEN if uneven else RATIO if len(places) > 2 else RATIO_OF_TWO
    for one in brief.stragglers(own, everybody, job.line.typical_ns, None, tests):
        place = operators.places[places[one.row]]
        usual = stats.median(stats.column_median(np.delete(own, one.row, axis=0)))
        slow = SlowTransfer(
            place.group, place.members, (place,),
            place.members if len(place.members) <= LINK else (),
            len(places) - 1, operators.parts * stats.median(exposed[one.row]),
            operators.parts * stats.median(
                stats.column_median(np.delete(exposed, one.row, axis=0))),
            (one.first + skip) // operators.parts, -(-(one.stop + skip) // operators.parts),
            one.z, one.needed,
            stats.median(own[one.row]) / max(usual, 1.0),
        )  # fmt: skip
        if slow.ratio >= least:
            yield slow


def _joined(operators: _Operators, found: Sequence[SlowTransfer]) -> list[SlowTransfer]:
    """Slow groups that share one rank or two, joined: what connects these is the cause."""
    joined: list[SlowTransfer] = []
    for one in sorted(found, key=lambda one: one.usual_ns - one.own_ns):
        for at, known in enumerate(joined):
            shared = set(known.culprits or known.members) & set(one.members)
            if shared:
                joined[at] = _together(operators, known, one, tuple(sorted(shared)))
                break
        else:
            joined.append(one)
    return joined


def _together(
    operators: _Operators, known: SlowTransfer, one: SlowTransfer, shared: tuple[int, ...]
) -> SlowTransfer:
    """Adds up both directions of a link, which are often used at once; ranks that two groups share
    are nearer to the cause."""
    known = replace(known, places=(*known.places, *one.places))
    if set(known.members) == set(one.members):
        apart = _apart_share(operators, set(one.members))
        return replace(known, own_ns=apart * (known.own_ns + one.own_ns),
                       usual_ns=apart * (known.usual_ns + one.usual_ns))  # fmt: skip
    return replace(known, culprits=shared) if len(shared) <= LINK else known


def _apart_share(operators: _Operators, members: set[int]) -> float:
    """The time in which data moves between some ranks, as a part of the sum of all transfers."""
    between = [at for at, place in enumerate(operators.places) if set(place.members) == members]
    chosen = np.isin(operators.place, between)
    end, lasted = operators.end_ns[chosen], operators.transfer_ns[chosen]
    begin = end - lasted.astype(np.int64)
    order = np.argsort(begin, kind="stable")
    begin, latest = begin[order], np.maximum.accumulate(end[order])
    fresh = np.maximum(begin, np.append(begin[:1], latest[:-1]))
    return float(np.maximum(latest - fresh, 0).sum()) / max(float(lasted.sum()), 1.0)


def _classes(places: Sequence[Place]) -> list[list[int]]:
    """Places of one shape that share no rank, two and more. Links between neighbours of a pipeline
    without such equals are compared with each other: over each data moves at its own time."""
    known = [at for at, place in enumerate(places) if place.members]
    equal = [same for same in _alike(places, known, "shape") if _apart(places, same)]
    left = set(known) - {at for same in equal for at in same}
    alone = sorted(at for at in left if places[at].is_pair)
    return [*equal, *_alike(places, alone, "distance")]


def _alike(places: Sequence[Place], some: Sequence[int], name: str) -> list[list[int]]:
    found: dict[tuple[object, ...], list[int]] = {}
    for at in some:
        found.setdefault(getattr(places[at], name), []).append(at)
    return [same for same in found.values() if len(same) > 1]


def _apart(places: Sequence[Place], same: Sequence[int]) -> bool:
    ranks = [rank for at in same for rank in places[at].members]
    return len(set(ranks)) == len(ranks)


def _per_step(
    operators: _Operators, places: Sequence[int], columns: int
) -> tuple[Ints, Floats, Floats]:  # fmt: skip
    """The places that run what most of them run, and `[place, step]` the transfer of these
    operators, in ns; NaN unknown. First as if all had as many, to compare them, then of those that
    each has: where data moves slowly, more operators outlast the computation beside them."""
    row = np.full(len(operators.places), -1)
    row[list(places)] = np.arange(len(places))
    of_place = row[operators.place] >= 0
    kinds, kind = np.unique(operators.kind[of_place], return_inverse=True)
    shape = (len(places), columns, len(kinds))
    cell = (row[operators.place[of_place]] * columns + operators.column[of_place]) * len(
        kinds
    ) + kind
    size = shape[0] * shape[1] * shape[2]
    count = np.bincount(cell, minlength=size).reshape(shape)
    total = stats.sums(cell, operators.transfer_ns[of_place], size).reshape(shape)
    present = (count > 0).mean(axis=1) >= PRESENT
    common = present.mean(axis=0) > HALF
    kept = np.flatnonzero(present[:, common].all(axis=1) & common.any())
    if kept.size < 2:
        return kept[:0], np.full(shape[:2], np.nan), np.full(shape[:2], np.nan)
    count, total = count[:, :, common], total[:, :, common]
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    often = np.median(count, axis=(0, 1))
    return kept, np.asarray((mean * often).sum(axis=2)), np.asarray(total.sum(axis=2))


def _operators(job: Observed) -> _Operators | None:
    """Operators on devices that all members recorded, of equal size, during which no member
    computed."""
    window, comm = job.window, job.window.table("comm_ops")
    if window.table("host_ops") is None or window.table("kernels") is None or comm is None:
        return None
    if not comm.has("start_ns", "end_ns", "step", "peer"):
        return None
    comm = with_sizes(comm)
    known = comm.strings("op").equals(*COMPARED) & (job.line.columns(comm.ints("step")) >= 0)
    for name in ("start_ns", "end_ns", "bytes"):
        known &= comm.ints(name) != NULL
    matched = match_among(comm, known)
    return _gathered(job, matched) if matched.order.size else None


def _gathered(job: Observed, matched: Matched) -> _Operators | None:
    table, begins = matched.table.take(matched.order), matched.bounds[:-1]
    length = np.diff(matched.bounds)
    lasted = table.ints("end_ns") - table.ints("start_ns")
    shortest = np.minimum.reduceat(lasted, begins)
    size = table.ints("bytes")
    uneven = table.strings("op").equals(UNEVEN)[begins]
    usable = (size[begins] > 0) & (shortest > 0)
    usable &= uneven | ~stats.varies(size, begins)
    usable &= ~stats.varies(table.ints("step"), begins)
    usable &= _alone(job, table, np.repeat(shortest, length), begins)
    names = table.strings("group").values
    places, place = find_places(job.window, names, Ends.of(table, begins))
    members = np.array([len(one.members) for one in places])
    usable &= members[place] == length
    if not usable.any():
        return None
    sent = table.strings("op").equals("Send", "Recv")[begins]
    op = np.where(sent, -1, table.strings("op").codes[begins])
    alike = np.where(uneven, 0, size[begins])
    kind = np.unique(np.stack((op, alike)), axis=1, return_inverse=True)[1].ravel()
    column = job.line.columns(table.ints("step")[begins])
    end = np.minimum.reduceat(table.ints("end_ns"), begins)
    kind = by_position(kind, alike == UNKNOWN, place, column, end)
    most = np.maximum.reduceat(size, begins).astype(np.float64)
    found = _Operators(
        places, place[usable], column[usable], kind[usable], shortest[usable].astype(np.float64),
        end[usable], uneven[usable], 1,
    )  # fmt: skip
    return _for_usual_sizes(found, most[usable])


def _for_usual_sizes(operators: _Operators, size: Floats) -> _Operators:
    """Transfers of unequal sizes as long as they would take for the mean size: those of a place and
    step together, as what is dispatched to experts comes back."""
    some = operators.uneven
    cell = numbered(operators.place[some], operators.column[some])
    here = np.bincount(cell, weights=size[some]) / np.maximum(np.bincount(cell), 1)
    took = operators.transfer_ns.copy()
    took[some] *= size[some].mean() / here[cell] if some.any() else 1.0
    return replace(operators, transfer_ns=took)


def _alone(job: Observed, table: Table, transfer: Ints, begins: Ints) -> Mask:
    """Operators during whose data transfer no member computed."""
    kernels = job.window.tables["kernels"]
    names = kernels.strings("kernel")
    computing = np.array([is_computing(name) for name in names.values] or [False], np.bool_)
    kernels = kernels.take(computing[names.codes] & (names.codes >= 0))
    start, end = kernels.ints("start_ns"), table.ints("end_ns")
    stop = start + kernels.ints("duration_ns")
    axis = axis_over(len(job.line.ranks), start, stop, end - transfer, end)
    if axis is None:
        return np.zeros(begins.size, np.bool_)
    row = job.line.rows(kernels.ints("rank"))
    busy = union(axis.at(row, start), axis.at(row, stop))
    own = job.line.rows(table.ints("rank"))
    hidden = busy.within(axis.at(own, end - transfer), axis.at(own, end))
    most: Ints = np.maximum.reduceat(hidden, begins)
    return most <= ALONE * transfer[begins]

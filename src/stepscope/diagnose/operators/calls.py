"""Clashes: operators whose members made calls that do not match.

Only what the operator requires to be equal is compared: the input elements of an AllReduce, the
output elements of a Broadcast. The parts of an AllGather may differ if their sum is right, those of
an AllToAll if as many elements go in as come out, unless all members gave as many before, and one
that did not end is the first that is uneven. A sum needs all members: dumps that do not list
the members hide those without a dump.

Which member broke an all-to-all that does not add up, the next one shows: a layer of experts
dispatches tokens in one AllToAll and brings their results back in the next. So each rank gives in
the second what it took in the first, and takes what it gave, however uneven. The ranks whose pair
is not reversed, while those of all others are, called something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.stats import varies
from stepscope.diagnose.operators.equals import AGREED, equal_lanes
from stepscope.diagnose.operators.progress import Lane, Recording
from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Ints, Mask, Table

SAME = {
    "AllReduce": "given", "Reduce": "given", "Gather": "given", "ReduceScatter": "given",
    "Broadcast": "taken", "Scatter": "taken", "AllGather": "taken",
}  # fmt: skip
"""The side (input: given, output: taken) on which all members must have equally many elements."""
PARTS = {"AllGather": ("given", "taken"), "ReduceScatter": ("taken", "given"),
         "AllToAll": ("given", "taken")}  # fmt: skip
"""The first side, summed over all members, must equal the second (AllToAll: the sum of it)."""
FEW = 4
"""Up to this many operators of a group may all clash: the group may have begun with the fault. Our
simulator."""


@dataclass(frozen=True)
class Clash:
    """The first operator of a group whose members did not call the same."""

    group: str
    seq: int
    what: str
    rows: Ints
    odd: frozenset[int]
    """The minority that differs from more than half of the members; empty if there is none."""
    since_ns: int


def find_clashes(recording: Recording) -> list[Clash]:
    """The first clash of every group, the oldest first."""
    found = [clash for group in recording.lanes if (clash := _first(recording, group)) is not None]
    return sorted([*found, *_odd_pairs(recording)], key=lambda one: (one.since_ns, one.group))


def _first(recording: Recording, group: str) -> Clash | None:
    comm = recording.comm
    rows = np.concatenate([lane.rows for lane in recording.lanes[group].values()])
    rows = rows[np.argsort(comm.ints("seq")[rows], kind="stable")]
    seqs, begins = np.unique(comm.ints("seq")[rows], return_index=True)
    part = comm.take(rows)
    several = np.diff(np.append(begins, rows.size)) > 1
    complete = np.diff(np.append(begins, rows.size)) == len(recording.members(group))
    ended = np.logical_and.reduceat((recording.done & ~recording.doubtful)[rows], begins)
    totals = _wrong_totals(part, begins, complete, ended, _may_lack_members(recording, group))
    reasons = _reasons(part, begins, totals | (_no_longer_even(part, begins) & ~ended))
    wrong = np.logical_or.reduce([*reasons.values()]) & several
    count = int(several.sum())
    if not wrong.any() or _numbered_apart(recording, group, int(wrong.sum()), count):
        return None
    at = int(np.argmax(wrong))
    what = next(name for name, mask in reasons.items() if mask[at])
    calls = rows[begins[at] : begins[at + 1] if at + 1 < begins.size else None]
    odd = _odd(comm, calls, what) or _odd_by_equals(recording, group, int(seqs[at]), calls, what)
    if not odd and totals[at]:
        odd = unreturned(recording, group, int(seqs[at]))
    return Clash(group, int(seqs[at]), what, calls, odd, int(comm.ints("enqueue_ns")[calls].max()))


def _numbered_apart(recording: Recording, group: str, wrong: int, count: int) -> bool:
    """Whether each rank numbered its operators differently: PyTorch before 2.5 counted batches of
    sends as collectives, separately on each rank."""
    sends = any(key[0] == group for key in recording.channels)
    return sends and count > FEW and wrong > HALF * count


def _may_lack_members(recording: Recording, group: str) -> bool:
    """Whether a group is smaller than others of its kind: if dumps do not list the members, one
    without a dump is unknown."""
    own = recording.groups.get(group)
    sizes = (len(one.ranks) for one in recording.groups.values() if own and one.kind == own.kind)
    return len(recording.members(group)) < max(sizes, default=0)


def _wrong_totals(
    part: Table, begins: Ints, complete: Mask, ended: Mask, may_lack_members: bool
) -> Mask:
    """Operators whose parts do not add up, and which therefore did not end.

    If they do not add up in one that all have ended, an unknown member has the rest.
    """
    wrong = complete & _unbalanced(part, begins)
    if may_lack_members or (wrong & ended).any():
        return np.zeros_like(wrong)
    return wrong


def _no_longer_even(part: Table, begins: Ints) -> Mask:
    """The first AllToAll in which members give unequally many elements, after several in which all
    gave as many: its parts are equal by design."""
    exchange = np.logical_and.reduceat(part.strings("op").equals("AllToAll"), begins)
    exchange &= _known(part.ints("given"), begins)
    uneven = exchange & varies(part.ints("given"), begins)
    first = np.cumsum(uneven) == 1
    return np.asarray(uneven & first & (np.cumsum(exchange) > FEW))


def _reasons(part: Table, begins: Ints, totals: Mask) -> Mapping[str, Mask]:
    """Which operators clash in operator, size or dtype; the most obvious reason first."""
    op = part.strings("op").codes.astype(np.int64)
    call = part.strings("call").codes.astype(np.int64)
    kind = np.where(op >= 0, op, op.max(initial=0) + 1 + call)
    numel, dtype = compared(part)
    operator = varies(kind, begins)
    size = ~operator & _known(numel, begins) & varies(numel, begins)
    size |= ~operator & totals
    types = ~operator & ~size & _known(dtype, begins) & varies(dtype, begins)
    return {"operator": operator, "size": size, "dtype": types}


def compared(part: Table) -> tuple[Ints, Ints]:
    """Element count and type code of each row on the side that must agree; NULL if none must."""
    numel, dtype = np.full(len(part), NULL), np.full(len(part), NULL)
    both = {*part.strings("dtype_given").values, *part.strings("dtype_taken").values}
    names = {name: at for at, name in enumerate(sorted(both - {""}))}
    for op, side in (*SAME.items(), ("AllToAll", "given"), ("Send", "given"), ("Recv", "taken")):
        rows = part.strings("op").equals(op)
        types = part.strings(f"dtype_{side}")
        codes = np.array([names.get(value, NULL) for value in types.values] or [NULL], np.int64)
        dtype[rows] = codes[types.codes[rows]]
        if op != "AllToAll":
            numel[rows] = part.ints(side)[rows]
    dtype[part.ints("given") == 0] = NULL  # without input the type does not matter
    return numel, dtype


def _known(values: Ints, begins: Ints) -> Mask:
    return np.asarray(np.logical_and.reduceat(values != NULL, begins))


def _unbalanced(part: Table, begins: Ints) -> Mask:
    """Operators whose parts, over all members, do not add up to the whole."""
    wrong = np.zeros(begins.size, np.bool_)
    for op, (small, large) in PARTS.items():
        fits = np.logical_and.reduceat(part.strings("op").equals(op), begins)
        parts, whole = part.ints(small), part.ints(large)
        fits &= _known(parts, begins) & _known(whole, begins)
        total = np.add.reduceat(np.where(parts == NULL, 0, parts), begins)
        if op == "AllToAll":
            expected = np.add.reduceat(np.where(whole == NULL, 0, whole), begins)
        else:
            expected = np.maximum.reduceat(whole, begins)
            fits &= varies(parts, begins)  # equal parts may be counted differently, as in gloo
        wrong |= fits & (total != expected)
    return wrong


def _odd(comm: Table, rows: Ints, what: str) -> frozenset[int]:
    """The ranks whose call differs from the most common one, if they are fewer than half."""
    values = _values(comm, rows, what)
    common = max(set(values), key=lambda value: (values.count(value), str(value)))
    odd = _others(comm, rows, values, common)
    return odd if len(odd) < len(rows) / 2 else frozenset()


def _odd_by_equals(
    recording: Recording, group: str, seq: int, rows: Ints, what: str
) -> frozenset[int]:
    """The ranks that differ from what all equal groups called here, if others do not."""
    lanes = equal_lanes(recording, group)
    equal = np.array([row for one in lanes if (row := one.row_of(seq)) is not None], np.int64)
    called = set(_values(recording.comm, equal, what)) if equal.size else set()
    values = _values(recording.comm, rows, what)
    if len(called) != 1 or not called <= set(values):
        return frozenset()
    return _others(recording.comm, rows, values, called.pop())


def _values(comm: Table, rows: Ints, what: str) -> list[object]:
    """What calls are compared by."""
    part = comm.take(rows)
    numel, dtype = compared(part)
    kinds = [part.strings("op")[at] or part.strings("call")[at] for at in range(len(part))]
    values = {"operator": kinds, "size": numel.tolist(), "dtype": dtype.tolist()}[what]
    same = what == "size" and len(set(values)) == 1
    return list(part.ints("given").tolist() if same else values)


def _others(comm: Table, rows: Ints, values: list[object], value: object) -> frozenset[int]:
    ranks = comm.ints("rank")[rows]
    return frozenset(int(r) for r, v in zip(ranks, values, strict=True) if v != value)


def _odd_pairs(recording: Recording) -> Iterator[Clash]:
    """Sends and receives that differ in size or type; only if both ring buffers are complete."""
    comm = recording.comm
    for (group, op, rank, peer), sends in recording.channels.items():
        other = recording.channels.get((group, "Recv", peer, rank))
        if op != "Send" or other is None or {rank, peer} & recording.wrapped:
            continue
        count = min(sends.size, other.size)
        numel_s, dtype_s = compared(comm.take(sends[:count]))
        numel_r, dtype_r = compared(comm.take(other[:count]))
        size = (numel_s != numel_r) & (numel_s != NULL) & (numel_r != NULL)
        types = (dtype_s != dtype_r) & (dtype_s != NULL) & (dtype_r != NULL)
        if (size | types).any():
            at = int(np.argmax(size | types))
            rows = np.array([sends[at], other[at]], np.int64)
            yield Clash(group, at + 1, "size" if size[at] else "dtype", rows, frozenset(),
                        int(comm.ints("enqueue_ns")[rows].max()))  # fmt: skip


def unreturned(recording: Recording, group: str, seq: int) -> frozenset[int]:
    """The minority of a group whose pair of calls is not reversed as those of all were before."""
    lanes = recording.lanes[group].values()
    for begin in (seq, seq - 1):
        kept = {lane.rank: _reversed(recording, lane, begin) for lane in lanes}
        if any(pairs.size <= AGREED or not pairs[:-1].all() for pairs in kept.values()):
            continue
        odd = frozenset(rank for rank, pairs in kept.items() if not pairs[-1])
        if 2 * len(odd) < len(kept):
            return odd
    return frozenset()


def _reversed(recording: Recording, lane: Lane, begin: int) -> Mask:
    """Whether each pair of calls up to the one at `begin` is reversed; empty if it lacks a call."""
    first = np.arange(begin, int(lane.seqs[0]) - 1, -2)[::-1]
    at = np.searchsorted(lane.seqs, first)
    if not first.size or at[-1] + 1 >= lane.seqs.size or (np.diff(lane.seqs) != 1).any():
        return np.zeros(0, np.bool_)
    one, other = lane.rows[at], lane.rows[at + 1]
    given, taken = recording.comm.ints("given"), recording.comm.ints("taken")
    exchanges = recording.comm.strings("op").equals("AllToAll")
    found: Mask = (exchanges[one] & exchanges[other]
                   & (given[one] == taken[other]) & (taken[one] == given[other]))  # fmt: skip
    return found

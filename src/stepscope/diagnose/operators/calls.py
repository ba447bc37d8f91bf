"""What the members of one operator called, and whether that can go together.

Only what the operator demands to be equal is compared: the elements that go in of an AllReduce,
that come out of a Broadcast; an AllGather's parts may differ if their sum does not; an AllToAll's
may all differ if as much goes in as comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.stats import varies
from stepscope.diagnose.operators.progress import Recording
from stepscope.window import NULL, Ints, Mask, Table

SAME = {
    "AllReduce": "given", "Reduce": "given", "Gather": "given", "ReduceScatter": "given",
    "Broadcast": "taken", "Scatter": "taken", "AllGather": "taken",
}  # fmt: skip
"""The side of which all members must have equally many elements."""
PARTS = {"AllGather": ("given", "taken"), "ReduceScatter": ("taken", "given"),
         "AllToAll": ("given", "taken")}  # fmt: skip
"""Whose first side, summed over all members, must be the second (AllToAll: the sum of it)."""
MISNUMBERED = 0.5
"""More disagreement than this in a group means that its members were numbered apart."""
FEW = 4
"""So few operators of a group may all differ: then it began with the fault."""


@dataclass(frozen=True)
class Clash:
    """The first operator of a group whose members did not call the same."""

    group: str
    seq: int
    what: str
    rows: Ints
    odd: frozenset[int]
    """Ranks that differ from most, if there is a most."""
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
    reasons = _reasons(part, begins, np.diff(np.append(begins, rows.size)),
                       len(recording.members(group)))  # fmt: skip
    wrong = np.logical_or.reduce([*reasons.values()]) & several
    count = int(several.sum())
    if not wrong.any() or _numbered_apart(recording, group, int(wrong.sum()), count):
        return None
    at = int(np.argmax(wrong))
    what = next(name for name, mask in reasons.items() if mask[at])
    mine = rows[begins[at] : begins[at + 1] if at + 1 < begins.size else None]
    return Clash(group, int(seqs[at]), what, mine, _odd(comm, mine, what),
                 int(comm.ints("enqueue_ns")[mine].max()))  # fmt: skip


def _numbered_apart(recording: Recording, group: str, wrong: int, count: int) -> bool:
    """Versions before 2.5 counted batches of sends as collectives, on each rank its own."""
    sends = any(key[0] == group for key in recording.channels)
    return sends and count > FEW and wrong > MISNUMBERED * count


def _reasons(part: Table, begins: Ints, lengths: Ints, members: int) -> Mapping[str, Mask]:
    """Which operators differ in what, the plainest first."""
    op = part.strings("op").codes.astype(np.int64)
    call = part.strings("call").codes.astype(np.int64)
    kind = np.where(op >= 0, op, op.max(initial=0) + 1 + call)
    numel, dtype = compared(part)
    operator = varies(kind, begins)
    size = ~operator & _known(numel, begins) & varies(numel, begins)
    size |= ~operator & (lengths == members) & _unbalanced(part, begins)
    types = ~operator & ~size & _known(dtype, begins) & varies(dtype, begins)
    return {"operator": operator, "size": size, "dtype": types}


def compared(part: Table) -> tuple[Ints, Ints]:
    """Elements and type code of each row on the side that must agree, NULL where none must."""
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
    dtype[part.ints("given") == 0] = NULL  # nothing goes in: its type does not matter
    return numel, dtype


def _known(values: Ints, begins: Ints) -> Mask:
    known: Mask = np.logical_and.reduceat(values != NULL, begins)
    return known


def _unbalanced(part: Table, begins: Ints) -> Mask:
    """Where the parts of all members do not add up to the whole."""
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
            fits &= varies(parts, begins)  # equal parts may be counted otherwise, as gloo's are
        wrong |= fits & (total != expected)
    return wrong


def _odd(comm: Table, rows: Ints, what: str) -> frozenset[int]:
    """Ranks whose call differs from that of more than half."""
    part = comm.take(rows)
    numel, dtype = compared(part)
    kinds = [part.strings("op")[at] or part.strings("call")[at] for at in range(len(part))]
    given = part.ints("given")
    values = {"operator": kinds, "size": numel.tolist(), "dtype": dtype.tolist()}[what]
    if what == "size" and len(set(values)) == 1:
        values = given.tolist()
    common = max(set(values), key=lambda value: (values.count(value), str(value)))
    ranks = part.ints("rank")
    odd = frozenset(int(r) for r, v in zip(ranks, values, strict=True) if v != common)
    return odd if len(odd) < len(rows) / 2 else frozenset()


def _odd_pairs(recording: Recording) -> Iterator[Clash]:
    """Sends and receives of one direction that differ in size or type, where rings are whole."""
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

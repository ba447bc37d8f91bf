"""Mismatched collectives: members of a group that called different operators, or different sizes.

Fault: one rank took another branch; the job will hang, crash or compute wrong results.
Paper: none. Like PyTorch's Flight Recorder analyser, it compares what the members of a group called
at each sequence number; VenusTrace (Jiao et al., 2025), section 3.3, looks for missing calls only.
Sizes are compared only if the operator requires equal ones. If most finished operators of a group
disagree, the sequence numbers are wrong and not the program, and nothing is reported.
Whoever is in the minority is named. Without one, as in a pair, whoever differs from what all equal
groups called at that number, if they had called the same until then. Else a rank is named that
called something it often calls, but not at this place, where the others called what they always
call there: it left a call out. A call that nobody ever made before may be a plan that the others
forgot, so nobody is named.
A send and its receive that differ are compared only while they are open: what was received was of
the right size.
Cost: one sort of `comm_ops`. Cannot see: different shapes or types of equal size; a different order
of operators that look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from stepscope.diagnose.detect.stuck import desync
from stepscope.diagnose.finding import Stuck
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric.stats import varies
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.equals import unlike_equals
from stepscope.diagnose.operators.own_order import KNOWN_STEPS
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, Matched, match
from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Ints, Mask, Table, Window

EQUAL_SIZES = ("AllReduce", "Broadcast", "Reduce")
"""Operators whose members must give the same number of bytes; gathers and all-to-alls need not."""

RECENT_CALLS = 4096
"""Calls of a rank that are looked through for the same one: some ten steps of a large model with a
call for each layer. Our choice."""


class Mismatch:
    """The earliest collective whose members did not call the same operator."""

    name = "mismatch"
    needs = Needs("comm_ops.seq", "comm_ops.op", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Stuck]:
        found = None if desync.applies(job.window) else find_mismatch(job.window)
        if found is not None:
            yield found


def find_mismatch(window: Window) -> Stuck | None:
    """The earliest collective whose members called different operators or sizes."""
    comm = window.table("comm_ops")
    if comm is None:
        return None
    pairs = comm.strings("op").equals(*POINT_TO_POINT)
    if not (pairs & _is_open(comm)).any():  # only open ones are compared
        comm = comm.take(~pairs)
    matched = match(comm)
    if matched.bounds.size < 2:
        return None
    begins = matched.bounds[:-1]
    table, order = matched.table, matched.order
    pairs = matched.p2p[order][begins]
    differs = varies(table.strings("op").codes.astype(np.int64)[order], begins) & ~pairs
    differs |= _sizes_vary(table, order, begins)
    differs &= _trusted(table, order, begins, differs & ~pairs) | pairs
    differs &= ~pairs | _trusted_pairs(window, matched, differs & pairs)
    if not differs.any():
        return None
    start = np.minimum.reduceat(table.ints("enqueue_ns")[order], begins)
    earliest = int(np.argmin(np.where(differs, start, np.iinfo(np.int64).max)))
    return _finding(window, matched, earliest)


def _sizes_vary(table: Table, order: Ints, begins: Ints) -> Mask:
    if not table.has("bytes"):
        return np.zeros(begins.size, np.bool_)
    size = table.ints("bytes")[order]
    known = np.logical_and.reduceat(size != NULL, begins)
    same = table.strings("op").equals(*EQUAL_SIZES, *POINT_TO_POINT)[order]
    equal = np.logical_and.reduceat(same, begins)
    return known & equal & varies(size, begins)


def _trusted(table: Table, order: Ints, begins: Ints, differs: Mask) -> Mask:
    """Operators of groups whose members agree on most of their operators."""
    group = table.strings("group").codes[order][begins]
    lengths = np.diff(np.append(begins, order.size))
    count = np.bincount(group, weights=lengths > 1)
    wrong = np.bincount(group, weights=differs)
    return np.asarray((wrong <= HALF * np.maximum(count, 1))[group] | (count[group] <= 2))


def _trusted_pairs(window: Window, matched: Matched, differs: Mask) -> Mask:
    """Open sends and receives of groups in which all finished ones agree and no row was lost."""
    table, order, begins = matched.table, matched.order, matched.bounds[:-1]
    lost = window.table("losses")
    if not differs.any() or (lost is not None and lost.strings("table").equals("comm_ops").any()):
        return np.zeros(begins.size, np.bool_)
    is_open = np.logical_or.reduceat(_is_open(table)[order], begins)
    group = table.strings("group").codes[order][begins]
    doubtful = np.unique(group[differs & ~is_open])
    return np.asarray(is_open & ~np.isin(group, doubtful))


def _is_open(table: Table) -> Mask:
    if not table.has("state"):
        return np.zeros(len(table), np.bool_)
    return ~table.strings("state").equals("done", "") & (table.strings("state").codes >= 0)


def _finding(window: Window, matched: Matched, number: int) -> Stuck:
    table = matched.table
    rows = matched.order[matched.bounds[number] : matched.bounds[number + 1]]
    calls = [_call(table, int(row)) for row in rows]
    common = max(set(calls), key=lambda call: (calls.count(call), call))
    odd = [row for row, call in zip(rows, calls, strict=True) if call != common]
    minority = len(odd) < len(rows) / 2
    group = table.strings("group")[int(rows[0])]
    ranks = sorted({int(table.ints("rank")[row]) for row in odd}) if minority else (
        _odd_of_pair(window, table, rows))  # fmt: skip
    by_call = sorted(zip(calls, table.ints("rank")[rows], strict=True))[:8]
    called = ", ".join(f"rank {rank} called {call}" for call, rank in by_call)
    begin = int(table.ints("enqueue_ns")[rows].min())
    step = int(table.ints("step")[rows[0]]) if table.has("step") else -1
    return Stuck(
        method="mismatch", mismatched=True, cause="code", ranks=tuple(ranks), group=group,
        unfinished=bool(_is_open(table)[rows].any()),
        detail=f"members of {group} disagree at operator {table.ints('seq')[rows[0]]}: {called}",
        steps=(step, step) if step >= 0 else None, time_ns=(begin, begin),
        score=0.95 if minority else 0.8,
        values={"members": len(rows), "odd": len(odd)},
    )  # fmt: skip


def _odd_of_pair(window: Window, table: Table, rows: Ints) -> list[int]:
    """The odd ranks where nobody is in the minority: by what equal groups called here, else by what
    each rank called before."""
    group, seq = table.strings("group")[int(rows[0])], int(table.ints("seq")[rows[0]])
    comm = table.take(~table.strings("op").equals(*POINT_TO_POINT))
    together = table.strings("op")[int(rows[0])] not in POINT_TO_POINT
    odd = unlike_equals(window, comm, group, seq) if group and together else frozenset()
    return sorted(odd or {int(table.ints("rank")[row]) for row in _out_of_place(table, rows)})


def _out_of_place(table: Table, rows: Ints) -> list[int]:
    """The rows of ranks that called something familiar at an unfamiliar place, if all others
    called what they usually call there."""
    places = {int(row): _place(table, int(row)) for row in rows}
    odd = [row for row, place in places.items() if place == "left out"]
    return odd if all(place in ("usual", "left out") for place in places.values()) else []


def _place(table: Table, row: int) -> str:
    """Whether the rank has called this after the same call before, or only after others."""
    own = table.ints("rank") == table.ints("rank")[row]
    own &= table.strings("group").codes == table.strings("group").codes[row]
    own &= table.ints("enqueue_ns") <= table.ints("enqueue_ns")[row]
    before = np.flatnonzero(own)
    before = before[np.argsort(table.ints("enqueue_ns")[before], kind="stable")][-RECENT_CALLS:]
    *calls, now = [_call(table, int(one)) for one in before]
    if calls.count(now) < KNOWN_STEPS:
        return "new"
    times = [*pairwise(calls)].count((calls[-1], now))
    return "usual" if times >= KNOWN_STEPS else "rare" if times else "left out"


def _call(table: Table, row: int) -> str:
    size = int(table.ints("bytes")[row]) if table.has("bytes") else NULL
    name = table.strings("op")[row] or "?"
    return name if size == NULL or name not in (*EQUAL_SIZES, *POINT_TO_POINT) else (
        f"{name} of {size} bytes")  # fmt: skip

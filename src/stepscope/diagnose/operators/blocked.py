"""Blocked operators in flight recorder dumps: which ranks wait in them, and which ranks block
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.progress import CLOCK_NS, Recording
from stepscope.window import NULL, Ints

LONGER_PAUSE = 1.5
"""A wait up to 1.5 times as long as the longest pause between this rank's calls is ordinary. Our
simulator."""
LEAST_AGE_NS = 10**9
"""A shorter wait does not count: dumps are not all taken and written at the same time. Our
simulator."""
SLOW_DUMP_NS = 10 * 10**9
"""Torch 2.13 reads its own symbols for two seconds of CPU time before its first dump with stacks,
which takes longer on a busy host: a wait that seems shorter than this may be shorter still. Our
simulator."""
COPIED_NS = 3600 * 10**9
"""A file written an hour or more after the wait began was copied later. Our simulator."""
MANY_MESSAGES = 100
"""Messages after which a rank has met all its peers, if nothing tells that a step has ended: more
than a pipeline's first pass has. Our choice."""


@dataclass(frozen=True)
class Blocked:
    """One operator that some ranks wait in."""

    group: str
    op: str
    seq: int
    rows: tuple[int, ...]
    waiting: frozenset[int]
    left: frozenset[int]
    absent: frozenset[int]
    """Ranks whose dump shows that they have not entered it."""
    behind: frozenset[int]
    """Ranks that called it, but whose device stands in an earlier operator."""
    late: frozenset[int]
    """Ranks that called it, but whose device has not started it although others have, and stands
    in no other operator."""
    without_dump: frozenset[int]
    """Members without a dump."""
    unknown: frozenset[int]
    """Ranks whose dump is inconclusive: it is older, or its ring buffer lost the group."""
    standing: frozenset[int]
    """The waiting ranks whose devices stand in it; it is queued on the others."""
    since_ns: int
    peer: int = -1
    """The other rank of a send or receive."""
    new_peer: bool = False
    """The rank has exchanged messages with others, and never with this peer."""

    @property
    def missing(self) -> frozenset[int]:
        """The ranks that would end it by coming, as far as the dumps show."""
        return self.absent or self.late or self.without_dump

    @property
    def blockers(self) -> frozenset[int]:
        """The ranks that those standing in it wait for."""
        return self.missing | self.behind

    @property
    def where(self) -> str:
        if self.peer >= 0:
            word = "to" if self.op == "Send" else "from"
            return f"{self.op} {word} rank {self.peer} of {self.group}"
        return f"{self.op} {self.seq} of {self.group}"


def find_blocked(recording: Recording) -> list[Blocked]:
    """The first open operator of each rank and group, the oldest first."""
    found = [*_collectives(recording), *_pairs(recording)]
    return sorted(found, key=lambda one: (one.since_ns, one.group, one.seq))


def _collectives(recording: Recording) -> Iterator[Blocked]:
    for group in recording.lanes:
        for seq in sorted(_open_at(recording, group)):
            one = _collective(recording, group, seq)
            if one is not None:
                yield one


def _open_at(recording: Recording, group: str) -> set[int]:
    """The sequence numbers of the operators of a group in which some rank waits."""
    lanes = recording.lanes[group]
    found: set[int] = set()
    for lane in lanes.values():
        has_state = recording.has_state[lane.rows]
        is_open = (has_state & ~recording.done[lane.rows]) | recording.doubtful[lane.rows]
        found.update(map(int, lane.seqs[is_open][:1]))
    ends = [lane.last for lane in lanes.values() if not recording.has_state[lane.rows].all()]
    if (
        ends
    ):  # only their order is known: they wait in the operator that the slowest has not reached
        silent = recording.absent(group, 1) - frozenset(lanes)
        front = 0 if silent else min(lane.last for lane in lanes.values())
        found.update(seq for lane in lanes.values() if (seq := lane.after(front)) is not None)
    return found


def _collective(recording: Recording, group: str, seq: int) -> Blocked | None:
    lanes = recording.lanes[group]
    rows = {rank: row for rank, lane in lanes.items() if (row := lane.row_of(seq)) is not None}
    absent = recording.absent(group, seq)
    current = {rank: row for rank, row in rows.items() if rank not in recording.outdated}
    waiting = {rank for rank, row in current.items() if _waits(recording, row, bool(absent))}
    if not waiting:
        return None
    if all(recording.doubtful[rows[rank]] for rank in waiting) and not _gave_up(
        recording, [rows[rank] for rank in waiting], len(absent)
    ):
        return None
    stands = frozenset(rank for rank in waiting if recording.standing[rows[rank]])
    states = {rank: recording.comm.strings("seen")[rows[rank]] or "" for rank in waiting}
    row = rows[min(waiting)]
    older = frozenset(rank for rank, row in rows.items()
                      if rank in recording.outdated and not recording.done[row])  # fmt: skip
    came = frozenset(rows) | {rank for rank, lane in lanes.items() if lane.last >= seq}
    return Blocked(
        group, recording.comm.strings("op")[row] or recording.comm.strings("call")[row] or "?",
        seq, tuple(rows[rank] for rank in sorted(waiting)), frozenset(waiting),
        frozenset(rows) - waiting - older, absent, frozenset(waiting) - stands,
        _late(states, stands) - recording.front_lost,
        recording.members(group) - recording.recorded,
        (recording.members(group) & recording.recorded) - came - absent | older, stands,
        int(recording.comm.ints("enqueue_ns")[list(rows.values())].max()),
    )  # fmt: skip


def _waits(recording: Recording, row: int, somebody_absent: bool) -> bool:
    if recording.doubtful[row]:
        return somebody_absent and bool(recording.synchronizing[row])
    return not recording.done[row] if recording.has_state[row] else somebody_absent


def _gave_up(recording: Recording, rows: list[int], absent: int) -> bool:
    """Whether operators that ended with an unknown result failed.

    A dump that is taken a moment before the others looks the same, but then most ranks are rarely
    in the very same operator.
    """
    comm = recording.comm
    age = comm.ints("dumped_ns")[rows] - comm.ints("enqueue_ns")[rows]
    limit = comm.ints("timeout_ms")[rows] * 10**6
    return absent < len(rows) or bool(((limit > 0) & (age >= limit)).any())


def _late(states: Mapping[int, str], stands: frozenset[int]) -> frozenset[int]:
    """Ranks whose device has not started the operator although the devices of others have."""
    if "started" not in states.values():
        return frozenset()
    return frozenset(rank for rank in stands if states[rank] == "scheduled")


def _pairs(recording: Recording) -> Iterator[Blocked]:
    """The first open send or receive of each direction between two ranks."""
    for (group, op, rank, peer), rows in recording.channels.items():
        open_rows = rows[recording.has_state[rows] & ~recording.done[rows]]
        if not open_rows.size or rank == peer or rank in recording.outdated:
            continue
        row = int(open_rows[0])
        answer = "Recv" if op == "Send" else "Send"
        other = recording.channels.get((group, answer, peer, rank))
        came = other is not None and _met(recording, rank, peer, rows, row, other)
        none_known, other_end, here = frozenset[int](), frozenset({peer}), frozenset({rank})
        known, conclusive = peer in recording.recorded, peer not in recording.outdated
        end = None
        if other is not None and conclusive:
            end = _other_end(recording, rank, peer, rows, row, other)
        yield Blocked(
            group, op, int(recording.comm.ints("seq")[row]), (row,), here, none_known,
            absent=other_end if known and conclusive and not came else none_known,
            behind=other_end if end is not None and not recording.standing[end] else none_known,
            late=other_end if end is not None and _idles(recording, row, end) else none_known,
            without_dump=none_known if known else other_end,
            unknown=none_known if conclusive else other_end,
            standing=here if recording.standing[row] else none_known,
            since_ns=int(recording.comm.ints("enqueue_ns")[row]), peer=peer,
            new_peer=not came and _is_new_peer(recording, rank, peer, row),
        )  # fmt: skip


def _idles(recording: Recording, row: int, end: int) -> bool:
    """Whether a device has not started its end of a message although the other device has."""
    seen = recording.comm.strings("seen")
    known = int(recording.comm.ints("rank")[end]) not in recording.front_lost
    return (
        known
        and bool(recording.standing[end])
        and (seen[row], seen[end]) == ("started", "scheduled")
    )


def _is_new_peer(recording: Recording, rank: int, peer: int, row: int) -> bool:
    """Whether a rank waits for one that it never exchanged data with, although it has exchanged
    data with others.

    In the first step every peer is new. A collective between its messages, or many of them, tell
    that a rank is beyond that.
    """
    comm = recording.comm
    record, peers = comm.ints("record"), comm.ints("peer")
    before = (comm.ints("rank") == rank) & (record < record[row])
    messages = before & recording.p2p & (peers >= 0)
    theirs = recording.p2p & (comm.ints("rank") == peer) & (peers == rank)
    if not messages.any() or (messages & (peers == peer)).any() or theirs.any():
        return False
    collectives = before & ~recording.p2p & (record > record[messages].min())
    return bool(collectives.any()) or int(messages.sum()) >= MANY_MESSAGES


def _met(recording: Recording, rank: int, peer: int, rows: Ints, row: int, other: Ints) -> bool:
    """Whether the other end of a send or receive was called.

    Decided by count if neither ring buffer wrapped, else by whether the other end waits as well.
    """
    if rank in recording.wrapped or peer in recording.wrapped:
        return bool((~recording.done[other]).any())
    return bool(other.size > int(np.searchsorted(rows, row)))


def _other_end(
    recording: Recording, rank: int, peer: int, rows: Ints, row: int, other: Ints
) -> int | None:
    """The row of the other end of a send or receive, if it was called and is open."""
    if rank in recording.wrapped or peer in recording.wrapped:
        at = int(np.argmax(~recording.done[other]))
    else:
        at = int(np.searchsorted(rows, row))
    return int(other[at]) if at < other.size and not recording.done[other[at]] else None


def is_young(
    recording: Recording, blocked: tuple[Blocked, ...], least_ns: int = LEAST_AGE_NS,
    even_retired: bool = False,
) -> bool:  # fmt: skip
    """Whether these waits may be ordinary: every dump was written soon after the wait began.

    A host may have called an operator several steps ahead of its device. So a wait is no older than
    the newest operator that the rank's watchdog saw end.
    A file's time is that of the dump or, if it was copied, a later one. So it is an upper bound of
    the age.

    Args:
        even_retired: also judge by last operators that ended, and may have failed.
    """
    rows = np.array([row for one in blocked for row in one.rows], np.int64)
    if not even_retired:
        rows = rows[~recording.doubtful[rows]]
    if not rows.size or recording.expired[rows].any():
        return False
    if _moved(recording, rows):
        return True
    newest = np.full(int(recording.comm.ints("rank").max()) + 1, NULL)
    if recording.comm.has("noticed_ns"):
        np.maximum.at(newest, recording.comm.ints("rank"), recording.comm.ints("noticed_ns"))
    begun = np.maximum(recording.comm.ints("enqueue_ns"), newest[recording.comm.ints("rank")])
    return _is_recent(recording, rows, begun, least_ns)


def _moved(recording: Recording, rows: Ints) -> bool:
    """Whether the job went on while it was dumped, so that these waits began meanwhile: what a
    rank's dump lacks others have ended with it, and it was dumped at most an ordinary pause before
    these calls.

    Clocks are compared, but only to tell such a dump from one that was left from earlier.
    """
    rank, called = recording.comm.ints("rank"), recording.comm.ints("enqueue_ns")
    since = int(called[rows].min())
    return any(
        since - int(called[rank == one].max()) <= max(_pause_ns(recording, one), LEAST_AGE_NS)
        for one in recording.outdated if (rank == one).any()
    )  # fmt: skip


def have_lasted(recording: Recording, blocked: tuple[Blocked, ...]) -> bool:
    """Whether a watchdog, or the time of a file that was not copied, shows that waits lasted."""
    rows = np.array([row for one in blocked for row in one.rows], np.int64)
    age = recording.comm.ints("dumped_ns")[rows] - recording.comm.ints("enqueue_ns")[rows]
    aged = (age > LEAST_AGE_NS) & (age <= COPIED_NS)
    return bool((aged | recording.expired[rows]).any())


def was_going_on(recording: Recording) -> bool:
    """Whether every rank made its last call shortly before its dump, as while it trains."""
    rank = recording.comm.ints("rank")
    order = np.lexsort((recording.comm.ints("record"), rank))
    newest = order[np.flatnonzero(np.diff(rank[order], append=-1))]
    everybody = newest.size == len(recording.recorded)
    return everybody and _is_recent(
        recording, newest, recording.comm.ints("enqueue_ns"), LEAST_AGE_NS
    )


def _is_recent(recording: Recording, rows: Ints, begun_ns: Ints, least_ns: int) -> bool:
    """Whether every dump was written at most one ordinary pause after what began in these rows."""
    comm = recording.comm
    written = comm.ints("dumped_ns")[rows]
    if (written == NULL).any():
        return False
    age = written - begun_ns[rows]
    ranks, place = np.unique(comm.ints("rank")[rows], return_inverse=True)
    limit = np.array([max(_pause_ns(recording, int(rank)), least_ns) for rank in ranks])[place]
    return bool(((age >= -CLOCK_NS) & (age <= limit)).all())


def until_ns(recording: Recording, one: Blocked) -> int:
    """Until when a wait is known to have lasted: its first dump, if the file times are usable."""
    comm, rows = recording.comm, np.array(one.rows, np.int64)
    written = int(comm.ints("dumped_ns")[rows].min())
    newest = int(comm.ints("enqueue_ns").max())
    return written if newest <= written <= one.since_ns + COPIED_NS else newest


def _pause_ns(recording: Recording, rank: int) -> float:
    """The longest ordinary time between two calls of this rank; the first half is warm-up."""
    comm = recording.comm
    times = np.sort(comm.ints("enqueue_ns")[comm.ints("rank") == rank])
    gaps = np.diff(times[times.size // 2 :])
    return LONGER_PAUSE * float(gaps.max(initial=0))

"""Maps NCCL's communicators to process groups, and makes rows of their operators and requests.

The plugin names a communicator `nccl-<hash> <rank>/<ranks> <name>`: this process's rank in it, its
size, and the script's name for it, if any. Its members are found among the groups that the Python
producer of the process reports: a group of the same size with this rank at the same position. Pairs
of ranks are ambiguous (torch creates such communicators for single sends), so for them the name
decides, or else the calls that their operators follow (`places`). As long as the members are
ambiguous, nothing is guessed: peers of operators are unknown, and network requests are counted as
lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.processor.operators.launches import Operator
from stepscope.processor.records.normalise import Records, Rows, Translation
from stepscope.trace.names import NO_PEER, UNKNOWN_PEER
from stepscope.window import Ints
from stepscope.wire.frames import GroupInfo
from stepscope.wire.records import (
    ALGORITHM_SHIFT,
    ALGORITHMS,
    DTYPE_SHIFT,
    DTYPES,
    PROTOCOL_SHIFT,
    PROTOCOLS,
    UNKNOWN,
)

_NAMED = re.compile(r"(nccl-[0-9a-f]{16}) ([0-9]{1,9})/([0-9]{1,9}) (.*)")
_NAME_LETTERS = 12
"""Length of torch's group names in ids, as collect.hooks.groups truncates them."""
PAIR = 2


@dataclass(frozen=True)
class Communicator:
    """A communicator as one of its members names it."""

    id: str
    rank: int
    """The member's rank in the communicator."""
    size: int
    name: str

    @property
    def text(self) -> str:
        return f"{self.id} {self.rank}/{self.size} {self.name}"


def parse(text: str | None) -> Communicator | None:
    found = _NAMED.fullmatch(text or "")
    if found is None:
        return None
    id, rank, size, name = found.groups()
    return Communicator(id, int(rank), int(size), name)


def _nowhere(_name: str) -> None:
    """Without operators, nothing is known."""


@dataclass(frozen=True)
class Place:
    """Where a communicator belongs: a process group, and its members in the communicator's order.
    Those of a pair for single sends are two of the group's."""

    group: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Members:
    """The members of the communicators of a process."""

    names: Mapping[int, str]
    rank: int
    world_size: int
    groups: Collection[GroupInfo] | None
    """The groups that Python reported; None if there is no Python producer."""
    placed: Callable[[str], Place | None] = _nowhere
    """What operators have shown of ambiguous communicators, by their names."""
    _known: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    def ranks(self, id: int) -> tuple[int, ...] | None:
        """The job's ranks of a communicator in its own order; None if they are ambiguous."""
        return self._ranks(parse(self.names.get(id)))

    def _ranks(self, one: Communicator | None) -> tuple[int, ...] | None:
        if one is None:
            return None
        if self.groups is None:
            return whole_job(one, self.rank, self.world_size)
        different = {group.ranks for group in self._candidates(one)}
        if len(different) == 1:
            return different.pop()
        place = self.placed(one.text)
        return None if place is None else place.ranks

    def place(self, name: str) -> Place | None:
        """Where a communicator belongs; None if it is ambiguous."""
        one = parse(name)
        found = [] if one is None else self._candidates(one)
        if len(found) == 1:
            return Place(found[0].id, found[0].ranks)
        return self.placed(name)

    def possible(self, name: str) -> list[GroupInfo]:
        """The process groups that an ambiguous communicator may belong to."""
        one = parse(name)
        if one is None or len(self._candidates(one)) == 1:
            return []
        groups = [g for g in self.groups or () if self._fits(one, g) or _sends_within(one, g)]
        return _called(one, groups) or groups

    def _candidates(self, one: Communicator) -> list[GroupInfo]:
        fits = [group for group in self.groups or () if self._fits(one, group)]
        named = _called(one, fits)
        if not named and one.size == PAIR != self.world_size:
            return []
        return named or fits

    def _fits(self, one: Communicator, group: GroupInfo) -> bool:
        same_size = len(group.ranks) == one.size and one.rank < one.size
        return same_size and group.ranks[one.rank] == self.rank

    def peer(self, name: str, peer: int) -> int:
        """Translates a rank of the communicator of this name into a rank of the job."""
        if peer == NO_PEER:
            return NO_PEER
        if name not in self._known:
            self._known[name] = self._ranks(parse(name)) or ()
        ranks = self._known[name]
        return ranks[peer] if 0 <= peer < len(ranks) else UNKNOWN_PEER

    def peers(self, ids: Ints, peers: Ints) -> Ints:
        """Translates ranks of communicators into ranks of the job; UNKNOWN_PEER if ambiguous."""
        out = np.full(len(ids), UNKNOWN_PEER, np.int64)
        for id in np.unique(ids).tolist():
            ranks, chosen = np.array(self.ranks(id) or (), np.int64), ids == id
            known = chosen & (peers >= 0) & (peers < len(ranks))
            out[known] = ranks[peers[known]]
        return out


def _called(one: Communicator, groups: Iterable[GroupInfo]) -> list[GroupInfo]:
    """The groups of this name. Torch puts the description of a group and a colon before it."""
    name = one.name.rpartition(":")[2][:_NAME_LETTERS]
    return [group for group in groups if name and group.id.endswith(f"-{name}")]


def _sends_within(one: Communicator, group: GroupInfo) -> bool:
    """Whether it may be a pair that torch made for single sends within a larger group."""
    return one.size == PAIR < len(group.ranks)


def whole_job(one: Communicator, rank: int, world_size: int) -> tuple[int, ...] | None:
    """All ranks, if a communicator has all of them in the job's order."""
    is_all = one.size == world_size and one.rank == rank
    return tuple(range(world_size)) if is_all else None


def operators(some: Sequence[Operator], steps: Ints, to: Translation, members: Members) -> Rows:
    """Rows of `comm_ops` for operators that only NCCL's plugin reported. One without an end was
    enqueued; whether and when it finished is unknown."""
    spans = [op.span for op in some]
    known = {op.communicator: parse(op.communicator) for op in some}
    names = {text: None if one is None else one.id for text, one in known.items()}
    return {
        "rank": np.full(len(some), to.rank, np.int32),
        "step": steps,
        "group": [names[op.communicator] for op in some],
        "seq": [op.seq for op in some],
        "op": [op.op for op in some],
        "peer": [members.peer(op.communicator, op.peer) for op in some],
        "bytes": [_known(op.size, 0) for op in some],
        "enqueue_ns": [op.enqueue_ns + to.offset_ns for op in some],
        "start_ns": [_known(start_ns, to.offset_ns) for start_ns, _ in spans],
        "end_ns": [_known(end_ns, to.offset_ns) for _, end_ns in spans],
        "state": ["done"] * len(some),
        **details(np.array([op.flags for op in some], np.int64)),
    }


def details(flags: Ints) -> dict[str, list[str | None]]:
    """Algorithm, protocol and dtype of operators from their records' flags; 0 is unknown."""
    return {
        "algorithm": _words(flags >> ALGORITHM_SHIFT & 15, ALGORITHMS),
        "protocol": _words(flags >> PROTOCOL_SHIFT & 3, PROTOCOLS),
        "dtype": _words(flags >> DTYPE_SHIFT & 15, DTYPES),
    }


def requests(records: Records, to: Translation, members: Members) -> Rows:
    """Rows of `transfers`; requests with an ambiguous peer have UNKNOWN_PEER."""
    field = records["field"]
    return {
        "rank": np.full(len(records), to.rank, np.int32),
        "nic": to.strings(field[:, 0]),
        "peer": members.peers(records["flags"].astype(np.int64), field[:, 1]).astype(np.int32),
        "start_ns": to.wall(field[:, 2]),
        "end_ns": to.wall(field[:, 3]),
        "bytes": field[:, 4].copy(),
        "posted": field[:, 5].copy(),
        "completed": field[:, 6].copy(),
    }


def _known(value: int, offset: int) -> int | None:
    return None if value == UNKNOWN else value + offset


def _words(codes: Ints, words: tuple[str | None, ...]) -> list[str | None]:
    return [words[code] if code < len(words) else None for code in codes.tolist()]

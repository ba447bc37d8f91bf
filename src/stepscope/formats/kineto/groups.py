"""The process groups of a job, from the traces of its ranks.

A group is known by its name, by its members, or by a place among them: `pg_config` in a trace's
metadata lists the groups of a process, and completes what a call says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from stepscope.formats.kineto.calls import P2P, Call, Group
from stepscope.trace import ProcessGroup
from stepscope.trace.kinds import kind_of_words
from stepscope.window import NULL, Ints, distinct

DEFAULT = ProcessGroup("dp-0", "dp", ())
"""The contract's single group of a job with unknown groups."""
SENDS = ProcessGroup("other-p2p", "other", ())
"""Of sends and receives whose group is unknown: their two ranks say more than their streams."""
_NAME_LENGTH = 12
"""Characters of torch's group name in an id; those of a DeviceMesh are hashes."""


@dataclass(frozen=True)
class Known:
    """What the trace records about its job."""

    rank: int | None
    world_size: int
    groups: tuple[Group, ...]
    """In order of creation."""

    def group_of(self, call: Call) -> Group | None:
        """The group of a call: what it says itself, completed by the configured groups."""
        fitting = [group for group in self.groups if self._fits(group, call)]
        if call.group is not None:
            return call.group.completed(fitting[0]) if fitting else call.group
        distinguished = call.pair is not None or call.members != NULL
        return fitting[0] if distinguished and len(fitting) == 1 else None

    def _fits(self, group: Group, call: Call) -> bool:
        """Whether a configured group may be that of a call."""
        if group.ranks and call.members not in (NULL, len(group.ranks)):
            return False
        if call.group is not None and call.group.name:
            return call.group.name == group.name
        if call.group is not None:
            return call.group.ranks == group.ranks
        return call.pair is None or self._has_place(group.ranks, call.pair)

    def _has_place(self, ranks: Sequence[int], pair: tuple[int, int]) -> bool:
        """Whether this rank has the first place among these, and another the second."""
        own, other = pair
        return own != other and max(pair) < len(ranks) and self.rank in (None, ranks[own])

    def peer_of(self, call: Call, group: ProcessGroup | None) -> int:
        """The rank that a send or receive is with; NULL if unknown."""
        if call.peer >= 0 or group is None:
            return call.peer
        ranks = group.ranks or (range(self.world_size) if group.kind == "world" else ())
        if call.pair is not None:
            return ranks[call.pair[1]] if self._has_place(ranks, call.pair) else NULL
        if len(ranks) == 2 and self.rank in ranks:  # nobody else is there
            return ranks[0] + ranks[1] - (self.rank or 0)
        return ranks[call.third] if 0 <= call.third < len(ranks) else NULL


def process_group(group: Group, world_size: int) -> ProcessGroup:
    """The group as the job has it: `<kind>-<torch's name>`."""
    whole = 0 < world_size == len(group.ranks) or group.words == "default_pg"
    kind = "world" if whole else kind_of_words(group.words) or "other"
    name = group.name[:_NAME_LENGTH] if group.name else _name_of(group.ranks)
    return ProcessGroup(f"{kind}-{name}", kind, group.ranks)


def _name_of(ranks: Sequence[int]) -> str:
    """The same name on all members, which have nothing else in common: no name was recorded."""
    return f"{crc32(repr(tuple(ranks)).encode()):08x}"


def groups_of(
    calls: Sequence[Call], known: Known, streams: Ints, counted_ns: Ints
) -> tuple[list[ProcessGroup | None], bool]:
    """The group of each operator, and whether some were guessed.

    Torch has a stream for each group, so an operator of which no call was recorded has the group of
    its stream. Where groups were not recorded at all, there is one for each stream. Streams below
    zero have operators that no process group executes: none of the groups need be theirs.
    """
    said = _said(calls, known)
    by_stream = dict(_of_streams(said, streams))
    found = [group or by_stream.get(stream)
             for group, stream in zip(said, streams.tolist(), strict=True)]  # fmt: skip
    silent = np.array([group is None for group in found], np.bool_)
    if by_stream:
        silent &= counted_ns != NULL  # what belongs to no step needs no group
    foreign, alone = streams < 0, _only_group(known)
    guessed = alone is None and distinct(streams[silent & ~foreign]).size > 1
    sends = np.array([guessed and call.op in P2P for call in calls], np.bool_)
    named = [SENDS if unknown else group
             for group, unknown in zip(found, (silent & sends).tolist(), strict=True)]  # fmt: skip
    silent &= ~sends
    others = {
        stream: ProcessGroup(f"other-stream{at}", "other", ()) if guessed or stream < 0
        else alone or DEFAULT for at, stream in enumerate(distinct(streams[silent]).tolist())
    }  # fmt: skip
    rows = zip(named, streams.tolist(), silent.tolist(), strict=True)
    groups = [others[stream] if unknown else group for group, stream, unknown in rows]
    return groups, bool((silent & (foreign | guessed)).any())


def _said(calls: Sequence[Call], known: Known) -> list[ProcessGroup | None]:
    different = {id(call): call for call in calls}
    made = {key: _made(known.group_of(call), known) for key, call in different.items()}
    return [made[id(call)] for call in calls]


def _made(group: Group | None, known: Known) -> ProcessGroup | None:
    return None if group is None else process_group(group, known.world_size)


def _of_streams(
    groups: Sequence[ProcessGroup | None], streams: Ints
) -> Iterator[tuple[int, ProcessGroup]]:
    """The streams on which all known groups are the same one."""
    seen: dict[int, set[ProcessGroup]] = {}
    for group, stream in zip(groups, streams.tolist(), strict=True):
        if group is not None:
            seen.setdefault(stream, set()).add(group)
    for stream, some in seen.items():
        if len(some) == 1:
            yield stream, next(iter(some))


def _only_group(known: Known) -> ProcessGroup | None:
    if len(known.groups) != 1:
        return None
    return process_group(known.groups[0], known.world_size)


def with_peers(
    calls: Sequence[Call], groups: Sequence[ProcessGroup | None], known: Known
) -> list[Call]:
    """Sets the ranks that sends and receives are with."""
    made: dict[tuple[int, int], Call] = {}
    found = []
    for call, group in zip(calls, groups, strict=True):
        key = (id(call), id(group))
        if key not in made:
            made[key] = replace(call, peer=known.peer_of(call, group))
        found.append(made[key])
    return found


def unique_ids(groups: Iterable[ProcessGroup]) -> dict[ProcessGroup, str]:
    """A unique id for every group: torch's names may repeat in other processes."""
    members: dict[str, set[tuple[int, ...]]] = {}
    for group in dict.fromkeys(groups):
        members.setdefault(group.id, set()).add(group.ranks)
    alone = {id for id, ranks in members.items() if len(ranks - {()}) < 2}
    return {group: group.id if group.id in alone or not group.ranks
            else f"{group.id}@{min(group.ranks)}" for group in dict.fromkeys(groups)}  # fmt: skip

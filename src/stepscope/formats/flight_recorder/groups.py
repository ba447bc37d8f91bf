"""Finds the process groups of a job, their members and their kinds.

NCCL dumps list the members of every group. Gloo dumps before PyTorch 2.14 list none; then the
members are the ranks with entries of that name. Names are not unique: after `split_group`, two
groups of different ranks may share one, so a group is identified by its name and members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepscope.formats.flight_recorder.dump import Dump, Tensors
from stepscope.formats.limits import MOST_RANKS
from stepscope.trace import ProcessGroup
from stepscope.trace.kinds import kind_of_words

WORLD = "default_pg"
"""Torch's name of the group of all ranks."""
NAME_LENGTH = 12
"""Characters of torch's name in an id, as in collected jobs; hashes are longer."""


@dataclass(frozen=True)
class Groups:
    """All groups, and the group of each name on each rank."""

    groups: tuple[ProcessGroup, ...]
    world_size: int
    by_name: Mapping[tuple[int, str], ProcessGroup]


def find_groups(dumps: Mapping[int, Dump]) -> Groups:
    """The groups of a job from the dumps of its ranks."""
    declared = {rank: _declared(rank, dump) for rank, dump in dumps.items()}
    world = _world_size(dumps)
    users = _users(dumps)
    keys: dict[tuple[str, tuple[int, ...]], str] = {}
    means: dict[tuple[int, str], tuple[str, tuple[int, ...]]] = {}
    for rank in sorted(dumps):
        for name, desc in _named(dumps[rank], declared[rank]).items():
            ranks = declared[rank].get(name, ("", ()))[1] or _inferred(name, desc, users, world)
            keys.setdefault((name, ranks), desc)
            means[rank, name] = name, ranks
    made = _made(keys, world)
    by_name = {place: made[key] for place, key in means.items()}
    return Groups(tuple(made[key] for key in keys), world, by_name)


def _declared(rank: int, dump: Dump) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The plausible groups in a dump: a rank lists only groups that it is in."""
    return {name: (desc, ranks) for name, (desc, ranks) in dump.groups.items()
            if name and rank in ranks and max(ranks) < MOST_RANKS}  # fmt: skip


def _named(dump: Dump, declared: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, str]:
    """Every group in the dump, with its description."""
    names = {name: desc for name, (desc, _) in declared.items()}
    for entry in dump.entries:
        if not names.get(entry.group):
            names[entry.group] = entry.desc
    return names


def _users(dumps: Mapping[int, Dump]) -> dict[str, set[int]]:
    """The ranks with entries of each group name."""
    users: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for name in {entry.group for entry in dump.entries}:
            users.setdefault(name, set()).add(rank)
    return users


def _inferred(name: str, desc: str, users: Mapping[str, set[int]], world: int) -> tuple[int, ...]:
    return tuple(range(world)) if desc == WORLD else tuple(sorted(users.get(name, ())))


def _world_size(dumps: Mapping[int, Dump]) -> int:
    """The world size, from the largest rank mentioned or from sizes of gathered tensors."""
    highest = max(dumps, default=-1)
    for dump in dumps.values():
        for _, ranks in dump.groups.values():  # also those without a name, as gloo's
            highest = max(highest, *(rank for rank in ranks if rank < MOST_RANKS), -1)
    gathered = (_gathered(dump) for dump in dumps.values())
    return max(highest + 1, max(gathered, default=0))


def _gathered(dump: Dump) -> int:
    """The size of the world group from the sizes of gathered or scattered tensors."""
    pairs = {_sides(entry.op, entry.given, entry.taken) for entry in dump.entries
             if entry.desc == WORLD and entry.op in ("AllGather", "ReduceScatter")}  # fmt: skip
    sizes = {whole // part for part, whole in pairs if part > 0 and whole % part == 0}
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if size < MOST_RANKS else 0


def _sides(op: str | None, given: Tensors, taken: Tensors) -> tuple[int, int]:
    if op == "AllGather":
        return given.numel, taken.numel
    return taken.numel, given.numel


def _made(
    keys: Mapping[tuple[str, tuple[int, ...]], str], world: int
) -> dict[tuple[str, tuple[int, ...]], ProcessGroup]:
    taken: set[str] = set()
    made: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
    for (name, ranks), desc in keys.items():
        kind = _kind(desc, ranks, world)
        id = f"{kind}-{name[:NAME_LENGTH]}"
        if id in taken:
            id = next(_further(id, ranks, taken))
        taken.add(id)
        made[name, ranks] = ProcessGroup(id, kind, ranks)
    return made


def _further(id: str, ranks: tuple[int, ...], taken: set[str]) -> Iterator[str]:
    first = f"{id}-{min(ranks, default=0)}"
    yield from (one for number in range(len(taken) + 2)
                if (one := f"{first}.{number}" if number else first) not in taken)  # fmt: skip


def _kind(desc: str, ranks: tuple[int, ...], world: int) -> str:
    if desc == WORLD:
        return "world"
    kind = kind_of_words(desc)
    if kind is not None:
        return kind
    return "world" if len(ranks) == world else "other"

"""The process groups of a job, from the traces of its ranks."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.formats.kineto.calls import Group
from stepscope.trace import ProcessGroup
from stepscope.trace.kinds import kind_of_words

DEFAULT = ProcessGroup("dp-0", "dp", ())
"""The contract's single group of a job with unknown groups."""
_NAME_LENGTH = 12
"""Characters of torch's group name in an id; those of a DeviceMesh are hashes."""


def process_group(group: Group, world_size: int) -> ProcessGroup:
    """The group as the job has it: `<kind>-<torch's name>`."""
    whole = 0 < world_size == len(group.ranks) or group.words == "default_pg"
    kind = "world" if whole else kind_of_words(group.words) or "other"
    return ProcessGroup(f"{kind}-{group.name[:_NAME_LENGTH]}", kind, group.ranks)


def unique_ids(groups: Iterable[ProcessGroup]) -> dict[ProcessGroup, str]:
    """A unique id for every group: torch's names may repeat in other processes."""
    members: dict[str, set[tuple[int, ...]]] = {}
    for group in dict.fromkeys(groups):
        members.setdefault(group.id, set()).add(group.ranks)
    alone = {id for id, ranks in members.items() if len(ranks - {()}) < 2}
    return {group: group.id if group.id in alone or not group.ranks
            else f"{group.id}@{min(group.ranks)}" for group in dict.fromkeys(groups)}  # fmt: skip

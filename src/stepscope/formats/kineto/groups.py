"""Process groups of a job, from what each rank's trace says of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope.formats.kineto.calls import Group
from stepscope.trace import ProcessGroup

DEFAULT = ProcessGroup("dp-0", "dp", ())
"""The contract's one group of a job whose groups are unknown."""
_NAME_LENGTH = 12
"""Of torch's group name in an id: a DeviceMesh's are hashes."""
_KIND_WORDS = (
    (r"expert.*data|edp", "edp"),
    (r"expert_tensor|etp", "tp"),
    (r"embedding", "embedding"),
    (r"(?:^|_|\b)(?:tp|tensor)", "tp"),
    (r"(?:^|_|\b)(?:pp|pipe)", "pp"),
    (r"(?:^|_|\b)(?:cp|context|sp|sequence)", "cp"),
    (r"(?:^|_|\b)(?:ep|expert)", "ep"),
    (r"(?:^|_|\b)(?:dp|data|fsdp|ddp|hsdp|replicate|shard)", "dp"),
    (r"(?:^|_|\b)(?:mp|model)", "mp"),
)
"""What DeviceMesh, Megatron and DeepSpeed call their groups; the earliest word counts."""


def process_group(group: Group, world_size: int) -> ProcessGroup:
    """The group as the job has it: `<kind>-<torch's name>`."""
    whole = 0 < world_size == len(group.ranks) or group.words == "default_pg"
    kind = "world" if whole else kind_of_words(group.words) or "other"
    return ProcessGroup(f"{kind}-{group.name[:_NAME_LENGTH]}", kind, group.ranks)


def kind_of_words(words: str) -> str | None:
    """The kind of group that a description speaks of, if any."""
    found = [(match.start(), at, kind) for at, (pattern, kind) in enumerate(_KIND_WORDS)
             if (match := re.search(pattern, words.lower()))]  # fmt: skip
    return min(found)[2] if found else None


def told_apart(groups: Iterable[ProcessGroup]) -> dict[ProcessGroup, str]:
    """An id for every group that was seen: torch's names may repeat in other processes."""
    members: dict[str, set[tuple[int, ...]]] = {}
    for group in dict.fromkeys(groups):
        members.setdefault(group.id, set()).add(group.ranks)
    alone = {id for id, ranks in members.items() if len(ranks - {()}) < 2}
    return {group: group.id if group.id in alone or not group.ranks
            else f"{group.id}@{min(group.ranks)}" for group in dict.fromkeys(groups)}  # fmt: skip

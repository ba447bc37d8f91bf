"""Process groups and their kinds, from torch's groups, `DeviceMesh` and Megatron-core.

A group is announced when its first operator runs. Its kind comes from a `DeviceMesh` dimension,
else from Megatron's `parallel_state`, else from the group's own description; otherwise it is the
world or `other`. Ids are `<kind>-<torch's group name>`, so that all members get the same one
without communication.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.session import Session
from stepscope.trace.kinds import kind_of_words
from stepscope.wire.frames import GroupInfo

_SIZED = ("tp", "pp", "dp", "cp", "ep")
"""Dimensions of a job: all groups of such a kind have the same size."""
_MEGATRON_GROUPS = {
    "get_tensor_model_parallel_group": "tp",
    "get_pipeline_model_parallel_group": "pp",
    "get_data_parallel_group": "dp",
    "get_context_parallel_group": "cp",
    "get_expert_model_parallel_group": "ep",
    "get_expert_data_parallel_group": "edp",
    "get_embedding_group": "embedding",
    "get_model_parallel_group": "mp",
}


class GroupRegistry:
    """Turns torch's group objects into `GroupInfo`, and looks at each only once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.known: dict[str, GroupInfo] = {}
        """Announced groups, by torch's names."""
        self._kinds: dict[str, str] = {}
        self._in_use = _groups_of_torch()

    def sole(self) -> str | None:
        """Torch's name of the group, if this process has only one: the group object need not be
        asked then, which takes 40 µs during training."""
        if len(self._in_use) != 1:
            return None
        name = next(iter(self._in_use.values()))
        return name if name in self.known else None

    def name(self, group: Any) -> str:
        """Torch's name of a group, which is announced the first time."""
        name: str = group.group_name
        if name not in self.known:
            info = self.known[name] = self._describe(group, name)
            self._session.add_group(info)
        return name

    def find(self, name: str) -> bool:
        """Announces the group that has this name in torch; False if it no longer exists."""
        if name not in self.known:
            group = next((one for one, known in list(self._in_use.items()) if known == name), None)
            if group is None:
                return False
            self.name(group)
        return True

    @guarded
    def mesh_made(self, mesh: Any) -> None:
        """Remembers the groups of the dimensions of a new `DeviceMesh`, and their sizes.

        The sizes of a flattened or sliced mesh are products or parts of those of its root.
        """
        root = getattr(mesh, "_get_root_mesh", lambda: mesh)()
        sizes: dict[str, int] = {}
        for dim, word in enumerate(mesh.mesh_dim_names or ()):
            kind = kind_of_words(word)
            if kind is not None:
                sizes[kind] = sizes.get(kind, 1) * int(mesh.mesh.shape[dim])
                self._kinds[mesh.get_group(dim).group_name] = kind
        if sizes and root is mesh:
            self._session.add_parallelism(sizes)

    def _describe(self, group: Any, name: str) -> GroupInfo:
        import torch.distributed as dist

        ranks = tuple(int(rank) for rank in dist.get_process_group_ranks(group))
        kind = self._kinds.get(name) or self._of_megatron(name, len(ranks))
        if kind is None and len(ranks) == dist.get_world_size():
            kind = "world"
        if kind is None:
            kind = kind_of_words(getattr(group, "group_desc", "") or "") or "other"
        return GroupInfo(f"{kind}-{name[:12]}", kind, ranks)

    def _of_megatron(self, name: str, size: int) -> str | None:
        kind = self._megatron_kind(name)
        if kind in _SIZED:
            self._session.add_parallelism({kind: size})
        return kind

    def _megatron_kind(self, name: str) -> str | None:
        state = sys.modules.get("megatron.core.parallel_state")
        for getter, kind in _MEGATRON_GROUPS.items():
            try:
                group = getattr(state, getter)()
            except Exception:  # noqa: BLE001 - not initialised, or not in this version
                continue
            if getattr(group, "group_name", None) == name:
                return kind
        return None


def _groups_of_torch() -> Mapping[Any, str]:
    """All groups, from torch's own records; empty if it has none."""
    books = sys.modules.get("torch.distributed.distributed_c10d")
    found: Mapping[Any, str] = getattr(books, "_pg_names", {})
    return found


def install(registry: GroupRegistry) -> None:
    from torch.distributed.device_mesh import DeviceMesh

    original = DeviceMesh.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if kwargs.get("_init_backend", True):  # a slice has only the groups of its root
            registry.mesh_made(self)

    DeviceMesh.__init__ = __init__


def rank_and_world() -> tuple[int, int] | None:
    """Rank and world size of this process, once torch.distributed is initialised."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return int(dist.get_rank()), int(dist.get_world_size())

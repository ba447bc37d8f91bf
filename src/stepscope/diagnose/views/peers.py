"""Peers: which ranks are compared. Only ranks in the same parallel role do equal work (ARGUS,
table 3), and only those that run the same program (`roles`); in pipelines stages tell that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.diagnose.numeric.linked import connected
from stepscope.diagnose.views.roles import with_roles
from stepscope.window import Ints, Window

EQUAL_WORK = ("dp", "edp", "world", "other", "tp", "mp", "cp")
"""Groups whose members do the same work, in order of preference: replicas, then shards of a
layer."""
EXPERT_WORK = ("ep", "edp", *EQUAL_WORK)
EXPERT_WORDS = ("moe", "expert")


def is_expert(phase: str | None) -> bool:
    """Whether the phase is the work of MoE experts, which is unequal by design."""
    return phase is not None and any(word in phase for word in EXPERT_WORDS)


def has_experts(window: Window) -> bool:
    """Whether the model has experts that are spread over ranks, also where nobody listed these."""
    job = window.job
    return bool(job.groups_of_kind("ep")) or job.parallelism.get("ep", 1) > 1


def comparison_groups(window: Window, phase: str | None) -> list[Ints]:
    """Groups of ranks that are peers in a phase, as grid rows (indices of `window.ranks`)."""
    staged = any(len(group.ranks) > 1 for group in window.job.groups_of_kind("pp"))
    declared = _declared(window, phase, staged)
    return declared if staged else with_roles(window, declared)


def _declared(window: Window, phase: str | None, staged: bool) -> list[Ints]:
    """The same by process groups alone."""
    at = {rank: row for row, rank in enumerate(window.ranks)}
    for kind in EXPERT_WORK if is_expert(phase) else EQUAL_WORK:
        if kind == "world" and staged:
            continue
        members = [g.ranks for g in window.groups if g.kind == kind]
        groups = disjoint([[at[rank] for rank in ranks if rank in at] for ranks in members])
        if groups:
            return _islands(window, groups, at)
    return [] if staged or len(at) < 2 else [np.arange(len(at))]


def _islands(window: Window, groups: list[Ints], at: Mapping[int, int]) -> list[Ints]:
    """The groups, or all of their ranks together if some group joins them in a job that splits no
    model: islands of replicas that are averaged now and then do equal work."""
    split = window.job.groups_of_kind(*ONE_MODEL, "ep", "edp")
    joining = [{at[rank] for rank in one.ranks if rank in at} for one in window.job.groups]
    everybody = np.unique(np.concatenate(groups))
    if split or len(groups) < 2 or not any(one.issuperset(everybody) for one in joining):
        return groups
    return [everybody]


ONE_MODEL = ("tp", "cp", "pp", "mp", "embedding")
"""Groups within one replica of the model; each replica works on its own samples."""


def replicas(window: Window) -> list[frozenset[int]]:
    """The ranks of each replica of the model; each rank is a replica if the model is not split."""
    within, known = window.job.groups_of_kind(*ONE_MODEL), set(window.ranks)
    members = [[rank for rank in group.ranks if rank in known] for group in within]
    return [frozenset(part) for part in connected([*zip(window.ranks), *members])]


def stage_numbers(window: Window, ranks: Ints) -> Ints:
    """The pipeline stage of each of these ranks; 0 of one that has none."""
    stage = window.job.stage_by_rank
    return np.array([stage.get(int(rank), 0) for rank in ranks], np.int64)


def across_stages(window: Window) -> frozenset[str]:
    """Groups whose members are in several pipeline stages, and so do unequal work."""
    stage = window.job.stage_by_rank
    return frozenset(
        group.id for group in window.groups
        if len({stage.get(rank, 0) for rank in group.ranks}) > 1
    )  # fmt: skip


def disjoint(groups: Sequence[Sequence[int]]) -> list[Ints]:
    """The groups of at least two ranks that share no rank with a larger one, the largest first."""
    taken: set[int] = set()
    chosen: list[Ints] = []
    for group in sorted(groups, key=len, reverse=True):
        fresh = sorted(set(group))
        if len(fresh) > 1 and taken.isdisjoint(fresh):
            taken.update(fresh)
            chosen.append(np.array(fresh, np.int64))
    return chosen

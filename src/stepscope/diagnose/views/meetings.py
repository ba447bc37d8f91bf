"""Which ranks leave communication together, and how late each rank begins a step.

Waiting that nobody marked can be inferred only among ranks that wait for each other: all ranks, or
in a pipeline those of one stage, and within them each kind of group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.linked import connected
from stepscope.diagnose.prepare.communication import group_kind
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.peers import across_stages, disjoint
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.window import NULL, Floats, Ints, Window

KINDS = (*WITHIN_PASSES, "dp", "edp", "other")
"""Kinds of groups whose members run the same program, so that they meet within the same phases."""


@dataclass(frozen=True)
class Meeting:
    """Groups of one kind, as rows of the grid; members of a group leave together."""

    kind: str
    groups: tuple[Ints, ...]


def meetings(window: Window) -> list[Meeting]:
    """The ways in which ranks may wait for each other, the widest first."""
    staged, apart = is_staged(window), across_stages(window)
    kinds = {kind: disjoint(_members(window, kind, apart)) for kind in KINDS}
    everybody = [np.arange(len(window.ranks))]
    widest = _components(one for groups in kinds.values() for one in groups)
    found = [Meeting("world", tuple(widest if staged else everybody))]
    for kind, groups in kinds.items():
        if _named(groups) not in {_named(one.groups) for one in found}:
            found.append(Meeting(kind, tuple(groups)))
    return [one for one in found if one.groups]


def levelled_by(phase: str, ways: Sequence[Meeting]) -> Meeting | None:
    """The ranks that a communication phase, by its name, brings level; None if unknown."""
    if len(ways) == 1:
        return ways[0]
    kind = group_kind(phase)
    return next((one for one in ways if one.kind == kind), None)


def leaving_together(late: Floats, apart_ns: float) -> list[Meeting]:
    """Groups that nobody listed: ranks that are equally late after a phase, step by step. None
    where all ranks are.

    Args:
        late: by how much each rank is late when it leaves, `[rank, step]` in ns.
        apart_ns: ranks that differ by more do not leave together.
    """
    if not late.size:
        return []
    order = late[:, np.ptp(late, axis=0).argmax()].argsort(kind="stable")
    differ = np.median(np.abs(np.diff(late[order], axis=0)), axis=1) > apart_ns
    groups = [np.sort(rows) for rows in np.split(order, np.flatnonzero(differ) + 1)]
    groups = [rows for rows in groups if 1 < len(rows) < len(late)]
    return [Meeting("unlisted", tuple(groups))] if groups else []


def joined(ways: Iterable[Meeting]) -> list[Ints]:
    """Ranks that wait for each other in any of these groups, also by way of others."""
    return _components(group for one in ways for group in one.groups)


def late_starts(window: Window, line: Timeline) -> list[Floats]:
    """By how much each rank may begin each step late, `[rank, step]` in ns: by the clocks of all
    ranks, and by those of its host alone."""
    known = line.start_ns != NULL
    if not known.any():
        return []
    start = np.where(known, line.start_ns - line.start_ns[known].min(), np.nan)
    host = start.copy()
    at = {rank: row for row, rank in enumerate(window.ranks)}
    for one in window.job.hosts:
        rows = [at[rank] for rank in one.ranks if rank in at]
        if rows:
            host[rows] -= np.nanmin(np.where(known[rows], start[rows], np.inf), axis=0)
    return [np.nan_to_num(start - stats.column_median(start)), np.nan_to_num(host)]


def _members(window: Window, kind: str, without: frozenset[str]) -> list[list[int]]:
    """The rows of the recorded members of each group of a kind."""
    at = {rank: row for row, rank in enumerate(window.ranks)}
    groups = (group for group in window.groups if group.kind == kind and group.id not in without)
    return [[at[rank] for rank in group.ranks if rank in at] for group in groups]


def _components(groups: Iterable[Ints]) -> list[Ints]:
    """The ranks that groups connect; sets of one rank are left out."""
    parts = connected(group.tolist() for group in groups)
    return [np.array(part) for part in parts if len(part) > 1]


def _named(groups: Iterable[Ints]) -> frozenset[tuple[int, ...]]:
    return frozenset(tuple(sorted(group.tolist())) for group in groups)

"""Small jobs in which ranks of any group meet within phases, and nobody marks the waiting.

A program is a list of phases; a phase is a list of pieces: own work in ms, and the kind of group
whose members meet after it. All members of a group leave a meeting together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window

from .jobs import MS, START, a_table

BETWEEN_MS = 0.02
"""Time between two phases."""

Piece = tuple[float, str | None]


@dataclass(frozen=True)
class Named:
    """A phase of the program; without a name its time is in no phase."""

    name: str | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Slower:
    """A rank takes longer for the first piece of a phase from a step on."""

    rank: int
    phase: str
    ms: float
    since: int = 0


def phase(name: str | None, *pieces: Piece) -> Named:
    return Named(name, pieces)


def a_job_that_meets(
    program: Sequence[Named],
    groups: Sequence[ProcessGroup],
    ranks: int,
    steps: int = 100,
    faults: Sequence[Slower] = (),
    noise: float = 0.03,
    seed: int = 0,
) -> Window:
    """Plays the program; all ranks form the group `world`, whether it is listed or not."""
    random = np.random.default_rng(seed)
    members = _members(groups, ranks)
    clock = np.full(ranks, float(START))
    rows: list[tuple[object, ...]] = []
    begun: list[tuple[object, ...]] = []
    for step in range(steps):
        before = clock.copy()
        for one in program:
            clock = clock + BETWEEN_MS * MS
            start = clock.copy()
            for at, (work, meets) in enumerate(one.pieces):
                own = work * MS * np.exp(random.normal(scale=noise, size=ranks))
                for fault in faults:
                    if fault.phase == one.name and at == 0 and step >= fault.since:
                        own[fault.rank] += fault.ms * MS
                clock = _meet(clock + own, members, meets)
            if one.name is not None:
                rows += [(rank, step, one.name, int(start[rank]), int(clock[rank] - start[rank]))
                         for rank in range(ranks)]  # fmt: skip
        begun += [(rank, step, int(before[rank]), int(clock[rank] - before[rank]))
                  for rank in range(ranks)]  # fmt: skip
    hosts = tuple(Host(f"h{at}", tuple(range(at, min(at + 4, ranks)))) for at in range(0, ranks, 4))
    return Window(Job("meets", ranks, hosts, groups=tuple(groups)), {
        "steps": a_table("rank step start_ns duration_ns", begun),
        "phases": a_table("rank step phase start_ns duration_ns", rows),
    })  # fmt: skip


def _members(groups: Sequence[ProcessGroup], ranks: int) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {"world": [list(range(ranks))]}
    for group in groups:
        found.setdefault(group.kind, []).append(list(group.ranks))
    return found


def _meet(clock: Floats, members: dict[str, list[list[int]]], kind: str | None) -> Floats:
    left = clock.copy()
    for ranks in members.get(kind or "", []):
        left[ranks] = clock[ranks].max()
    return left


def split(tensor: int, replicas: int, kind: str = "tp") -> tuple[ProcessGroup, ...]:
    """Groups of neighbours, and data parallelism across them."""
    within = [ProcessGroup(f"{kind}-{at}", kind, tuple(range(at * tensor, (at + 1) * tensor)))
              for at in range(replicas)]  # fmt: skip
    across = [ProcessGroup(f"dp-{at}", "dp", tuple(range(at, tensor * replicas, tensor)))
              for at in range(tensor)]  # fmt: skip
    return (*within, *across)

"""Tiny jobs whose ranks meet seldom, never, or with changing members: local SGD, the workers of a
parameter server, an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Ints, Window

from .jobs import MS, START, a_table, scatter

ROOT = "main (train.py:88)"
WORK_MS = {"forward-compute": 30.0, "backward-compute": 50.0}
SERVER = ("pull-weights", "push-gradients")
EVERY = 25
REPLICAS = ((0, 1, 2, 3), (4, 5, 6, 7))
PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))


@dataclass
class Play:
    """Two replicas of four ranks, as they train."""

    clock: Ints = field(default_factory=lambda: np.full(8, START, np.int64))
    steps: list[tuple[object, ...]] = field(default_factory=list)
    phases: list[tuple[object, ...]] = field(default_factory=list)
    comm: list[tuple[object, ...]] = field(default_factory=list)
    stacks: list[tuple[object, ...]] = field(default_factory=list)

    def meet(self, step: int, kind: str, groups: Sequence[tuple[int, ...]]) -> None:
        """All-reduces that end for all members of a group at once."""
        for at, members in enumerate(groups):
            came = self.clock[list(members)]
            end = int(came.max()) + 2 * MS
            self.comm += [(rank, step, f"{kind}-{at}", step, "AllReduce", -1, 1 << 20,
                           int(time), int(time), end)
                          for rank, time in zip(members, came, strict=True)]  # fmt: skip
            self.clock[list(members)] = end

    def spend(self, step: int, phase: str, lasted: Floats) -> None:
        for rank, took in enumerate(lasted.astype(np.int64).tolist()):
            self.phases.append((rank, step, phase, int(self.clock[rank]), took))
            self.show(rank, took, "train_step (train.py:60)")
            self.clock[rank] += took

    def show(self, rank: int, took: int, frames: str) -> None:
        begin = int(self.clock[rank])
        self.stacks.append((rank, "MainThread", begin, took, f"{ROOT};{frames}", 1))

    def window(self) -> Window:
        names = "rank step group seq op peer bytes enqueue_ns start_ns end_ns"
        listed = [ProcessGroup(f"dp-{at}", "dp", one) for at, one in enumerate(REPLICAS)]
        listed += [ProcessGroup(f"outer-{at}", "other", one) for at, one in enumerate(PAIRS)]
        return Window(_job(8, 4, tuple(listed)), {
            "steps": a_table("rank step start_ns duration_ns", self.steps),
            "phases": a_table("rank step phase start_ns duration_ns", self.phases),
            "comm_ops": a_table(names, self.comm),
            "stacks": a_table("rank thread start_ns duration_ns frames active", self.stacks),
        })  # fmt: skip


def local_sgd(late_ms: float, function: str, steps: int = 150) -> Window:
    """Replicas that meet every `EVERY` steps, pair by pair; before that rank 0 is in a function for
    some time."""
    own, play = _own(8, steps, WORK_MS), Play()
    for step in range(steps):
        begin = play.clock.copy()
        for at, phase in enumerate(WORK_MS):
            play.spend(step, phase, own[at, :, step])
        play.meet(step, "dp", REPLICAS)
        if step % EVERY == EVERY - 1:
            took = int(late_ms * MS)
            play.show(0, took, f"outer_step (outer.py:44);{function}")
            play.clock[0] += took
            play.meet(step, "outer", PAIRS)
            play.spend(step, "outer-optimizer", np.full(8, 5.0 * MS))
        play.steps += [(rank, step, int(begin[rank]), int(end - begin[rank]))
                       for rank, end in enumerate(play.clock)]  # fmt: skip
        play.clock += MS // 5
    return play.window()


def workers(
    edit: Callable[[dict[str, Floats]], None] = lambda _: None,
    ranks: int = 16, steps: int = 90, waits: bool = True,
) -> Window:  # fmt: skip
    """Workers of a parameter server, none of which waits for another; `edit` may change what each
    phase takes, `[rank, step]` in ns."""
    usual = {"data-load": 1.0, SERVER[0]: 10.0, **WORK_MS, SERVER[1]: 10.0}
    own = dict(zip(usual, _own(ranks, steps, usual), strict=True))
    edit(own)
    rows, phases = [], []
    for rank in range(ranks):
        clock = START
        for step in range(steps):
            begin = clock
            for phase, lasted in own.items():
                took = int(lasted[rank, step])
                phases.append((rank, step, phase, clock, took, int(waits and phase in SERVER)))
                clock += took
            rows.append((rank, step, begin, clock - begin))
            clock += MS // 5
    return Window(_job(ranks, 4), {
        "steps": a_table("rank step start_ns duration_ns", rows),
        "phases": a_table("rank step phase start_ns duration_ns waits", phases),
    })  # fmt: skip


def elastic(
    away: Collection[int], left: int, back: int, restart_ms: float, steps: int = 90
) -> Window:
    """Eight ranks, some of which do no steps from `left` to before `back`; a change stops all."""
    ranks, own = 8, _own(8, steps, WORK_MS)
    clock = START
    rows, phases = [], []
    for step in range(steps):
        clock += int(restart_ms * MS) if step in (left, back) else 0
        there = [rank for rank in range(ranks) if not (rank in away and left <= step < back)]
        whole = int(own[:, there, step].sum(axis=0).max())
        for rank in there:
            begin = clock
            for at, phase in enumerate(WORK_MS):
                took = int(own[at, rank, step])
                phases.append((rank, step, phase, begin, took, 0))
                begin += took
            phases.append((rank, step, "dp-all-reduce", begin, clock + whole - begin, 1))
            rows.append((rank, step, clock, whole))
        clock += whole
    return Window(_job(ranks, 4), {
        "steps": a_table("rank step start_ns duration_ns", rows),
        "phases": a_table("rank step phase start_ns duration_ns waits", phases),
    })  # fmt: skip


def _own(ranks: int, steps: int, usual_ms: dict[str, float]) -> Floats:
    """`[phase, rank, step]` in ns, with noise."""
    own = np.stack([np.full((ranks, steps), ms * MS) for ms in usual_ms.values()])
    return np.asarray(own * scatter(np.random.default_rng(3), own.shape, 0.02, 0.0))


def _job(ranks: int, per_host: int, groups: tuple[ProcessGroup, ...] = ()) -> Job:
    hosts = tuple(Host(f"host-{at:03}", tuple(range(first, first + per_host)))
                  for at, first in enumerate(range(0, ranks, per_host)))  # fmt: skip
    return Job("loose", ranks, hosts, {}, groups)

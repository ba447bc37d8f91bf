"""What a recorder of phases writes: it marks what may wait, and knows only calls of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Strings, Table, Window
from tests.diagnose.jobs import MS, START, a_table

RANKS = 16
FORWARD, BACKWARD = "forward-compute", "backward-compute"


@dataclass
class Recorder:
    """Phases and steps of all ranks, and the host calls of their operators."""

    clock: list[float] = field(default_factory=lambda: [float(START)] * RANKS)
    phases: list[tuple[object, ...]] = field(default_factory=list)
    steps: list[tuple[object, ...]] = field(default_factory=list)
    calls: list[tuple[int, ...]] = field(default_factory=list)
    called: list[int] = field(default_factory=lambda: [0] * RANKS)

    def spend(self, rank: int, step: int, name: str, ns: float) -> None:
        waits = int(name.startswith(("dp", "pp")))
        self.phases.append((rank, step, name, int(self.clock[rank]), int(ns), waits))
        self.clock[rank] += ns

    def call(self, rank: int, step: int) -> None:
        """A call that returns at once, of the rank's next operator."""
        self.called[rank] += 1
        self.calls.append((rank, step, self.called[rank], int(self.clock[rank])))

    def wait(self, rank: int, step: int, name: str, until: float) -> None:
        self.spend(rank, step, name, max(until - self.clock[rank], 0.0) + 0.1 * MS)

    def meet(self, ranks: Sequence[int], step: int, at_once: bool = True) -> None:
        """Two all-reduces, called at once or one after the other, which all leave together."""
        last = max(self.clock[rank] for rank in ranks)
        for rank in ranks:
            self.call(rank, step)
            if at_once:
                self.call(rank, step)
            self.wait(rank, step, "dp-allreduce", last + 2 * MS)
            if not at_once:
                self.call(rank, step)

    def window(self, groups: Sequence[ProcessGroup], marked: bool) -> Window:
        hosts = tuple(Host(f"h{at}", tuple(range(at, at + 4))) for at in range(0, RANKS, 4))
        phases = a_table("rank step phase start_ns duration_ns waits", self.phases)
        if not marked:
            kept = {name: one for name, one in phases.columns.items() if name != "waits"}
            phases = Table(kept)
        tables = {"steps": a_table("rank step start_ns duration_ns", self.steps), "phases": phases}
        if marked:
            comm = a_table("rank step seq enqueue_ns", self.calls)
            of_rank = {rank: group.id for group in groups if group.kind == "dp"
                       for rank in group.ranks}  # fmt: skip
            comm = (
                comm.with_column("group", Strings.of([of_rank[rank] for rank, *_ in self.calls]))
                .with_column("op", Strings.of(["AllReduce"] * len(comm)))
                .with_column("peer", np.full(len(comm), -1))
                .with_column("bytes", np.full(len(comm), 25 << 20))
            )
            tables["comm_ops"] = comm
        return Window(Job("stalls", RANKS, hosts, {}, tuple(groups)), tables)


def end_step(played: Recorder, step: int, begun: Sequence[float], rng: np.random.Generator) -> None:
    for rank in range(RANKS):
        played.spend(rank, step, "optimizer", rng.normal(3, 0.05) * MS)
        played.steps.append((rank, step, int(begun[rank]), int(played.clock[rank] - begun[rank])))

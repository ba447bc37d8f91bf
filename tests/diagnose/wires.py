"""Jobs whose data moves over hosts' adapters by the steps of real algorithms, one of them slow.

A ring passes a piece to the next rank in each of 2 (P - 1) rounds; an all-to-all sends one piece to
the rank `i` further on in round `i`. A piece moves once both ends have ended the round before, and
a round of a rank ends when its piece has come and the one that it sent has arrived. Over TCP (gloo)
pieces are large, and ranks end one after the other; NCCL's are so small that all leave within a
fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, START

SIZE = 64 << 20
Row = tuple[int, int, str, int, str, int, int, int]


@dataclass(frozen=True)
class Wires:
    """Hosts with ranks in order, and an adapter for each rank, or one for all ranks of a host."""

    hosts: int = 4
    per_host: int = 2
    own_adapters: bool = False
    slow: int | None = None
    """The host, or with own adapters the rank, whose adapter is slow."""
    times: float = 4.0
    since: int = 0
    nccl: bool = False
    steps: int = 80
    seed: int = 0
    work_ms: float = 100.0
    piece_ms: float = 4.0
    groups: Sequence[ProcessGroup] = ()
    ops: Sequence[str] = ("AllReduce",)
    """Of each group in turn; a `pp` group sends."""
    rows: list[Row] = field(default_factory=list)

    def but(self, **changed: float) -> Wires:
        """The same job with something changed."""
        return replace(self, rows=[], **changed)  # type: ignore[arg-type]

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host

    def hop_ms(self, source: int, target: int, step: int) -> float:
        """How long a piece takes from one rank to another."""
        if source // self.per_host == target // self.per_host:
            return self.piece_ms / 10
        ends = {source, target} if self.own_adapters else {
            source // self.per_host, target // self.per_host}  # fmt: skip
        return self.piece_ms * (self.times if self.slow in ends and step >= self.since else 1.0)

    def window(self) -> Window:
        random = np.random.default_rng(self.seed)
        begin: Floats = np.full(self.ranks, float(START))
        steps: list[tuple[int, int, int, int]] = []
        for step in range(self.steps):
            free = begin + random.normal(self.work_ms, self.work_ms / 50, self.ranks) * MS
            for group, op in zip(self.groups, self._ops, strict=True):
                free = self._run(random, step, group, op, free)
            free = free + MS
            steps += [(rank, step, int(begin[rank]), int(free[rank] - begin[rank]))
                      for rank in range(self.ranks)]  # fmt: skip
            begin = free
        return self._written(steps)

    @property
    def _ops(self) -> list[str]:
        return [self.ops[at % len(self.ops)] for at in range(len(self.groups))]

    def _run(
        self, random: np.random.Generator, step: int, group: ProcessGroup, op: str, free: Floats
    ) -> Floats:  # fmt: skip
        """When each rank is free after an operator of the group."""
        after = free.copy()
        if op == "Send":
            for seq, (here, there) in enumerate(zip(group.ranks, group.ranks[1:], strict=False)):
                hop = self.hop_ms(here, there, step) * random.normal(1, 0.03) * MS
                end = max(after[here], after[there]) + hop
                begins = int(after[here]), int(after[there])
                self._add(here, step, group.id, seq, "Send", there, begins[0], end)
                self._add(there, step, group.id, seq, "Recv", here, begins[1], end)
                after[there] = end
            return after
        ends = self._ends(random, step, group.ranks, op, free[list(group.ranks)])
        for rank, end in zip(group.ranks, ends.tolist(), strict=True):
            self._add(rank, step, group.id, 0, op, -1, int(free[rank]), end)
            after[rank] = end
        return after

    def _ends(
        self, random: np.random.Generator, step: int, ranks: Sequence[int], op: str, free: Floats
    ) -> Floats:  # fmt: skip
        """When each member ends a collective."""
        done, count = free.copy(), len(ranks)
        for back, hops in self._rounds(step, ranks, op):
            lasts = hops * np.exp(random.normal(0, 0.05, count)) * MS
            come = np.maximum(done, np.roll(done, back)) + lasts
            done = np.maximum(come, np.roll(come, -back))
        if not self.nccl:
            return done
        took = float(done.max() - free.max())  # pieces are small, so nobody is ahead of the others
        return np.asarray(free.max() + took + random.uniform(0, 0.1, count) * MS)

    def _rounds(self, step: int, ranks: Sequence[int], op: str) -> Iterator[tuple[int, Floats]]:
        """How far away the source of each round is, and how long each rank's piece takes."""
        count = len(ranks)
        backs = range(1, count) if op == "AllToAll" else [1] * (2 * (count - 1))
        for back in backs:
            yield back, np.array([self.hop_ms(ranks[at - back], rank, step)
                                  for at, rank in enumerate(ranks)])  # fmt: skip

    def _add(
        self, rank: int, step: int, group: str, seq: int, op: str, peer: int, begin: int, end: float
    ) -> None:  # fmt: skip
        self.rows.append((rank, step, group, 8 * step + seq, op, peer, begin, int(end)))

    def _written(self, steps: Sequence[tuple[int, int, int, int]]) -> Window:
        rank, step, group, seq, op, peer, start, end = zip(*self.rows, strict=True)
        comm = Table({
            "rank": np.array(rank), "step": np.array(step), "group": Strings.of([*group]),
            "seq": np.array(seq), "op": Strings.of([*op]), "peer": np.array(peer),
            "bytes": np.full(len(rank), SIZE), "enqueue_ns": np.array(start),
            "start_ns": np.array(start), "end_ns": np.array(end),
        })  # fmt: skip
        names = ("rank", "step", "start_ns", "duration_ns")
        tables = {
            "comm_ops": comm,
            "steps": Table(dict(zip(names, np.array(steps).T, strict=True))),
        }
        if self.nccl:
            tables["kernel_summaries"] = Table({"rank": np.arange(self.ranks)})
        nics = tuple(f"nic-{at}" for at in range(self.per_host if self.own_adapters else 1))
        hosts = tuple(Host(f"h{at}", tuple(range(at * self.per_host, (at + 1) * self.per_host)),
                           nics) for at in range(self.hosts))  # fmt: skip
        return Window(Job("wires", self.ranks, hosts, groups=tuple(self.groups)), tables)


def one_ring(ranks: int, kind: str = "dp") -> list[ProcessGroup]:
    return [ProcessGroup(f"{kind}-0", kind, tuple(range(ranks)))]


def across(ranks: int, per_host: int, kind: str = "dp") -> list[ProcessGroup]:
    """A group for each place within a host, over all hosts."""
    return [ProcessGroup(f"{kind}-{at}", kind, tuple(range(at, ranks, per_host)))
            for at in range(per_host)]  # fmt: skip


def halves(ranks: int, parts: int, kind: str) -> list[ProcessGroup]:
    """Neighbouring ranks in groups."""
    size = ranks // parts
    return [ProcessGroup(f"{kind}-{at}", kind, tuple(range(at * size, (at + 1) * size)))
            for at in range(parts)]  # fmt: skip

"""A small job of reinforcement learning: some ranks generate, some score, some train.

In each step the first of the trainers sends its weights to all that generate; these send samples to
the ranks that score, and those send scores to the trainers. Nobody does what another role does.

    generate: weights ─ rollout ─▶ score: receive ─ scoring ─▶ train: receive ─ forward ─ backward ⟲
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window
from tests.diagnose.jobs import MS, START, a_table

TRAIN, GENERATE, SCORE = (0, 1, 2, 3), (4, 5, 6, 7, 8, 9), (10, 11, 12)
TAKES_MS = {"rollout": 120.0, "scoring": 30.0, "forward-compute": 20.0, "backward-compute": 30.0}
PASSES = 3
"""Microbatches; the last backward pass waits for the gradients of all."""
MOVES_MS = 2.0
PER_HOST = 5

Slow = Mapping[int, float]
"""How many times as long as others a rank takes."""


@dataclass
class _Play:
    """The job as it runs: when each rank is free, and the rows of its tables."""

    slow: Slow
    random: np.random.Generator
    clock: Floats
    step: int = 0
    phases: list[tuple[int, int, str, int, int, int]] = field(default_factory=list)
    comm: list[tuple[object, ...]] = field(default_factory=list)
    numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def work(self, rank: int, phase: str) -> None:
        lasts = TAKES_MS[phase] * MS * self.slow.get(rank, 1.0) * self.random.normal(1.0, 0.01)
        self._phase(rank, phase, self.clock[rank], self.clock[rank] + lasts, 0.0)

    def await_all(self, group: str, op: str, ranks: tuple[int, ...], phase: str | None) -> None:
        """A collective that each of the ranks waits for; in a phase, or at the end of the last."""
        begin = self.clock[list(ranks)].copy()
        end = float(begin.max()) + MOVES_MS * MS
        for rank, at in zip(ranks, begin.tolist(), strict=True):
            self._operator(rank, group, op, -1, at, end)
            if phase is not None:
                self._phase(rank, phase, at, end, end - at)
            else:
                last, waits = self._last(rank), int(end - at)
                lasted, waited = self.phases[last][4:]
                self.phases[last] = (*self.phases[last][:4], lasted + waits, waited + waits)
                self.clock[rank] = end

    def hand_over(self, source: int, target: int, since: float) -> float:
        """A send that nobody waits for; returns when it is received."""
        end = max(float(self.clock[source]), since) + MOVES_MS * MS
        self._operator(source, "samples", "Send", target, float(self.clock[source]), end)
        self._operator(target, "samples", "Recv", source, since, end)
        return end

    def receive(self, target: int, sources: tuple[int, ...]) -> None:
        since = float(self.clock[target])
        end = max(self.hand_over(source, target, since) for source in sources)
        self._phase(target, "receive-samples", since, end, end - since)

    def _operator(
        self, rank: int, group: str, op: str, peer: int, start: float, end: float
    ) -> None:
        seq = self.numbers.get((rank, group), 0)
        self.numbers[rank, group] = seq + 1
        self.comm.append((rank, self.step, group, seq, op, peer, int(start), int(start), int(end)))

    def _phase(self, rank: int, phase: str, begin: float, end: float, waited: float) -> None:
        self.phases.append((rank, self.step, phase, int(begin), int(end - begin), int(waited)))
        self.clock[rank] = end

    def _last(self, rank: int) -> int:
        return max(at for at, row in enumerate(self.phases) if row[0] == rank)


def a_job_of_roles(
    slow: Slow | None = None, steps: int = 60, seed: int = 0, measured: bool = True
) -> Window:
    """Plays the job.

    Args:
        measured: whether the recorder measured how long phases waited, and not only marked which
            of them may have.
    """
    ranks = len(TRAIN) + len(GENERATE) + len(SCORE)
    play = _Play(slow or {}, np.random.default_rng(seed), np.full(ranks, float(START)))
    begins = np.zeros((steps + 1, ranks))
    for play.step in range(steps):
        begins[play.step] = play.clock
        _step(play)
    begins[steps] = play.clock
    rows = [(rank, step, int(begins[step, rank]), int(begins[step + 1, rank] - begins[step, rank]))
            for step in range(steps) for rank in range(ranks)]  # fmt: skip
    waits, phases = "wait_ns", play.phases
    if not measured:
        waits, phases = "waits", [(*row[:-1], int(row[-1] > 0)) for row in phases]
    return Window(_job(ranks), {
        "steps": a_table("rank step start_ns duration_ns", rows),
        "phases": a_table(f"rank step phase start_ns duration_ns {waits}", phases),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", play.comm),
    })  # fmt: skip


def _step(play: _Play) -> None:
    if play.step:
        _weights(play)
    for rank in GENERATE:
        play.work(rank, "rollout")
    for at, rank in enumerate(SCORE):
        play.receive(rank, GENERATE[at :: len(SCORE)])
        play.work(rank, "scoring")
    for at, rank in enumerate(TRAIN):
        play.receive(rank, (SCORE[at % len(SCORE)],))
        for _ in range(PASSES):
            play.work(rank, "forward-compute")
            play.work(rank, "backward-compute")
    play.await_all("train-dp", "AllReduce", TRAIN, None)


def _weights(play: _Play) -> None:
    """The first trainer sends its weights at the end of its step before; those that generate wait
    for them at the begin of theirs."""
    play.step -= 1
    sender = float(play.clock[TRAIN[0]])
    end = max(sender, *(float(play.clock[rank]) for rank in GENERATE)) + MOVES_MS * MS
    play._operator(TRAIN[0], "weights", "Broadcast", -1, sender, end)
    play._phase(TRAIN[0], "weight-sync", sender, end, end - sender)
    play.step += 1
    for rank in GENERATE:
        since = float(play.clock[rank])
        play._operator(rank, "weights", "Broadcast", -1, since, end)
        play._phase(rank, "weight-sync", since, end, end - since)


def _job(ranks: int) -> Job:
    hosts = tuple(Host(f"host-{at:03d}", tuple(range(first, min(first + PER_HOST, ranks))))
                  for at, first in enumerate(range(0, ranks, PER_HOST)))  # fmt: skip
    groups = (
        ProcessGroup("train-dp", "dp", TRAIN),
        ProcessGroup("weights", "other", (TRAIN[0], *GENERATE)),
        ProcessGroup("samples", "other", tuple(range(ranks))),
    )
    return Job("roles", ranks, hosts, {}, groups)

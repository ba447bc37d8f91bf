"""A job of 16 ranks on 8 hosts under 4 leaves, of which only transfers are interesting.

Four stages of four ranks, each stage under a leaf of its own; two ranks of a host share tensors.
In every step each place moves data once, for 20 ms; who is slow lengthens the step by as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Fabric, Host, Job, ProcessGroup, Switch
from stepscope.window import Strings, Table, Window

from .jobs import MS, START

RANKS, PER_HOST, STAGES = 16, 2, 4
USUAL_MS, STEP_MS, SIZE = 20.0, 400.0, 64 << 20
Slow = Callable[[tuple[int, ...], int], float]
"""How many times the usual the members take in a step."""


def healthy(members: tuple[int, ...], step: int) -> float:
    return 1.0


def through(*ranks: int, times: float = 4.0, since: int = 30, every: int = 1) -> Slow:
    """Who sends to another host by one of these ranks' adapters is slow."""

    def slow(members: tuple[int, ...], step: int) -> float:
        away = len({rank // PER_HOST for rank in members}) > 1
        now = step >= since and (step - since) % every == 0
        return times if now and away and set(members) & set(ranks) else 1.0

    return slow


def on_host(host: int, times: float = 4.0, since: int = 30) -> Slow:
    """Who stays on this host is slow."""

    def slow(members: tuple[int, ...], step: int) -> float:
        return times if step >= since and {rank // PER_HOST for rank in members} == {host} else 1.0

    return slow


def groups() -> tuple[ProcessGroup, ...]:
    per_stage = RANKS // STAGES
    return (
        *(ProcessGroup(f"tp-{at}", "tp", (2 * at, 2 * at + 1)) for at in range(RANKS // 2)),
        *(ProcessGroup(f"dp-{at}", "dp", tuple(range(at * per_stage, (at + 1) * per_stage)))
          for at in range(STAGES)),
        *(ProcessGroup(f"pp-{at}", "pp", tuple(range(at, RANKS, per_stage)))
          for at in range(per_stage)),
    )  # fmt: skip


def places() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Group, operator and members."""
    for group in groups():
        if group.kind == "pp":
            for here, there in zip(group.ranks, group.ranks[1:], strict=False):
                yield group.id, "Send", (here, there)
                yield group.id, "Send", (there, here)
        else:
            yield group.id, "AllReduce", group.ranks


def the_job(fabric: bool = True) -> Job:
    hosts = tuple(Host(f"h{at}", (2 * at, 2 * at + 1), ("nic-0", "nic-1"), ("gpu-0", "gpu-1"))
                  for at in range(RANKS // PER_HOST))  # fmt: skip
    leaves = tuple(Switch(f"leaf-{at}", 0, tuple(f"{host.name}/{nic}" for host in
                                                  hosts[2 * at : 2 * at + 2] for nic in host.nics))
                   for at in range(STAGES))  # fmt: skip
    spines = tuple(Switch(f"spine-{at}", 1, tuple(one.name for one in leaves)) for at in range(2))
    known = Fabric((*leaves, *spines)) if fabric else None
    return Job("wired", RANKS, hosts, groups=groups(), fabric=known)


@dataclass
class _Rows:
    comm: list[tuple[int, int, str, int, str, int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int, int, int]] = field(default_factory=list)

    def window(self, job: Job) -> Window:
        rank, step, group, seq, op, peer, start, end = zip(*self.comm, strict=True)
        comm = Table({
            "rank": np.array(rank), "step": np.array(step), "group": Strings.of([*group]),
            "seq": np.array(seq), "op": Strings.of([*op]), "peer": np.array(peer),
            "bytes": np.full(len(rank), SIZE), "enqueue_ns": np.array(start),
            "start_ns": np.array(start), "end_ns": np.array(end),
        })  # fmt: skip
        names = ("rank", "step", "start_ns", "duration_ns")
        steps = Table(dict(zip(names, np.array(self.steps).T, strict=True)))
        on_gpus = Table({"rank": np.arange(RANKS)})
        return Window(job, {"comm_ops": comm, "steps": steps, "kernel_summaries": on_gpus})


def a_wired_job(
    slow: Slow = healthy, steps: int = 60, noise: float = 0.05, seed: int = 0,
    fabric: bool = True, late: tuple[int, float] = (-1, 0.0), costs: bool = True, tail: int = 0,
) -> Window:  # fmt: skip
    """Plays the job.

    Args:
        late: a rank, and by how many ms it comes late from step 30 on.
        costs: whether slow transfers make steps longer.
        tail: degrees of freedom of Student's noise; 0: Gaussian.
    """
    random, rows, now = np.random.default_rng(seed), _Rows(), START
    everywhere = list(places())
    for step in range(steps):
        draws = random.standard_t(tail, len(everywhere)) if tail else random.normal(
            size=len(everywhere))  # fmt: skip
        longest = STEP_MS
        for (group, op, members), draw in zip(everywhere, draws, strict=True):
            factor = slow(members, step)
            lasts = USUAL_MS * factor * float(np.exp(noise * np.clip(draw, -50, 50)))
            waits = late[1] if step >= 30 and late[0] in members else 0.0
            arrive = [now + int((100 + random.uniform(0, 5)) * MS) for _ in members]
            if waits:
                arrive[members.index(late[0])] += int(waits * MS)
            end = max(arrive) + int(lasts * MS)
            for at, (rank, start) in enumerate(zip(members, arrive, strict=True)):
                said = ("Send", "Recv")[at] if op == "Send" else op
                peer = members[1 - at] if op == "Send" else -1
                rows.comm.append((rank, step, group, step, said, peer, start, end))
            longest = max(longest, STEP_MS + waits + (factor - 1) * USUAL_MS * costs)
        rows.steps += [(rank, step, now, int(longest * MS)) for rank in range(RANKS)]
        now += int(longest * MS)
    return rows.window(the_job(fabric))

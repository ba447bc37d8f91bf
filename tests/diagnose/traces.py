"""What a profiler would have recorded of a tiny job of which every kernel is known.

`a_trace(work)` runs the kernels that `work(rank, step)` lists one after the other on each rank and
ends every step with an all-reduce of each group, which its members leave together, and, where there
are several, a short one of all ranks. With `on_device=False` it is a CPU job: operators of the host
instead of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Strings, Table, Window

from .jobs import MS, START, a_table, put

TRANSFER_MS, NORM_MS, BETWEEN_STEPS_MS = 2.0, 0.1, 1.0
LAUNCH_NS = 10_000
CALLS = "rank step name enqueue_ns start_ns duration_ns"
OPERATORS = {
    "forward-compute": "aten::linear",
    "backward-compute": "autograd::engine::evaluate_function: MmBackward0",
    "optimizer": "aten::_foreach_add_",
}


@dataclass(frozen=True)
class Piece:
    """One kernel, and how long the host was late with it."""

    name: str
    ms: float
    late_ms: float = 0.0


Work = Callable[[int, int], Sequence[Piece]]
Transfer = Callable[[int, int], float]


@dataclass
class _Play:
    """The job as it goes, and the rows of its tables as they happen."""

    groups: Sequence[tuple[int, ...]]
    work: Work
    transfer_ms: Transfer
    spread: float
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    steps: list[tuple[object, ...]] = field(default_factory=list)
    phases: list[tuple[object, ...]] = field(default_factory=list)
    ran: list[tuple[object, ...]] = field(default_factory=list)
    comm: list[tuple[object, ...]] = field(default_factory=list)

    def step(self, step: int, begin: int) -> int:
        """Computes, reduces in each group and, if there are several, among all. Returns the end."""
        ready = {rank: self._run(rank, step, begin)
                 for members in self.groups for rank in members}  # fmt: skip
        free, waited = dict(ready), dict.fromkeys(ready, 0)
        for at, members in enumerate(self.groups):
            lasts = self.transfer_ms(at, step) * np.exp(self.spread * self.random.normal())
            self._reduce(f"dp-{at}", members, step, lasts, free, waited)
        if len(self.groups) > 1:
            self._reduce("world-0", tuple(ready), step, NORM_MS, free, waited)
        for rank, end in free.items():
            self.phases.append((rank, step, "backward-compute", begin, end - begin, waited[rank]))
            self.steps.append((rank, step, begin, end - begin))
        return max(free.values()) + int(BETWEEN_STEPS_MS * MS)

    def _reduce(
        self, group: str, members: tuple[int, ...], step: int, lasts_ms: float,
        free: dict[int, int], waited: dict[int, int],
    ) -> None:  # fmt: skip
        """Moves on when each rank is free, and adds to how long it communicated."""
        end = max(free[rank] for rank in members) + int(lasts_ms * MS)
        for rank in members:
            came = free[rank]
            size = 1 << 20 if group != "world-0" else 4
            self.comm.append((rank, step, group, step, "AllReduce", -1, size, came, came, end))
            self.ran.append((rank, step, "ncclDevKernel_AllReduce", came - MS, came, end - came))
            waited[rank] += end - came
            free[rank] = end

    def _run(self, rank: int, step: int, now: int) -> int:
        for piece in self.work(rank, step):
            launched = now + int(piece.late_ms * MS) if piece.late_ms else now - MS
            start = max(now, launched)
            length = int(piece.ms * MS * np.exp(self.spread * self.random.normal()))
            self.ran.append((rank, step, piece.name, launched, start, length))
            now = start + length
        return now


def a_trace(
    work: Work, ranks: int = 4, steps: int = 6, on_device: bool = True, spread: float = 0.02,
    groups: Sequence[tuple[int, ...]] = (), transfer_ms: Transfer = lambda group, step: TRANSFER_MS,
) -> Window:  # fmt: skip
    """Times of kernels and transfers scatter by `spread`, each by itself. `transfer_ms` is asked
    for the number of a group and a step; without `groups` there is one of all ranks."""
    members = tuple(range(ranks))
    play = _Play(groups or (members,), work, transfer_ms, spread)
    now = START
    for step in range(steps):
        now = play.step(step, now)
    named = tuple(ProcessGroup(f"dp-{at}", "dp", one) for at, one in enumerate(play.groups))
    if groups:
        named += (ProcessGroup("world-0", "world", members),)
    job = Job("a-trace", ranks, (Host("host-000", members),), {"dp": len(play.groups[0])}, named)
    tables = {
        "steps": a_table("rank step start_ns duration_ns", play.steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", play.phases),
        "comm_ops": a_table("rank step group seq op peer bytes enqueue_ns start_ns end_ns",
                            play.comm),
    }  # fmt: skip
    return Window(job, {**tables, **(_device(play) if on_device else _host(play))})


def _device(play: _Play) -> dict[str, Table]:
    """Kernels, and of the host no more than the calls that launched them."""
    table = a_table(CALLS, play.ran)
    kernels = {"kernel" if name == "name" else name: column
               for name, column in table.columns.items()}  # fmt: skip
    launches = [(rank, step, "aten::launch", 1, launched, LAUNCH_NS)
                for rank, step, _, launched, _, _ in play.ran]  # fmt: skip
    return {
        "kernels": Table({**kernels, "stream": np.full(len(table), 7)}),
        "host_ops": a_table("rank step name thread start_ns duration_ns", launches),
    }


def _host(play: _Play) -> dict[str, Table]:
    computed = [(rank, step, name, 1, start, length)
                for rank, step, name, _, start, length in play.ran
                if not str(name).startswith("nccl")]  # fmt: skip
    return {"host_ops": a_table("rank step name thread start_ns duration_ns", computed)}


def profiled(window: Window) -> Window:
    """A played job as `torch.profiler` would show it on CPU: with the operators of each phase, but
    without what only stepscope measures."""
    phases = window.tables["phases"]
    kept = phases.take(phases.strings("phase").equals(*OPERATORS))
    named = kept.strings("phase")
    own = kept.ints("duration_ns") - kept.ints("wait_ns")
    operators = Table({
        "rank": kept.ints("rank"), "step": kept.ints("step"),
        "name": Strings(named.codes, tuple(OPERATORS.get(one, one) for one in named.values)),
        "thread": np.ones(len(kept), np.int64), "start_ns": kept.ints("start_ns"),
        "duration_ns": own,
    })  # fmt: skip
    unknown = phases.with_column("cpu_ns", np.full(len(phases), NULL))
    tables = put(window, phases=unknown, host_ops=operators).tables
    unmeasured = ("hardware", "pauses", "stacks")
    return Window(window.job, {k: t for k, t in tables.items() if k not in unmeasured})

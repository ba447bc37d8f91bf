"""A training loop of eight ranks that meet once in a step, as a logger with durations sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, START

RANKS, STEPS = 8, 80
LOAD, FORWARD, BACKWARD, UPDATE = "next_batch", "fw", "bw", "upd"


@dataclass
class Loop:
    """A training loop on eight ranks that meet once in a step; durations in ms, `[rank, step]`."""

    seed: int = 0
    work: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        for name, lasts in ((LOAD, 0.3), (FORWARD, 40.0), (BACKWARD, 83.0), (UPDATE, 6.0)):
            self.work[name] = lasts * np.exp(0.01 * random.standard_normal((RANKS, STEPS)))

    def phases(self) -> dict[str, Floats]:
        """All phases in order, with the wait for the last rank before the update."""
        before = self.work[LOAD] + self.work[FORWARD] + self.work[BACKWARD]
        waits = before.max(axis=0) - before + 9.0
        return {**{name: self.work[name] for name in (LOAD, FORWARD, BACKWARD)},
                "grad_exchange": waits, UPDATE: self.work[UPDATE]}  # fmt: skip


def a_table(phases: dict[str, Floats], starts: dict[str, Floats] | None = None) -> Table:
    rank, step = (grid.ravel() for grid in np.indices((RANKS, STEPS)))
    count = len(phases)
    columns = {
        "rank": np.tile(rank, count),
        "step": np.tile(step, count),
        "phase": Strings.of([name for name in phases for _ in rank]),
        "duration_ns": np.concatenate([(one * MS).astype(np.int64).ravel()
                                       for one in phases.values()]),
    }  # fmt: skip
    if starts is not None:
        begin = np.concatenate([starts[name].ravel() for name in phases])
        columns["start_ns"] = START + (begin * MS).astype(np.int64)
    return Table(columns)  # type: ignore[arg-type]


def with_whole(phases: dict[str, Floats]) -> dict[str, Floats]:
    """The step before its phases, and a piece of forward after them."""
    whole = np.asarray(sum(phases.values()))
    return {"iteration": whole, **phases, "attn_fw": 0.45 * phases[FORWARD]}


def a_window(table: Table, steps: Table | None = None) -> Window:
    job = Job("loop", RANKS, (Host("n0", tuple(range(RANKS))),),
              groups=(ProcessGroup("dp-0", "dp", tuple(range(RANKS))),))  # fmt: skip
    tables = {"phases": table} | ({} if steps is None else {"steps": steps})
    return Window(job, tables)

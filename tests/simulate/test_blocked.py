"""How long an operator blocks its rank, against a look at the rank at every moment."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stepscope.simulate import simulate
from stepscope.simulate.engine import NEVER, Times
from stepscope.simulate.program import TRANSFERS, Key, Program
from stepscope.simulate.record.blocked import Line
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER
from stepscope.window import NULL
from tests.simulate.jobs import a_scenario, a_step

JOBS: list[dict[str, Any]] = [
    {"ranks": 1},
    {"ranks": 4, "sharding": "ddp"},
    {"ranks": 4, "tp": 2, "pp": 2, "microbatches": 3},
    {"ranks": 4, "cp": 2, "pp": 2},
    {"ranks": 4, "pp": 2, "chunks": 2},
    {"ranks": 4, "ep": 2, "kind": "moe"},
    {"ranks": 8, "ep": 2, "tp": 2, "pp": 2, "kind": "moe"},
    {"ranks": 4, "sharding": "fsdp", "kind": "variable"},
]
FAULTS: list[tuple[str, ...]] = [
    (), ("gpu_slow:rank=1,factor=2",), ("gc:rank=0,ms=300",), ("hang:rank=1,from=0",),
]  # fmt: skip


class Looker:
    """One rank of one step. Knows its program, and when everything was issued and over."""

    def __init__(self, program: Program, times: Times, stage: int, within: int) -> None:
        self.ops = program.stages[stage]
        self.kind = {op.key: op.kind for op in self.ops}
        at = {op.key: (program.slot[op.key], stage, within) for op in self.ops}
        self.issued = {key: int(times.issued[where]) for key, where in at.items()}
        self.over = {key: int(times.end[where]) for key, where in at.items()}

    def stands_for(self, now: int) -> Key | None:
        """The first in the order of the program that the rank cannot go on without."""
        for op in self.ops:
            if self.issued[op.key] > now:
                return None  # the host has not come so far
            for key in op.after:
                if self.over[key] > now:
                    return key if self.kind[key] in TRANSFERS else None
            if op.kind == "compute" and self.over[op.key] > now:
                return None  # it computes
        return None

    def blocked(self) -> Counter[Key]:
        found: Counter[Key] = Counter()
        moments = sorted({t for t in (*self.issued.values(), *self.over.values()) if t < NEVER})
        for since, until in pairwise(moments):
            key = self.stands_for(since)
            if key is not None:
                found[key] += until - since
        return found


@pytest.mark.parametrize(
    ("job", "faults"),
    [(job, faults) for job in JOBS for faults in FAULTS if job["ranks"] > 1 or not faults],
    ids=str,
)
def test_whoever_looks_at_every_moment_sees_the_same(
    job: dict[str, Any], faults: tuple[str, ...]
) -> None:
    world, _, times = a_step(a_scenario(*faults, **{"microbatches": 2, **job}))
    for stage in range(world.cluster.stages):
        told = Line.of(world.program, stage).blocked_ns(times, stage)
        for within in range(world.cluster.per_stage):
            seen = Looker(world.program, times, stage, within)
            blocked = seen.blocked()
            for key in seen.over:
                known = NULL if key == seen.stands_for(NEVER - 1) else blocked[key]
                assert told[world.program.slot[key], within] == known, key


def test_without_overlap_every_bucket_of_gradients_blocks() -> None:
    window = simulate(a_scenario("no_overlap", ranks=4, steps=2, quiet=True, sharding="ddp")).window
    comm = window.tables["comm_ops"]
    grads = comm.take(comm.strings("group").equals("dp-0"))
    lasted = grads.ints("end_ns") - grads.ints("start_ns")
    assert (grads.ints("blocked_ns") > 0.99 * lasted).all()


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_rank_computes_or_stands_for_an_operator(kind: str) -> None:
    """But for its first launches and copies in a step, no time is left."""
    degrees = {"tp": 2, "pp": 2, "ep": 2 if kind == "moe" else 1}
    window = simulate(a_scenario(ranks=8, steps=2, quiet=True, kind=kind, **degrees)).window
    of_step = {name: table.take(table.ints("step") == 1)
               for name, table in window.tables.items() if table.has("step")}  # fmt: skip
    for rank in range(8):
        comm, phases, steps = (
            of_step[name].take(of_step[name].ints("rank") == rank)
            for name in ("comm_ops", "phases", "steps")
        )
        passes = phases.take(phases.strings("phase").equals(FORWARD, BACKWARD, OPTIMIZER))
        waited = np.maximum(passes.ints("wait_ns"), 0)
        busy = int((passes.ints("duration_ns") - waited).sum() + comm.ints("blocked_ns").sum())
        assert 0.97 < busy / int(steps.ints("duration_ns")[0]) <= 1.0

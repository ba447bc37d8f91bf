"""A real job's operations, played by the engine, take the time they really took.

ByteDance's ST trace (Lin et al., Understanding Stragglers in Large Model Training Using What-if
Analysis, 2025) has every operation of eight workers, DP 2 x PP 4, for 32 steps. The engine gets how
long work and transfers lasted, a transfer from its last start on, and none of the waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stepscope.simulate.engine import Costs, Grid, play
from stepscope.simulate.plan import Plan
from stepscope.simulate.program import Key, Kind, Op, Program
from stepscope.simulate.schedule import order_of

TRACE = Path(__file__).parents[3] / "shared/traces/bytedance-st/trace-ST.parquet"
STAGES, REPLICAS, MICROBATCHES = 4, 2, 4
GRID = Grid((REPLICAS, 1, 1, 1), {"dp": (0, 1, 2)})
TOLERANCE = 0.05
S = 1_000_000_000

Recorded = Mapping[tuple[str, int, int, int], tuple[float, float]]
"""Start and duration by operation, its number, stage and replica."""

pytestmark = pytest.mark.skipif(not TRACE.exists(), reason="the trace is not here")


def stage_ops(stage: int) -> Iterator[Op]:
    """What a worker of a stage did, by the trace's own names."""
    before: tuple[Key, ...] = (("params-all-gather", 0),)
    yield _op("params-all-gather", 0, "collective", "dp", group="dp")
    for cell in order_of(stage, STAGES, MICROBATCHES):
        way, number = cell.direction, cell.microbatch
        ahead = 1 if way == "forward" else -1
        if 0 <= stage - ahead < STAGES:
            partner = (stage - ahead, (f"{way}-send", number))
            yield _op(f"{way}-recv", number, "recv", f"{way}-recv", partner=partner)
            before = (*before, (f"{way}-recv", number))
        yield _op(f"{way}-compute", number, "compute", "compute", before)
        before = ((f"{way}-compute", number),)
        if 0 <= stage + ahead < STAGES:
            partner = (stage + ahead, (f"{way}-recv", number))
            yield _op(f"{way}-send", number, "send", f"{way}-send", before, partner=partner)
    if stage in (0, STAGES - 1):
        name = "embedding-grads-all-reduce"
        yield _op(name, 0, "collective", "compute", before, "embedding")
    yield _op("grads-reduce-scatter", 0, "collective", "compute", before, "dp")
    yield _op("optimizer-clip-main-grad", 0, "collective", "compute", group="world")
    yield _op("optimizer", 0, "compute", "compute")
    yield Op(("end",), "end", "sync", "host", "", after=(("optimizer", 0),))


def _op(
    name: str, number: int, kind: Kind, stream: str, after: tuple[Key, ...] = (), group: str = "",
    partner: tuple[int, Key] | None = None,
) -> Op:  # fmt: skip
    return Op((name, number), name, kind, stream, "", after=after, group=group, partner=partner)


def steps() -> Iterator[tuple[Recorded, float]]:
    """Every step's operations, and how long it took."""
    table: list[dict[str, Any]] = pq.read_table(TRACE).to_pylist()
    for step in sorted({row["step"] for row in table}):
        rows = [row for row in table if row["step"] == step]
        found = {(row["optype"], row["seq_id"], row["stage"], row["dp_rank"]):
                 (row["start_ts"], row["duration"]) for row in rows}  # fmt: skip
        begin = min(start for start, _ in found.values())
        yield found, max(start + lasted for start, lasted in found.values()) - begin


def costs(plan: Plan, recorded: Recorded) -> Costs:
    program = plan.program
    lasting = np.zeros((len(program.ops), STAGES, REPLICAS), np.int64)
    for stage, ops in enumerate(program.stages):
        for op in ops[:-1]:
            for replica in range(REPLICAS):
                took = min(_took(recorded, member) for member in _members(op, stage, replica))
                lasting[program.slot[op.key], stage, replica] = round(took * S)
    return Costs(lasting, np.zeros_like(lasting))


def _took(recorded: Recorded, member: tuple[Key, int, int]) -> float:
    (name, number), stage, replica = member
    return recorded[str(name), int(number), stage, replica][1]


def _members(op: Op, stage: int, replica: int) -> list[tuple[Key, int, int]]:
    """All who took part: the one who came last waited for nobody."""
    stages, replicas = [stage], [replica]
    if op.partner is not None:
        return [(op.key, stage, replica), (op.partner[1], op.partner[0], replica)]
    if op.group in ("dp", "world"):
        replicas = list(range(REPLICAS))
    if op.group == "world":
        stages = list(range(STAGES))
    if op.group == "embedding":
        stages = [0, STAGES - 1]
    return [(op.key, one, other) for one in stages for other in replicas]


def test_every_step_takes_what_it_really_took() -> None:
    plan = Plan(Program(tuple(tuple(stage_ops(stage)) for stage in range(STAGES))))
    start = np.zeros((STAGES, REPLICAS), np.int64)
    found = [(float(play(plan, GRID, costs(plan, recorded), start).done.max()) / S, took)
             for recorded, took in steps()]  # fmt: skip
    played, really = np.array(found).T
    assert len(found) == 32
    assert np.abs(played / really - 1).max() < TOLERANCE

"""What PyTorch's own tools leave of a small job, as files: traces of its ranks, and their dumps.

Four ranks train six steps of 100 ms: forward, backward, an all-reduce that all leave together, and
the optimizer. One rank may compute longer in every step.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.formats.flight_recorder.recorders import a_job, everyone
from tests.formats.flight_recorder.recorders import write as write_recorders
from tests.formats.kineto.traces import AUTOGRAD, COLLECTIVE, Event, event, launched, trace, write

RANKS, STEPS = 4, 6
_FORWARD_US, _BACKWARD_US, _TRANSFER_US, _OPTIMIZER_US, _GAP_US = 20e3, 60e3, 10e3, 8e3, 2e3
_SCATTER = 0.01


def write_traces(
    folder: Path, slow_rank: int | None = None, ranks: int = RANKS, ending: str = ".json"
) -> Path:
    """One trace per rank; the slow rank takes half as long again for its backward."""
    scatter = random.Random(7)
    events: list[list[Event]] = [[] for _ in range(ranks)]
    now = 1000.0
    for step in range(STEPS):
        stretch = [1 + _SCATTER * scatter.random() + 0.5 * (rank == slow_rank)
                   for rank in range(ranks)]  # fmt: skip
        whole = _FORWARD_US + _BACKWARD_US * max(stretch) + _TRANSFER_US
        for rank, mine in enumerate(events):
            mine.extend(_a_step(step, now, _BACKWARD_US * stretch[rank], now + whole, ranks))
        now += whole + _OPTIMIZER_US + _GAP_US
    folder.mkdir(parents=True, exist_ok=True)
    for rank, mine in enumerate(events):
        content = trace(mine, rank, ranks, distributedInfo=_distributed(rank, ranks))
        content["traceEvents"] = content.pop("traceEvents")  # last, as PyTorch writes it
        write(folder / f"rank{rank}{ending}", content)
    return folder


def _distributed(rank: int, ranks: int) -> Event:
    """What PyTorch says of a job with NCCL; dumps of its Flight Recorder have such keys, too."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
             "pg_size": ranks, "ranks": [*range(ranks)]}  # fmt: skip
    return {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": 1,
            "pg_config": [group], "nccl_version": "2.27.3"}  # fmt: skip


def _a_step(number: int, at: float, backward: float, reduced: float, ranks: int) -> list[Event]:
    """Kernels one after the other; the all-reduce lasts until `reduced`."""
    after = at + _FORWARD_US
    arrive, step = after + backward, f"ProfilerStep#{number + 3}"
    collective = {**COLLECTIVE, "Group size": ranks, "Process Group Ranks": str([*range(ranks)])}
    node = "autograd::engine::evaluate_function:"
    return [
        event("user_annotation", step, at, reduced + _OPTIMIZER_US + _GAP_US - at - 1),
        event("cpu_op", "aten::linear", at + 10, _FORWARD_US - 20),
        *launched("gemm", at + 20, at + 100, _FORWARD_US - 100),
        event("cpu_op", f"{node} AddmmBackward0", after, 300, AUTOGRAD),
        *launched("gemm_backward", after + 10, after + 30, backward - 30, tid=AUTOGRAD),
        event("cpu_op", f"{node} AccumulateGrad", after + 310, 100, AUTOGRAD),
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                  after + 320, arrive, reduced - arrive, 20, collective, tid=AUTOGRAD),
        event("user_annotation", "Optimizer.step#SGD.step", reduced, _OPTIMIZER_US),
        event("cpu_op", "aten::_foreach_add_", reduced + 10, _OPTIMIZER_US - 20),
        *launched("multi_tensor_apply", reduced + 20, reduced + 100, _OPTIMIZER_US - 200),
    ]  # fmt: skip


def write_dumps(folder: Path, absent: int | None = None, ranks: int = RANKS) -> Path:
    """One dump per rank, an hour after its last call; the absent rank never entered that call."""
    job = a_job(ranks)
    everyone(job, "all_reduce", times=3)
    if absent is not None:
        everyone([one for one in job if one.rank != absent], "all_reduce", state="scheduled")
    return write_recorders(folder, job)

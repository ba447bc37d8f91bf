"""Small traces as PyTorch writes them, for tests: two steps of one rank with whatever is asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN, AUTOGRAD = 100, 101
STEP_US = 1000.0
BASE_NS = 1_711_964_646_000_000_000


def event(cat: str, name: str, ts: float, dur: float, tid: Any = MAIN, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": MAIN, "tid": tid,
            "ts": ts, "dur": dur, "args": args}  # fmt: skip


def launched(
    name: str, launch: float, start: float, dur: float, stream: int = 7, args: Event | None = None,
    cat: str = "kernel", tid: int = MAIN,
) -> list[Event]:  # fmt: skip
    """A kernel and the call that launched it."""
    id = int(launch * 10)
    return [
        event("cuda_runtime", "cudaLaunchKernel", launch, 5, tid, correlation=id),
        event(cat, name, start, dur, stream, correlation=id, stream=stream, device=0, **args or {}),
    ]


COLLECTIVE = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
    "Group size": 2, "dtype": "Float", "Process Group Name": "0",
    "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def gpu_step(number: int, at: float, marked: bool = True, args: Event | None = None) -> list[Event]:
    """Data 0-50, forward 100-200, backward 200-500 with an all-reduce, optimizer 600-650."""
    collective = COLLECTIVE if args is None else args
    step = [event("user_annotation", f"ProfilerStep#{number}", at, STEP_US - 1)] if marked else []
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    return [
        *step,
        event("user_annotation", loader, at, 50),
        *launched("Memcpy HtoD (Pinned -> Device)", at + 60, at + 65, 20, cat="gpu_memcpy"),
        event("cpu_op", "aten::linear", at + 100, 50),
        event("cpu_op", "aten::addmm", at + 110, 20),
        *launched("gemm", at + 115, at + 130, 100),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 200, 100,
              AUTOGRAD),
        *launched("gemm_backward", at + 210, at + 240, 200, tid=AUTOGRAD),
        event("cpu_op", "autograd::engine::evaluate_function: AccumulateGrad", at + 310, 100,
              AUTOGRAD),
        *launched("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", at + 320, at + 400, 150,
                  20, collective, tid=AUTOGRAD),
        event("user_annotation", "Optimizer.step#SGD.step", at + 600, 50),
        event("cpu_op", "aten::add_", at + 605, 20),
        *launched("add_", at + 610, at + 620, 30),
    ]  # fmt: skip


def gpu_events(steps: int = 2, marked: bool = True, args: Event | None = None) -> list[Event]:
    return [one for n in range(steps) for one in gpu_step(n + 5, 1000 + n * STEP_US, marked, args)]


def trace(events: list[Event], rank: int | None = 0, world: int = 2, **more: Any) -> Event:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world}}
    return {"schemaVersion": 1, "deviceProperties": [], **info, "traceEvents": events,
            "traceName": "t.json", "baseTimeNanoseconds": BASE_NS, **more}  # fmt: skip


def write(path: Path, content: Any) -> Path:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path

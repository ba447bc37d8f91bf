"""The jobs that `benchmarks/gpu.py` runs, each in its own process; each prints one JSON line.

    python benchmarks/gpu_train.py overhead --model transformer --graph --steps 300
    python benchmarks/gpu_train.py paired --seconds 60
    python benchmarks/gpu_train.py turns --turn FIFO --next FIFO --blocks 100
    python benchmarks/gpu_train.py graphs
    python benchmarks/gpu_train.py launches --count 10000 [--profile]
    python benchmarks/gpu_train.py durations
    python benchmarks/gpu_train.py soak --seconds 600
    python benchmarks/gpu_train.py train --seconds 60
    python benchmarks/gpu_train.py ranks --steps 120 --slow-rank 1 --from-step 60

On a CPU the sizes are tiny: such a run only shows that the code works.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32
BLOCK = 10
"""Steps between two time measurements, each after a synchronisation, as for logging a loss."""


PER_STEP = 50
WARM_UP = 40


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, rows: Any) -> Any:
        batch, length, width = rows.shape
        split = self.qkv(rows).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, rows: Any) -> Any:
        rows = rows + self.self_attention(self.norms[0](rows))
        return rows + self.mlp(self.norms[1](rows))


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    """20 layers of 2,048: 1.0 billion parameters, two times 1,024 tokens a step."""
    width, layers, heads, length = (2048, 20, 16, 1024) if HAS_GPU else (64, 2, 4, 32)
    return nn.Sequential(*[Layer(width, heads) for _ in range(layers)]), (2, length, width)


def launch_bound() -> tuple[nn.Module, tuple[int, ...]]:
    """Very many small operators: one row of 1,024 through 64 blocks of four."""
    width, blocks = (1024, 64) if HAS_GPU else (64, 4)
    parts = [(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.0))
             for _ in range(blocks)]  # fmt: skip
    return nn.Sequential(*[part for block in parts for part in block]), (1, width)


def overhead(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model, shape = transformer() if arguments.model == "transformer" else launch_bound()
    model.to(DEVICE, DTYPE)
    fused = HAS_GPU and arguments.model == "transformer"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused, foreach=False)
    passes = _passes(model, torch.randn(shape, device=DEVICE, dtype=DTYPE))
    run = _captured(passes) if arguments.graph and HAS_GPU else passes
    total = arguments.warm_up + arguments.steps
    blocks: list[float] = []
    before = time.perf_counter()
    for step, _ in enumerate(DataLoader(TensorDataset(torch.zeros(total, 1)))):
        run()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if step % BLOCK == BLOCK - 1:
            _synchronize()
            now = time.perf_counter()
            blocks.append((now - before) / BLOCK)
            before = now
    kept = blocks[arguments.warm_up // BLOCK :]
    return {"step_seconds": statistics.median(kept), "parameters": _count(model), **_memory()}


def _passes(model: nn.Module, rows: Any) -> Callable[[], None]:
    def run() -> None:
        model(rows).float().square().mean().backward()

    return run


def _trained(model: nn.Module, shape: tuple[int, ...]) -> Callable[[], None]:
    """One step of training: both passes and AdamW."""
    model.to(DEVICE, DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=HAS_GPU)
    passes = _passes(model, torch.randn(shape, device=DEVICE, dtype=DTYPE))

    def step() -> None:
        passes()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    """Both passes as one CUDA graph, after three eager warm-up runs, as CUDA requires."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def paired(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of the transformer in blocks, in turns without our recording and with it."""
    step = _trained(*transformer())
    path = os.environ.get("CUDA_INJECTION64_PATH")
    tracer = ctypes.CDLL(path) if path else None
    blocks: tuple[list[float], list[float]] = ([], [])
    _block(step, WARM_UP)
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for on in (False, True) if len(blocks[0]) % 2 else (True, False):
            if tracer is not None:
                tracer.stepscope_cupti_resume() if on else tracer.stepscope_cupti_pause()
            _block(step, 2)  # the first ones after a change do not count
            blocks[on].append(_block(step))
    return {"without": blocks[0], "recording": blocks[1], "kernels": _launched_by(step)}


def turns(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step in blocks, each after a byte from a process that waits meanwhile."""
    train = _trained(*(transformer() if arguments.model == "transformer" else launch_bound()))
    batches = iter(DataLoader(TensorDataset(torch.zeros(1 << 20, 1))))

    def step() -> None:
        next(batches)
        train()

    _block(step, WARM_UP)
    turn, following = (os.open(path, os.O_RDWR) for path in (arguments.turn, arguments.next))
    blocks = []
    for _ in range(arguments.blocks):
        os.read(turn, 1)
        _block(step, 2)  # the first ones after a pause do not count
        blocks.append(_block(step))
        os.write(following, b"x")
    return {"blocks": blocks}


def _block(step: Callable[[], None], steps: int = 20) -> float:
    _synchronize()
    begun = time.perf_counter()
    for number in range(steps):
        step()
        if number % BLOCK == BLOCK - 1:
            _synchronize()
    return (time.perf_counter() - begun) / steps


def _launched_by(step: Callable[[], None]) -> int:
    with torch.profiler.profile() as profiler:
        step()
        _synchronize()
    return sum(_on_gpu(event) for event in profiler.events() or ())


def graphs(_arguments: argparse.Namespace) -> dict[str, Any]:
    """CUDA graphs of all ages, launched while what is recorded changes."""
    model, shape = launch_bound()
    model.to(DEVICE, DTYPE)
    passes = _passes(model, torch.randn(shape, device=DEVICE, dtype=DTYPE))
    runs = [passes, _captured(passes) if HAS_GPU else passes]
    launched = 0
    for turn in range(3):
        until = time.monotonic() + 11.0  # a whole period of recording, and not
        while time.monotonic() < until:
            for run in runs:
                run()
            _synchronize()
            launched += len(runs) - 1
            _step_once()
        with torch.profiler.profile():
            runs[-1]()
            if HAS_GPU and turn == 1:
                runs.append(_captured(passes))
            _synchronize()
        if HAS_GPU:
            runs.append(_captured(passes))
    return {"launched": launched}


def launches(arguments: argparse.Namespace) -> dict[str, Any]:
    """Launches `count` uniquely named kernels three times; the second time under a profiler."""
    rows = torch.zeros(1024, device=DEVICE)
    _step_once()
    profiled = 0
    for part in range(3):
        if part == 1 and arguments.profile:
            with torch.profiler.profile() as profiler:
                _launch(rows, arguments.count)
                _synchronize()
            profiled = sum("erfinv" in event.name.lower() and _on_gpu(event)
                           for event in profiler.events() or ())  # fmt: skip
        else:
            _launch(rows, arguments.count)
            _synchronize()
        time.sleep(2.5)  # CUPTI delivers completed buffers once a second
    return {"count": arguments.count, "profiled": profiled}


def _launch(rows: Any, count: int) -> None:
    for _ in range(count):
        rows.erfinv_()


def _on_gpu(event: Any) -> bool:
    return "CUDA" in str(event.device_type)


def durations(_arguments: argparse.Namespace) -> dict[str, Any]:
    """One kernel of some milliseconds, repeated, and backward, between the job's own events."""
    rows = torch.zeros(1 << 29 if HAS_GPU else 1024, device=DEVICE)  # 2 GiB, read and written
    _step_once()
    kernel = [_between(rows.erfinv_) for _ in range(60)][10:]
    model, shape = transformer()
    model.to(DEVICE, DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    data = torch.randn(shape, device=DEVICE, dtype=DTYPE)
    backward = []
    for _ in DataLoader(TensorDataset(torch.zeros(60, 1))):
        loss = model(data).float().square().mean()
        backward.append(_between(loss.backward))
        optimizer.step()
        optimizer.zero_grad()
    return {"kernel_ns": statistics.median(kernel), "backward_ns": statistics.median(backward[10:])}


def _between(work: Callable[[], Any]) -> float:
    """The time the GPU takes, measured by CUDA events, in ns."""
    if not HAS_GPU:
        begun = time.perf_counter_ns()
        work()
        return float(time.perf_counter_ns() - begun)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end) * 1e6)


def soak(arguments: argparse.Namespace) -> dict[str, Any]:
    """Memory once a second, while the host launches as many kernels as it can."""
    rows = torch.zeros(1024, device=DEVICE)
    _step_once()
    until = time.monotonic() + arguments.seconds
    samples: list[dict[str, int]] = []
    count = 0
    while time.monotonic() < until:
        second = time.monotonic() + 1.0
        while time.monotonic() < second:
            _launch(rows, 1000)
            count += 1000
            _synchronize()
        _step_once()
        samples.append(_memory())
    return {"count": count, "samples": samples}


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Steps with `PER_STEP` uniquely named kernels, for some seconds: a job to look at."""
    model, shape = launch_bound()
    model.to(DEVICE, DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    data, rows = torch.randn(shape, device=DEVICE, dtype=DTYPE), torch.zeros(1024, device=DEVICE)
    steps, begun = 0, time.monotonic()
    for _ in DataLoader(TensorDataset(torch.zeros(1 << 20, 1))):
        steps += 1
        _launch(rows, PER_STEP)
        model(data).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        _synchronize()
        if time.monotonic() - begun > arguments.seconds:
            break
    return {"count": steps * PER_STEP, "seconds": time.monotonic() - begun}


def ranks(arguments: argparse.Namespace) -> dict[str, Any]:
    """Gradients averaged by DDP; from some step on one rank computes more than the others."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    os.environ.setdefault("NCCL_HOSTID", f"h{rank}")  # two ranks on one GPU: as if on two hosts
    dist.init_process_group("nccl" if HAS_GPU else "gloo")
    width = 1024 if HAS_GPU else 128
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).to(DEVICE)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4)
    data = torch.randn(64, width, device=DEVICE)
    for step, _ in enumerate(DataLoader(TensorDataset(torch.zeros(arguments.steps, 1)))):
        if rank == arguments.slow_rank and step >= arguments.from_step:
            _work_for(0.1)
        wrapped(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        _synchronize()
    dist.destroy_process_group()
    return {"rank": rank}


def _work_for(seconds: float) -> None:
    """Matrix products on this rank's GPU, or busy time on its CPU."""
    until = time.monotonic() + seconds
    rows = torch.randn(256, 256, device=DEVICE)
    while time.monotonic() < until:
        rows = torch.mm(rows, rows).clamp(-1, 1)
        _synchronize()


def _step_once() -> None:
    """Looks like training, without which stepscope does not record."""
    one = torch.ones(1, device=DEVICE, requires_grad=True)
    one.sum().backward()
    torch.optim.SGD([one], lr=0.0).step()


def _synchronize() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()


def _count(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def _memory() -> dict[str, int]:
    """Current memory of this process, and of the whole GPU, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        resident = int(statm.read().split()[1]) * resource.getpagesize()
    free, total = torch.cuda.mem_get_info() if HAS_GPU else (0, 0)
    return {"rss_bytes": resident, "gpu_bytes": total - free}


JOBS = {
    "overhead": overhead,
    "paired": paired,
    "turns": turns,
    "graphs": graphs,
    "launches": launches,
    "durations": durations,
    "soak": soak,
    "train": train,
    "ranks": ranks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--model", choices=("transformer", "launches"), default="transformer")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turn", help="a FIFO: with each byte from it this process runs a block")
    parser.add_argument("--next", help="the FIFO of the process whose turn is next")
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--from-step", type=int, default=60)
    arguments = parser.parse_args()
    if not HAS_GPU:
        torch.set_num_threads(1)
    print(json.dumps(JOBS[arguments.job](arguments)), flush=True)


if __name__ == "__main__":
    main()

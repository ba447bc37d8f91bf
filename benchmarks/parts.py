"""Benchmark of the hooks on parts of a model, on the CPU: cost per call, and of finding the parts.

    python -m benchmarks.parts [--calls 20000] [--rounds 7]

A module that does nothing is called with and without our hooks, alternating. In training, modules
have hooks only in sampled steps. Times are CPU times of the thread. The session's moments are
cleared between rounds, as the sender's thread does in training.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from typing import Any

import torch
from torch import nn

from stepscope.collect.hooks.modules import Parts
from stepscope.collect.identity import Identity
from stepscope.collect.session import Session


class MLP(nn.Module):
    """Recognised by its class name; does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, rows: Any) -> Any:
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    who = Identity("benchmark", "/nowhere", "here", rank=0, world_size=1, local_rank=0)
    session = Session("/nowhere/socket", who)
    session.started = True  # there is no processor, so do not start a thread that looks for one
    bare = nn.ModuleDict({"mlp": MLP()})["mlp"]
    begun = time.thread_time_ns()
    parts, watched = Parts(session, every=1), nn.ModuleDict({"mlp": MLP()})
    parts.stepped()
    found_ms = (time.thread_time_ns() - begun) / 1e6
    costs: dict[str, list[float]] = {"no hooks": [], "sampled": [], "hooks on and off": []}
    for _ in range(arguments.rounds):
        costs["no hooks"].append(_per_call(bare, arguments.calls))
        costs["sampled"].append(_per_call(watched["mlp"], arguments.calls))
        session._moments.clear()
        costs["hooks on and off"].append(_per_step(parts, arguments.calls))
    print(f"load {os.getloadavg()[0]:.1f}; CPU time of a call, median of {arguments.rounds}")
    base = statistics.median(costs["no hooks"])
    for name, times in costs.items():
        median = statistics.median(times)
        print(f"{name:16} {median:6.0f} ns, {median - base:+6.0f} ns ({min(times):.0f} at best)")
    print(f"finding the parts among {len(gc.get_objects())} objects, once: {found_ms:.0f} ms")


def _per_call(module: nn.Module, calls: int) -> float:
    rows = torch.ones(1)
    begun = time.thread_time_ns()
    for _ in range(calls):
        module(rows)
    return (time.thread_time_ns() - begun) / calls


def _per_step(parts: Parts, steps: int) -> float:
    """Measures one module."""
    begun = time.thread_time_ns()
    for _ in range(steps):
        parts.stepped()
    return (time.thread_time_ns() - begun) / steps


if __name__ == "__main__":
    main()

"""Benchmark of step graph, critical path and replay of a large job's steps (ARGUS level 4).

    python benchmarks/critical_path.py [--ranks 10240] [--steps 20] [--rounds 3] [--folder JOB]

Simulates a job with one slow device, or reads a job folder, and uses as many steps as the diagnosis
would. The baseline is one stable sort of the end times of the same rows. Prints CPU times, the best
of several rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from stepscope.diagnose.decide.cost import what_if
from stepscope.diagnose.graph.critical_path import critical_path, shares
from stepscope.diagnose.graph.replay import Replay
from stepscope.diagnose.graph.step_graph import StepGraph, spread, step_graph
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.store.reader import JobReader
from stepscope.trace import BACKWARD
from stepscope.window import Window

Result = TypeVar("Result")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    window = read(arguments.folder, arguments.ranks, arguments.steps)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before")
    measure(Observed(window), arguments.rounds)


def read(folder: Path | None, ranks: int, steps: int) -> Window:
    if folder is not None:
        return JobReader(str(folder)).read()
    fault = parse_fault(f"gpu_slow:rank={ranks // 2},factor=1.5,from=5")
    return simulate(Scenario(ranks=ranks, steps=steps, detail="brief", faults=(fault,))).window


def measure(seen: Observed, rounds: int) -> None:
    columns = spread(seen.window, seen.line, np.arange(seen.line.warm_up, len(seen.line.steps)))
    graph = timed("the graph", rounds, lambda: step_graph(seen.window, seen.line, columns))
    if graph is None:
        raise SystemExit("this job recorded no ends of operators")
    print(f"  {graph.op.size} rows of {columns.size} steps, {graph.bounds.size - 1} operators")
    path = timed("the path", rounds, lambda: critical_path(anew(graph)))
    timed("its shares", rounds, lambda: shares(seen.window, path))
    replay = timed("levels", rounds, lambda: Replay.of(graph))
    rows, ends = np.zeros(graph.op.size, np.int64), np.zeros(len(graph.lanes), np.int64)
    timed("a replay", rounds, lambda: replay.finish_ns(rows, ends))
    seen.total, seen.graph  # noqa: B018  computed here, so that they are not measured
    timed("what if", rounds, lambda: what_if(seen, [culprit(seen)]))
    timed("a sort of the ends", rounds, lambda: np.argsort(graph.end_ns, kind="stable"))


def anew(graph: StepGraph) -> StepGraph:
    """A copy without cached results."""
    return replace(graph)


def culprit(seen: Observed) -> Suspect:
    """The slow device, as the diagnosis would find it."""
    row, steps = len(seen.line.ranks) // 2, len(seen.line.steps)
    return Suspect(row, BACKWARD, (BACKWARD,), 5, steps, 0.4, 50.0, 5.0, 1e8, 1.5, 1)


def timed(what: str, rounds: int, work: Callable[[], Result]) -> Result:
    best, result = float("inf"), None
    for _ in range(rounds):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    print(f"{what:20} {best * 1e3:8.1f} ms", flush=True)
    assert result is not None
    return result


if __name__ == "__main__":
    main()

"""Benchmark of the trace graph's walk (VenusTrace) and of all pairs of rhythms (KAIR), in C++.

    python benchmarks/passes.py [--rounds 5]

Random durations of one step of 1F1B, and random rhythms. Prints CPU times, the best of several
rounds, and checks each against numpy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from stepscope.diagnose.graph.pass_graph import Topology, by_numpy, slacks, walk
from stepscope.diagnose.numeric import compiled
from stepscope.simulate.schedule import order_of

Result = TypeVar("Result")
SHAPES = ((8, 32, 8, 64), (16, 64, 8, 128))
"""Stages, microbatches, ranks that share layers, replicas."""
WORKERS, POINTS = 10_240, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    random = np.random.default_rng(0)
    for stages, microbatches, members, replicas in SHAPES:
        topology = one_f_one_b(stages, microbatches)
        shape = (len(topology.order), members, replicas)
        lasted = random.integers(10**7, 2 * 10**7, shape)
        nothing = np.zeros(0, np.int64)
        ranks = stages * members * replicas
        found = timed(f"slacks, {ranks} ranks", rounds, lambda t=topology, d=lasted, n=nothing: (
            slacks(t, d, n)))  # type: ignore[misc] # fmt: skip
        assert (found.slack_ns == by_numpy(topology, lasted, nothing).slack_ns).all()
    rhythms = np.sort(random.integers(0, 2**15, (WORKERS, POINTS)).astype(np.int16), axis=1)
    packed = rhythms.tobytes()
    means = timed(f"rhythms, {WORKERS} workers", rounds, lambda: np.frombuffer(
        compiled.mean_divergences(packed, POINTS)))  # fmt: skip
    apart = np.abs(rhythms[0].astype(np.int64) - rhythms).max(axis=1).sum() / (WORKERS - 1)
    assert abs(means[0] - apart / 32767) < 1e-9


def one_f_one_b(stages: int, microbatches: int) -> Topology:
    """The passes of one step, as `graph.passes` numbers them."""
    before = np.full((2 * stages * microbatches, 2), -1)
    for stage in range(stages):
        last = -1
        for cell in order_of(stage, stages, microbatches):
            forward = stage * microbatches + cell.microbatch
            backward = forward + stages * microbatches
            if cell.direction == "forward":
                node, source = forward, forward - microbatches if stage else -1
            else:
                node = backward
                source = backward + microbatches if stage < stages - 1 else forward
            before[node], last = (last, source), node
    order = walk(before)
    assert order is not None
    return Topology(order, before)


def timed(what: str, rounds: int, work: Callable[[], Result]) -> Result:
    best, result = float("inf"), None
    for _ in range(rounds):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    print(f"{what:30} {best * 1e3:8.1f} ms", flush=True)
    assert result is not None
    return result


if __name__ == "__main__":
    main()

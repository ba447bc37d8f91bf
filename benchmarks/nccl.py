"""Benchmark of calls of the NCCL profiler plugin, in the calling thread, without a GPU.

    python -m benchmarks.nccl [--rounds 5]

1,500 all-reduces per thread, each with a proxy of four send steps and a kernel channel, through
version 6 of the profiler interface; another thread drains the sender's queue. Goal: 200 ns per
call. Prints CPU times of the calling threads: minimum, median and maximum of the rounds, each a
fresh process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.native_driver import compiled, drain_at, output_of

_CALLS = ("operator", "proxy", "step", "kernel channel")
_THREADS = (1, 2, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder) / "calls", Path(folder) / "p.sock"
        compiled("nccl_calls.cpp", ("nccl", "sender"), program)
        drain_at(path)
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs; ns per call")
        for threads in _THREADS:
            _print(threads, [_run(program, path, threads) for _ in range(rounds)])


def _run(program: Path, path: Path, threads: int) -> list[int]:
    return [int(word) for word in output_of(program, path, str(threads)).split()]


def _print(threads: int, rounds: Sequence[Sequence[int]]) -> None:
    for call, times in zip(_CALLS, zip(*rounds, strict=True), strict=True):
        median = statistics.median(times)
        print(f"{threads} threads, {call}: {min(times)}, {median:.0f}, {max(times)}")


if __name__ == "__main__":
    main()

"""What a call of the plugin costs the thread of NCCL that makes it, without a GPU.

    python -m benchmarks.nccl [--rounds 5]

1,500 all-reduces per thread, each with a proxy of four sending steps and a kernel channel, by
version 6 of the table; somebody empties the sender's queue. Goal: 200 ns per call. Processor time
of the calling threads: the least, the median and the most of the rounds, each a fresh process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FLAGS = ("-std=c++17", "-O2", "-fvisibility=hidden", "-pthread", f"-I{ROOT / 'native'}")
_CALLS = ("operator", "proxy", "step", "kernel channel")
_THREADS = (1, 2, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder) / "calls", Path(folder) / "p.sock"
        _compile(program)
        threading.Thread(target=_swallow, args=(_listening(path),), daemon=True).start()
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors; ns per call")
        for threads in _THREADS:
            _print(threads, [_run(program, path, threads) for _ in range(rounds)])


def _run(program: Path, path: Path, threads: int) -> list[int]:
    env = {**os.environ, "STEPSCOPE_SOCKET": str(path), "STEPSCOPE_JOB": "benchmark"}
    done = subprocess.run(
        [program, str(threads)], env=env, capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def _print(threads: int, rounds: Sequence[Sequence[int]]) -> None:
    for call, times in zip(_CALLS, zip(*rounds, strict=True), strict=True):
        median = statistics.median(times)
        print(f"{threads} threads, {call}: {min(times)}, {median:.0f}, {max(times)}")


def _compile(program: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or "c++"
    folders = ("nccl", "sender")
    sources = [str(path) for one in folders for path in (ROOT / "native" / one).glob("*.cpp")]
    here = str(ROOT / "benchmarks" / "nccl_calls.cpp")
    subprocess.run([compiler, *_FLAGS, here, *sources, "-o", str(program), "-ldl"], check=True)


def _listening(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()
    return listening


def _swallow(listening: socket.socket) -> None:
    while True:
        line, _ = listening.accept()
        with line:
            while line.recv(1 << 16):
                pass


if __name__ == "__main__":
    main()

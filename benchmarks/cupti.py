"""Benchmark of the thread that reads kernel records from CUPTI buffers, without a GPU.

    python -m benchmarks.cupti [--rounds 3]

Buffers in CUPTI's format with 9,709 kernels of 200 names each are read 300 times, converted to
records and put into the sender's queue, which another thread empties. The result includes CUPTI's
own iteration over records if there is a libcupti up to CUDA 13.1 (later versions need a driver for
this); otherwise a stand-in iterates. The CPU time is that of the reading thread only, without the
sender's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.native_driver import compiled, drain_at, output_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder) / "worker", Path(folder) / "p.sock"
        compiled("cupti_worker.cpp", ("cupti", "sender"), program)
        drain_at(path)
        print(f"load {os.getloadavg()[0]:.1f}; ns per record")
        for _ in range(rounds):
            walk, least, median, most, callbacks, dropped = output_of(program, path).split()
            print(f"with {walk}: least {least}, median {median}, 90 % {most}; a buffer acquired, "
                  f"returned and freed {callbacks} ns; {dropped} dropped")  # fmt: skip


if __name__ == "__main__":
    main()

"""What a kernel's record costs the thread that reads it, without a GPU.

    python -m benchmarks.cupti [--rounds 3]

Buffers as CUPTI would hand them over, 9,709 kernels of 200 names each, are read 300 times into
records and put into the sender's queue, which somebody empties. CUPTI's own walk over records is in
the figure where there is a libcupti of at most CUDA 13.1 (later ones walk with a driver alone);
elsewhere a stand-in walks. Processor time of the reading thread; the sender's has its own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.native_driver import compiled, said, swallow_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder) / "worker", Path(folder) / "p.sock"
        compiled("cupti_worker.cpp", ("cupti", "sender"), program)
        swallow_at(path)
        print(f"load {os.getloadavg()[0]:.1f}; ns per record")
        for _ in range(rounds):
            walk, least, median, most, callbacks, dropped = said(program, path).split()
            print(f"with {walk}: least {least}, median {median}, 90 % {most}; a buffer handed out, "
                  f"taken back and freed {callbacks} ns; {dropped} dropped")  # fmt: skip


if __name__ == "__main__":
    main()

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
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FLAGS = ("-std=c++17", "-O2", "-fvisibility=hidden", "-pthread", f"-I{ROOT / 'native'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder) / "worker", Path(folder) / "p.sock"
        _compile(program)
        threading.Thread(target=_swallow, args=(_listening(path),), daemon=True).start()
        print(f"load {os.getloadavg()[0]:.1f}; ns per record")
        for _ in range(rounds):
            env = {**os.environ, "STEPSCOPE_SOCKET": str(path), "STEPSCOPE_JOB": "benchmark"}
            done = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
            walk, least, median, most, callbacks, dropped = done.stdout.split()
            print(f"with {walk}: least {least}, median {median}, 90 % {most}; a buffer handed out, "
                  f"taken back and freed {callbacks} ns; {dropped} dropped")  # fmt: skip


def _compile(program: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or "c++"
    folders = ("cupti", "sender")
    sources = [str(path) for one in folders for path in (ROOT / "native" / one).glob("*.cpp")]
    here = str(ROOT / "benchmarks" / "cupti_worker.cpp")
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

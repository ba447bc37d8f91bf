"""Shared by benchmarks of native code: compiles a driver program, and drains its socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_FLAGS = ("-std=c++17", "-O2", "-fvisibility=hidden", "-pthread", f"-I{_ROOT / 'native'}")


def compiled(driver: str, folders: tuple[str, ...], program: Path) -> None:
    """Compiles `benchmarks/<driver>` and the sources in these folders of `native` to a program."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or "c++"
    sources = [str(path) for one in folders for path in (_ROOT / "native" / one).glob("*.cpp")]
    here = str(_ROOT / "benchmarks" / driver)
    subprocess.run([compiler, *_FLAGS, here, *sources, "-o", str(program), "-ldl"], check=True)


def output_of(program: Path, path: Path, *arguments: str) -> str:
    """Runs the program with its records going to the socket at `path`, and returns its output."""
    env = {**os.environ, "STEPSCOPE_SOCKET": str(path), "STEPSCOPE_JOB": "benchmark"}
    done = subprocess.run(
        [program, *arguments], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def drain_at(path: Path) -> None:
    """Listens at a path and discards everything sent there, one connection after the other."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()
    threading.Thread(target=_drain, args=(listening,), daemon=True).start()


def _drain(listening: socket.socket) -> None:
    while True:
        line, _ = listening.accept()
        with line:
            while line.recv(1 << 16):
                pass

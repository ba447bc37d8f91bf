"""A native program that is told what to do line by line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from stepscope.collect import identity

END_SECONDS = 60.0
"""Nothing is measured by it: what takes longer hangs."""
SANITIZERS = {
    "TSAN_OPTIONS": "halt_on_error=1 exitcode=66 atexit_sleep_ms=0",
    "ASAN_OPTIONS": "exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class Driver:
    """One process. Each order is answered by one line."""

    def __init__(self, program: Path, env: Mapping[str, str]) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
        self._process = subprocess.Popen(
            [str(program)], env={**clean, **SANITIZERS, **env}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, *words: object) -> str:
        """Has an order obeyed; the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the driver died: {self._end()}"
        return answer.strip()

    def numbers(self, *words: object) -> list[int]:
        return [int(word) for word in self.ask(*words).split()]

    def end(self, order: str = "exit") -> None:
        """Has it leave, which it must do without a complaint of a sanitizer."""
        status, complaint = self._end(order)
        assert status == 0, complaint

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _end(self, order: str = "exit") -> tuple[int, str]:
        _, complaint = self._process.communicate(order + "\n", END_SECONDS)
        return self._process.returncode, complaint


def environment(socket: Path, **more: str) -> dict[str, str]:
    """As `stepscope run` and a launcher set it."""
    return {
        identity.SOCKET_VARIABLE: str(socket),
        identity.JOB_VARIABLE: "job-1",
        identity.STORE_VARIABLE: "/store",
        "STEPSCOPE_HOST": "host-0",
        "RANK": "1",
        "WORLD_SIZE": "2",
        **more,
    }

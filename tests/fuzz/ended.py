"""Runs a fuzzer to its end, also where it would never reach it.

libFuzzer ends itself, and any input that takes too long. What it does not see is a hang outside of
an input, as at the exit of a sanitizer: once in fifty runs of CI, nothing more was heard.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GRACE_S = 180.0
"""Longer than starting takes, and then twice the 60 s that the Makefile gives one input."""
HUNG = 124
"""The exit status of what hangs, as of `timeout`."""


def ended(command: Sequence[str], grace_s: float = GRACE_S) -> int:
    """The exit status; with -max_total_time, that of a second run if the first one hung."""
    limit_s = _most_seconds(command, grace_s)
    status = _within(limit_s, command)
    if status is None:
        print(f"{command[0]} did not end within {limit_s:.0f} s; once more", file=sys.stderr)
        status = _within(limit_s, command)
    return HUNG if status is None else status


def _most_seconds(command: Sequence[str], grace_s: float) -> float | None:
    """None: it may run for ever."""
    given = [one.partition("=")[2] for one in command if one.startswith("-max_total_time=")]
    return float(given[-1]) + grace_s if given else None


def _within(limit_s: float | None, command: Sequence[str]) -> int | None:
    """None: it had to be killed."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _print_place(process.pid)
            process.kill()
    return None


def _print_place(pid: int) -> None:
    """Where each of its threads is in the kernel, and its stacks, if it runs Python."""
    for thread in sorted(Path(f"/proc/{pid}/task").iterdir()):
        state = (thread / "status").read_text().partition("State:")[2].partition("\n")[0]
        print(f"thread {thread.name}:{state}, in {(thread / 'wchan').read_text()}", file=sys.stderr)
    spy = str(Path(sys.executable).with_name("py-spy"))
    subprocess.run(
        ["timeout", "30", spy, "dump", "--native", "--pid", str(pid)],
        check=False,
        stdout=sys.stderr,
    )

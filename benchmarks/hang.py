"""Benchmark of hang detection: how soon a stopped rank is reported, in step times of a real job.

    python benchmarks/hang.py [--pauses-ms 300 1000] [--times 5] [--ranks 3]

For each pause, which is most of a step, one job runs under `stepscope run`. Its rank 1 is stopped
(SIGSTOP) at a random moment of a step, continues as soon as the live line names it, and is stopped
again. The baseline is the step time as shown in the live line. The goal is a report within two
steps.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[1]
JOB = REPOSITORY / "tests" / "real"
SETTLE_SECONDS = 3.0
"""Between two stops: the job continues, and its last finished step is recent again."""
STOPPED_RANK = "1"
STEP_TIME = re.compile(r"([0-9.]+) (ms|s) per step")
SETTLED_LINES = 2
"""The first line may include only warm-up steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pauses-ms", type=int, nargs="+", default=[300, 500, 1000, 2000])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=3)
    arguments = parser.parse_args()
    for pause_ms in arguments.pauses_ms:
        step_seconds, delays = measure(pause_ms / 1e3, arguments.times, arguments.ranks)
        steps = [delay / step_seconds for delay in delays]
        print(
            f"{1e3 * step_seconds:.0f} ms steps, {arguments.ranks} ranks: reported after "
            f"{statistics.median(delays):.2f} s (median of {len(delays)}; "
            f"{min(delays):.2f} to {max(delays):.2f}), "
            f"{statistics.median(steps):.1f} steps ({min(steps):.1f} to {max(steps):.1f})"
        )


def measure(pause_seconds: float, times: int, ranks: int) -> tuple[float, list[float]]:
    """The step time, and the seconds from each stop to the line that reports it."""
    with running(pause_seconds, ranks) as job:
        lines = live_lines(job)
        settled = list(lines_of_steps(lines, SETTLED_LINES))
        step_seconds = step_time(settled[-1])
        stopped = rank_process(job)
        delays = []
        for _ in range(times):
            time.sleep(SETTLE_SECONDS + 4 * step_seconds + random.random() * step_seconds)
            stopped.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            next(line for line in lines if f"rank {STOPPED_RANK} hangs" in line)
            delays.append(time.monotonic() - began)
            stopped.send_signal(signal.SIGCONT)
        return step_seconds, delays


@contextmanager
def running(pause_seconds: float, ranks: int) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            str(BIN / "stepscope"), "run", "--store", folder, "--socket", f"{folder}/socket", "--",
            str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks),
            str(JOB / "train.py"), "--pause", str(pause_seconds), "--scenes", "none:100000",
        ]  # fmt: skip
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            yield job
        finally:
            for process in psutil.Process(job.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):  # its launcher killed it already
                    if "train.py" in " ".join(process.cmdline()):
                        process.kill()
            job.communicate()


def live_lines(job: subprocess.Popen[str]) -> Iterator[str]:
    """The live lines, as they arrive."""
    assert job.stderr is not None
    for line in job.stderr:
        print(f"  {line.rstrip()}", file=sys.stderr)
        yield line
    raise RuntimeError("the job ended")


def lines_of_steps(lines: Iterator[str], count: int) -> Iterator[str]:
    """Waits for the first lines that show a step time."""
    found = (line for line in lines if STEP_TIME.search(line))
    return itertools.islice(found, count)


def step_time(line: str) -> float:
    """Seconds."""
    found = STEP_TIME.search(line)
    assert found is not None
    return float(found[1]) * {"ms": 1e-3, "s": 1.0}[found[2]]


def rank_process(job: subprocess.Popen[str]) -> psutil.Process:
    for process in psutil.Process(job.pid).children(recursive=True):
        if process.environ().get("RANK") == STOPPED_RANK:
            return process
    raise RuntimeError(f"no process of rank {STOPPED_RANK}")


if __name__ == "__main__":
    main()

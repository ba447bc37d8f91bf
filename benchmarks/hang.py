"""How soon a stopped rank is told of, in step times: the live line of a real job, again and again.

    python benchmarks/hang.py [--steps-ms 300 1000] [--times 5] [--ranks 3]

For each step time one job runs under `stepscope run`; its rank 1 is stopped (SIGSTOP) at a random
moment of a step, goes on as soon as the live line names it, and is stopped again. The baseline is
the step itself: the issue of it all is to be told within twice its time.
"""

from __future__ import annotations

import argparse
import random
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
"""Between two stops: the job goes on, and its last finished step is young again."""
STOPPED_RANK = "1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps-ms", type=int, nargs="+", default=[300, 500, 1000, 2000])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=3)
    arguments = parser.parse_args()
    for step_ms in arguments.steps_ms:
        delays = measure(step_ms / 1e3, arguments.times, arguments.ranks)
        steps = [delay / (step_ms / 1e3) for delay in delays]
        print(
            f"{step_ms} ms steps, {arguments.ranks} ranks: told after "
            f"{statistics.median(delays):.2f} s (median of {len(delays)}; "
            f"{min(delays):.2f} to {max(delays):.2f}), "
            f"{statistics.median(steps):.1f} steps ({min(steps):.1f} to {max(steps):.1f})"
        )


def measure(step_seconds: float, times: int, ranks: int) -> list[float]:
    """Seconds from each stop to the line that tells of it."""
    with running(step_seconds, ranks) as job:
        lines = said(job)
        next(line for line in lines if " per step; " in line and "no steps" not in line)
        stopped = rank_process(job)
        delays = []
        for _ in range(times):
            time.sleep(SETTLE_SECONDS + 4 * step_seconds + random.random() * step_seconds)
            stopped.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            next(line for line in lines if f"rank {STOPPED_RANK} hangs" in line)
            delays.append(time.monotonic() - began)
            stopped.send_signal(signal.SIGCONT)
        return delays


@contextmanager
def running(step_seconds: float, ranks: int) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(BIN / "stepscope"), "run", "--store", folder, "--",
            sys.executable, str(JOB / "launch.py"), str(ranks),
            str(JOB / "train.py"), "--pause", str(step_seconds), "--scenes", "none:100000",
        ]  # fmt: skip
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            yield job
        finally:
            for process in psutil.Process(job.pid).children(recursive=True):
                if "train.py" in " ".join(process.cmdline()):
                    process.kill()
            job.communicate()


def said(job: subprocess.Popen[str]) -> Iterator[str]:
    """The live lines, as they come."""
    assert job.stderr is not None
    for line in job.stderr:
        print(f"  {line.rstrip()}", file=sys.stderr)
        yield line
    raise RuntimeError("the job ended")


def rank_process(job: subprocess.Popen[str]) -> psutil.Process:
    for process in psutil.Process(job.pid).children(recursive=True):
        if process.environ().get("RANK") == STOPPED_RANK:
            return process
    raise RuntimeError(f"no process of rank {STOPPED_RANK}")


if __name__ == "__main__":
    main()

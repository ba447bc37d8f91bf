"""Benchmark of the overhead in the trainer: the same job with and without stepscope, alternating.

    python benchmarks/overhead.py [--pairs 10] [--ranks 1] [--batch 256]

Runs pairs of fresh processes in the order ABBA, so that a machine that becomes slower over time
favours neither side. Prints the median ratio of mean step times with its 95 % bootstrap interval.
The baseline is the same command without `stepscope run`. Step times are expressed in units of a
fixed piece of work that the job does between steps: the CPUs of a shared machine change their speed
by half from second to second, and two processes differ by more than the overhead; both affect step
and piece alike. The C library is configured to use huge pages and to keep its memory, in both
modes: processes then differ by 0.6 % (step in pieces), otherwise by 1.1 %, depending on where their
pages happen to be. If there are enough cores, each rank has one to itself and everything else
(launcher, processor, py-spy, live view) runs on the last one, in both modes, as on a training host,
which has many cores. With as many ranks as cores all of them compete.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

BIN = Path(sys.executable).parent
MEMORY = {  # for glibc 2.35 and newer; other versions ignore it
    "hugetlb": 1,
    "mmap_threshold": 1 << 32,
    "trim_threshold": 1 << 36,
    "top_pad": 1 << 28,
}
TUNABLES = ":".join(f"glibc.malloc.{name}={value}" for name, value in MEMORY.items())
SCRIPT = Path(__file__).with_name("overhead_train.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256, help="sets the step time")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    command = [
        str(BIN / "torchrun"), "--nproc-per-node", str(arguments.ranks), "--standalone",
        str(SCRIPT), "--batch", str(arguments.batch), "--steps", str(arguments.steps),
    ]  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    if arguments.ranks < len(cores):
        command.append("--pin")
        os.sched_setaffinity(0, {cores[-1]})  # inherited by child processes; ranks pin themselves
    with tempfile.TemporaryDirectory() as folder:
        ratios, steps = measure(command, arguments.pairs, Path(folder))
    low, high = interval(ratios)
    print(
        f"{arguments.ranks} rank(s) on {os.cpu_count()} cores, {steps / 1e6:.1f} ms per step: "
        f"median ratio {statistics.median(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f} "
        f"({len(ratios)} pairs of fresh processes, {arguments.steps} steps each)"
    )


@dataclass(frozen=True)
class Run:
    """Mean times of one fresh run."""

    step_ns: float
    piece_ns: float

    @property
    def relative(self) -> float:
        """Step time in units of the piece of work."""
        return self.step_ns / self.piece_ns


def measure(command: list[str], pairs: int, folder: Path) -> tuple[list[float], float]:
    """Ratio of each pair, and the baseline's median step time in ns."""
    ratios, baseline = [], []
    for pair in track(range(pairs), "measuring", disable=not sys.stderr.isatty()):
        first, second = (False, True) if pair % 2 == 0 else (True, False)
        runs = {watched: run(command, watched, folder) for watched in (first, second)}
        ratios.append(runs[True].relative / runs[False].relative)
        baseline.append(runs[False].step_ns)
    return ratios, statistics.median(baseline)


def run(command: list[str], watched: bool, folder: Path) -> Run:
    prefix = [
        str(BIN / "stepscope"), "run", "--store", str(folder), "--socket",
        str(folder / "processor.sock"), "--",
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": TUNABLES}
    done = subprocess.run(
        [*(prefix if watched else []), *command],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    shutil.rmtree(folder / "overhead_train", ignore_errors=True)
    return Run(**json.loads(done.stdout.strip().splitlines()[-1]))


def interval(ratios: list[float], rounds: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


if __name__ == "__main__":
    main()

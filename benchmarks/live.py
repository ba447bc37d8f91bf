"""Benchmark of following a large job live: how soon a fault is named, and what following costs.

    python benchmarks/live.py [--ranks 10240] [--faults gpu_slow link_slow hang none]
                              [--healthy-seconds 60] [--recorders N] [--flush-seconds 5]

For each fault one job is simulated in real time, into a folder, by a process that stands for the
processors of all its hosts. A separate process, `stepscope diagnose --follow --json`, follows it
like any other job. The onset is the begin of the first step with the fault, according to the rows
in the folder. The fault counts as named when the first line arrives whose first verdict is right.
For the fault `none` every verdict is a false alarm. The goal is a verdict within 90 s of the onset,
on two cores of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from pyarrow import dataset

from stepscope.evaluate.score import names_culprit
from stepscope.simulate.truth import FaultTruth, Truth
from stepscope.trace import Job
from stepscope.trace.parsing import parse_job

GOAL_SECONDS = 90.0
PATIENCE_SECONDS = 240.0
"""Time after the onset until it counts as never named."""
STEP_SECONDS = 2.3
"""Step time with 10,240 ranks; only used to compute how many steps are needed."""
FAULTS = {
    "gpu_slow": "gpu_slow:rank={rank},factor=1.5,from={step}",
    "link_slow": "link_slow:rank={rank},factor=8,from={step}",
    "nic_slow": "nic_slow:rank={rank},factor=8,from={step}",
    "data_slow": "data_slow:rank={rank},ms=800,from={step}",
    "hang": "hang:rank={rank},from={step}",
    "none": "",
}
COMMAND = (sys.executable, "-m", "stepscope.cli")


@dataclass
class Line:
    """One line of the following process."""

    at_ns: int
    state: str
    steps: Sequence[int] | None
    verdicts: Sequence[Any]


@dataclass
class Side:
    """One of the two processes, and the resources it used."""

    process: subprocess.Popen[str]
    over: threading.Event = field(default_factory=threading.Event)
    cpu_s: float = 0.0
    peak_gb: float = 0.0

    @classmethod
    def started(cls, arguments: Sequence[str]) -> Side:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*COMMAND, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment,
        )  # fmt: skip
        side = cls(process)
        for task in (side._hear, side._wait):
            threading.Thread(target=task, daemon=True).start()
        return side

    def interrupt(self) -> None:
        """Interrupts the process like Ctrl-C."""
        if not self.over.is_set():
            os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> None:
        self.interrupt()
        self.over.wait()

    def _wait(self) -> None:
        _, _, used = os.wait4(self.process.pid, 0)
        self.process.returncode = 0
        self.cpu_s, self.peak_gb = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
        self.over.set()

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            print(f"    {line.rstrip()}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=["gpu_slow", "nic_slow",
                        "hang", "none"])  # fmt: skip
    parser.add_argument("--healthy-seconds", type=float, default=60.0)
    parser.add_argument("--recorders", type=int)
    parser.add_argument("--flush-seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before")
    for fault in arguments.faults:
        with tempfile.TemporaryDirectory() as scratch:
            measure(fault, arguments, Path(scratch) / "live")


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> None:
    first = round(arguments.healthy_seconds / STEP_SECONDS)
    last = first + round(PATIENCE_SECONDS / STEP_SECONDS)
    fault = FAULTS[name].format(rank=arguments.ranks // 2, step=first)
    writer = Side.started([*simulated(arguments, last, fault), "--out", str(folder)])
    try:
        wait_for(folder / "steps", writer)
        begun_ns = time.time_ns()
        follower = Side.started(["diagnose", str(folder), "--follow", "--json"])
        truth = Truth.from_json(json.loads(Path(f"{folder}.truth.json").read_text("utf-8")))
        job = parse_job((folder / "job.json").read_bytes())
        lines, culprit = [], truth.faults[0] if truth.faults else None
        for line in heard(follower, begun_ns, arguments.healthy_seconds):
            lines.append(line)
            if line.verdicts and is_right(culprit, job, line):
                break
    finally:
        writer.end()
        follower.end()
    report(name, folder, lines, culprit, job, writer, follower)


def simulated(arguments: argparse.Namespace, steps: int, fault: str) -> list[str]:
    flags = [f"--ranks={arguments.ranks}", f"--steps={steps}", "--detail=brief", "--live",
             f"--flush-seconds={arguments.flush_seconds}"]  # fmt: skip
    flags += [f"--recorders={arguments.recorders}"] if arguments.recorders else []
    return ["simulate", *flags, *([f"--fault={fault}"] if fault else [])]


def wait_for(folder: Path, writer: Side) -> None:
    while not folder.exists():
        if writer.over.is_set():
            raise SystemExit("it could not be simulated")
        time.sleep(0.2)


def heard(follower: Side, begun_ns: int, healthy_seconds: float) -> Iterator[Line]:
    """The lines of the following process as they arrive, until the timeout."""
    timer = threading.Timer(healthy_seconds + PATIENCE_SECONDS, follower.interrupt)
    timer.start()
    assert follower.process.stdout is not None
    for text in follower.process.stdout:
        at_ns, line = time.time_ns(), json.loads(text)
        verdicts = [verdict_of(one) for one in line["verdicts"]]
        print(f"  after {(at_ns - begun_ns) / 1e9:5.0f} s: steps {line['steps']}, {line['state']}"
              f"{''.join('; ' + one.summary for one in verdicts[:2])}", flush=True)  # fmt: skip
        yield Line(at_ns, line["state"], line["steps"], verdicts)
    timer.cancel()


def verdict_of(verdict: dict[str, Any]) -> Any:
    devices = tuple(SimpleNamespace(**one) for one in verdict["devices"])
    return SimpleNamespace(**{**verdict, "devices": devices})


def is_right(culprit: FaultTruth | None, job: Job, line: Line) -> bool:
    return culprit is not None and names_culprit(culprit, job, line.verdicts[0])


def report(
    name: str, folder: Path, lines: Sequence[Line], culprit: FaultTruth | None, job: Job,
    writer: Side, follower: Side,
) -> None:  # fmt: skip
    wrong = sum(1 for line in lines if line.verdicts and not is_right(culprit, job, line))
    print(f"{name}: {len(lines)} lines, {wrong} with a wrong first verdict, load "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    if culprit is not None and culprit.steps is not None:
        onset_ns = onset_of(folder, culprit.steps[0])
        right = [line.at_ns for line in lines if line.verdicts and is_right(culprit, job, line)]
        delay = (right[0] - onset_ns) / 1e9 if right else float("inf")
        print(f"  onset {clock(onset_ns)}, named {clock(right[0]) if right else 'never'}: after "
              f"{delay:.1f} s, the goal is {GOAL_SECONDS:.0f}")  # fmt: skip
    for side, what in ((writer, "the job and its processors"), (follower, "who follows")):
        print(f"  {what}: {side.cpu_s:.1f} s of CPU time, {side.peak_gb:.2f} GB", flush=True)


def onset_of(folder: Path, step: int) -> int:
    """When the first rank began the step, or finished the one before if this one never ended."""
    rows = dataset.dataset(folder / "steps", partitioning="hive").to_table()
    number, start, took = (np.asarray(rows[name].to_numpy())
                           for name in ("step", "start_ns", "duration_ns"))  # fmt: skip
    if (number == step).any():
        return int(start[number == step].min())
    return int((start + took)[number == step - 1].min())


def clock(time_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(time_ns / 1e9))


if __name__ == "__main__":
    main()

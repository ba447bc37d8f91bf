"""Hours of recording: whether memory, threads or open files of anything of ours grow.

    python -m benchmarks.soak [--hours 2] [--ranks 16] [--pause 1] [--out soak.csv]

Runs the job of `chaos_train.py` under `stepscope run` and notes every minute what the processor,
`stepscope run` and all ranks hold: private memory (USS), threads, open files. In the end the last
fifth of the time is compared with the third, the median of memory and the least of threads and
files: before, everything fills, since the live diagnosis keeps half an hour of rows. After some
minutes all ranks profile a few steps, so that what torch loads for its profiler, and keeps, is
there before, whether or not the job later becomes slower and profiles by itself. Exit status 1:
something grew by more than `GROWTH`, or the training's losses or exit status were not its own.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil

from benchmarks.chaos_jobs import BIN, STATUS, Job, Room

GROWTH = 0.02
"""Share by which nothing may grow over half of the time. Our choice: above the scatter of single
minutes."""
EVERY_SECONDS = 60.0
PARTS, WARM = 5, 2
"""The fifths of the time, and how many of them are not compared: of two hours, 48 minutes."""
PROFILED_AT = 5
"""The minute in which all ranks profile some steps."""
LEAST = 2 * PARTS
"""Samples without which no fifth has a median."""


@dataclass(frozen=True)
class Sample:
    """What some processes hold together, `seconds` after the start."""

    seconds: float
    who: str
    private_mb: float
    threads: int
    files: int
    processes: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds of sleep in every step")
    parser.add_argument("--out", type=Path, default=Path("soak.csv"), help="where samples go")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        room = Room(Path(folder), options.ranks, 0)
        with room.job("soak", pause=options.pause) as job:
            job.stored()
            samples = list(_watched(room, job, options.hours * 3600, options.out))
        plain = room.plain(len(room.outcomes[0].losses))
    return _report(samples, room.outcomes[0].faults(plain, options.ranks))


def _watched(room: Room, job: Job, seconds: float, out: Path) -> Iterator[Sample]:
    """Samples until the time is up or the job ends; each is written at once."""
    began = time.monotonic()
    with out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(field.name for field in fields(Sample))
        for minute in range(int(seconds / EVERY_SECONDS)):
            print(f"\rminute {minute} of {seconds / EVERY_SECONDS:.0f}", end="", file=sys.stderr)
            time.sleep(EVERY_SECONDS)
            if job.process.poll() is not None:
                return
            if minute == PROFILED_AT:
                _profile(job)
            with contextlib.suppress(psutil.Error):  # a process that ends just now: the next minute
                for sample in _samples(room, job, time.monotonic() - began):
                    rows.writerow(astuple(sample))
                    file.flush()
                    yield sample


def _profile(job: Job) -> None:
    where = f"{job.store.rstrip('/')}/{job.name}"
    order = [str(BIN / "stepscope"), "profile", where, "--steps", "5", "--no-wait"]
    subprocess.run(order, check=True, capture_output=True)


def _samples(room: Room, job: Job, seconds: float) -> Iterator[Sample]:
    runner = psutil.Process(job.process.pid)
    ranks = [one for one in runner.children(recursive=True) if _trains(one)]
    for who, processes in (("processor", [room.processor()]), ("run", [runner]), ("ranks", ranks)):
        yield _held(seconds, who, processes)


def _trains(process: psutil.Process) -> bool:
    """Whether it is a rank, or one of its loaders; false for one that ends just now."""
    with contextlib.suppress(psutil.Error):
        return any("chaos_train" in word for word in process.cmdline())
    return False


def _held(seconds: float, who: str, processes: Sequence[psutil.Process]) -> Sample:
    memory = sum(one.memory_full_info().uss for one in processes) / 1e6
    threads = sum(one.num_threads() for one in processes)
    files = sum(one.num_fds() for one in processes)
    return Sample(round(seconds, 1), who, round(memory, 2), threads, files, len(processes))


def _report(samples: Sequence[Sample], faults: Sequence[str]) -> int:
    """Prints how much everything grew; the exit status."""
    grew = list(faults)
    for who in dict.fromkeys(one.who for one in samples):
        own = [one for one in samples if one.who == who]
        if len(own) < LEAST:
            grew.append(f"only {len(own)} samples of {who}")
            continue
        fifth = len(own) // PARTS
        for name, of in (("private_mb", statistics.median), ("threads", min), ("files", min)):
            # the least of threads and files: what leaks is never given back, while pools and pipes
            # of samplers come and go with the load
            warm = of(_values(own[WARM * fifth : (WARM + 1) * fifth], name))
            last = of(_values(own[-fifth:], name))
            print(f"{who:10} {name:11} {warm:10.1f} -> {last:10.1f}  {last / warm - 1:+.1%}")
            if last > warm * (1 + GROWTH):
                grew.append(f"{name} of {who} grew")
    print("; ".join(grew) or f"nothing grew; the losses and the exit status {STATUS} are the job's")
    return 1 if grew else 0


def _values(samples: Sequence[Sample], name: str) -> list[float]:
    return [float(getattr(one, name)) for one in samples]


if __name__ == "__main__":
    sys.exit(main())

"""Benchmark against HolisticTraceAnalysis: both read and break down the same traces, interleaved.

    python benchmarks/hta.py FOLDER… [--ranks 8] [--rounds 3] [--hta-python PYTHON]

Each FOLDER holds the trace of one rank and is one set. The largest one, rewritten as several ranks
of one job, is another. Both programs compute compute, communication, overlap and idle time by
cause. Each run is a fresh process. Prints the minimum wall time and the peak memory of the process
and its children (their resident sizes added) of several rounds, and the CPU time, which other work
on the machine disturbs less. Then come the sums of the single traces. Both programs run from
compiled bytecode, as an installed program does, and without the threads of OpenBLAS, which neither
uses. Without PYTHON (an interpreter with HolisticTraceAnalysis), a temporary environment is created
and the published package installed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

import psutil

PACKAGES = ("traceinsight==0.6.1", "pandas<3")
OURS = """
import sys
from pathlib import Path
from stepscope.diagnose.views.breakdown import breakdown
from stepscope.formats.kineto import read
if __name__ == "__main__":
    found = breakdown(read(Path(sys.argv[1])).window)
    print(len(found.ranks), "ranks", int(found.ranks.ints("idle_ns").sum() / 1000), "us idle")
"""
THEIRS = """
import logging, sys
from pathlib import Path
logging.disable(logging.INFO)
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    files = {rank: str(path) for rank, path in enumerate(sorted(Path(sys.argv[1]).glob("*.json*")))}
    analysis = TraceAnalysis(trace_files=files, trace_dir=sys.argv[1])
    idle = analysis.get_temporal_breakdown(visualize=False)["idle_time(us)"].sum()
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_idle_time_breakdown(ranks=list(files), visualize=False)
    print(len(files), "ranks", int(idle), "us idle")
"""
LOOK_EVERY_S = 0.01
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
ENVIRONMENT["OPENBLAS_NUM_THREADS"] = "1"


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        python = arguments.hta_python or with_hta(Path(scratch))
        sets = [traces_only(folder, Path(scratch)) for folder in arguments.folders]
        sets.append(many_ranks(max(sets, key=size), arguments.ranks, Path(scratch)))
        print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} before; best of "
              f"{arguments.rounds}")  # fmt: skip
        print(f"{'traces':36} {'HTA':>16} {'stepscope':>16} {'wall':>7} {'cpu':>7} memory")
        run(python, THEIRS, sets[0]), run(Path(sys.executable), OURS, sets[0])  # compiles both
        *single, _ = (compare(folder, python, arguments.rounds) for folder in sets)
        show("all single traces, one by one", *map(added, zip(*single, strict=True)))


def compare(folder: Path, python: Path, rounds: int) -> tuple[Cost, Cost]:
    runs = [(run(python, THEIRS, folder), run(Path(sys.executable), OURS, folder))
            for _ in range(rounds)]  # fmt: skip
    theirs, ours = (best([pair[at] for pair in runs]) for at in (0, 1))
    show(folder.name, theirs, ours)
    return theirs, ours


def added(costs: tuple[Cost, ...]) -> Cost:
    """Sums runs: times are added, memory is the maximum."""
    wall, cpu = sum(c.wall_s for c in costs), sum(c.cpu_s for c in costs)
    return Cost(wall, cpu, max(c.peak_bytes for c in costs), "")


def show(name: str, theirs: Cost, ours: Cost) -> None:
    print(
        f"{name:36} {_cost(theirs):>16} {_cost(ours):>16} "
        f"{theirs.wall_s / ours.wall_s:6.1f}x {theirs.cpu_s / ours.cpu_s:6.1f}x "
        f"1/{theirs.peak_bytes / ours.peak_bytes:.1f}",
        flush=True,
    )


def best(costs: list[Cost]) -> Cost:
    wall, cpu = min(c.wall_s for c in costs), min(c.cpu_s for c in costs)
    return Cost(wall, cpu, min(c.peak_bytes for c in costs), costs[0].output)


def _cost(cost: Cost) -> str:
    return f"{cost.wall_s:5.2f} s {cost.peak_bytes / 2**20:5.0f} MiB"


def run(python: Path, program: str, folder: Path) -> Cost:
    """Runs one fresh process, and samples its memory and that of its children from outside."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            [str(python), script.name, str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        peak = watched(process)
        wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert process.stdout is not None
        output = process.stdout.read().strip().splitlines()
    if process.returncode:
        raise SystemExit(f"{python} failed on {folder}")
    return Cost(wall, cpu, peak, output[-1])


def watched(process: subprocess.Popen[str]) -> int:
    """The largest memory of a process and its children until it ends."""
    peak, main = 0, psutil.Process(process.pid)
    while process.poll() is None:
        try:
            family = [main, *main.children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
        except psutil.NoSuchProcess:
            pass
        time.sleep(LOOK_EVERY_S)
    return peak


def with_hta(scratch: Path) -> Path:
    """A Python with HolisticTraceAnalysis, in a temporary environment."""
    print("installing", *PACKAGES, file=sys.stderr)
    venv.create(scratch / "hta", with_pip=True)
    python = scratch / "hta" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def traces_only(folder: Path, scratch: Path) -> Path:
    """The traces of a folder, without any other files in it."""
    to = scratch / "sets" / folder.name
    to.mkdir(parents=True)
    for path in folder.glob("*.json.gz"):
        (to / path.name).symlink_to(path.resolve())
    return to


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def many_ranks(folder: Path, ranks: int, scratch: Path) -> Path:
    """Writes the trace as several ranks of one job."""
    to = scratch / "sets" / f"{folder.name} as {ranks} ranks"
    to.mkdir()
    text = gzip.decompress(next(folder.iterdir()).read_bytes())
    for rank in range(ranks):
        changed = re.sub(rb'("rank":\s*)\d+', rb"\g<1>%d" % rank, text, count=1)
        changed = re.sub(rb'("world_size":\s*)\d+', rb"\g<1>%d" % ranks, changed, count=1)
        (to / f"rank-{rank}.json.gz").write_bytes(gzip.compress(changed, 6))
    return to


if __name__ == "__main__":
    main()

"""Benchmark of diagnosing one window of a large job, from Parquet on disk to a verdict, cold start.

    python benchmarks/diagnose.py [--ranks 10240] [--steps 20] [--rounds 3] [--folder JOB]

Simulates the job (or takes a job folder), and rewrites it as hosts would write it: one file per
table and host. Each run is a fresh `stepscope diagnose --json`, from compiled bytecode, on one core
if the machine has several. The baseline is reading the same rows with Arrow alone, in one thread
and sorted by rank and time: every diagnosis has to read them. Prints wall time, CPU time, the
system's part of it, and peak memory, the best of several interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.store.encode import arrow_table, parquet_bytes, rows_of
from stepscope.store.reader import JobReader
from stepscope.trace import TABLES
from stepscope.window import Strings, Table, Window

FAULT = "gpu_slow:rank={rank},factor=1.5,from=5"
DIAGNOSE = "from stepscope.cli import main; raise SystemExit(main(['diagnose', '--json', '{job}']))"
READ = """
import pyarrow.dataset as data
from pathlib import Path
from stepscope.trace import TABLES
for folder in Path('{job}').iterdir():
    if folder.name in TABLES:
        rows = data.dataset(folder, partitioning='hive').to_table(use_threads=False)
        rows.sort_by([('rank', 'ascending'), (TABLES[folder.name].time, 'ascending')])
"""


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    system_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return (f"{self.wall_s:6.1f} s, of the processor {self.cpu_s:5.1f} s "
                f"(the system {self.system_s:.1f} s), {self.peak_bytes / 1e9:.2f} GB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        job = arguments.folder or simulated(arguments.ranks, arguments.steps, Path(scratch))
        by_host = Path(scratch) / "by-host"
        written_by_hosts(job, by_host)
        print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before")
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for name, folder in (("a file per table", job), ("a file per table and host", by_host)):
            compare(name, folder, arguments.rounds)


def simulated(ranks: int, steps: int, scratch: Path) -> Path:
    job = scratch / "job"
    fault = FAULT.format(rank=ranks // 2)
    flags = [f"--ranks={ranks}", f"--steps={steps}", "--detail=brief", f"--fault={fault}"]
    command = [sys.executable, "-m", "stepscope.cli", "simulate", *flags, "--out", str(job)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return job


def compare(name: str, folder: Path, rounds: int) -> None:
    programs = (READ.format(job=folder), DIAGNOSE.format(job=folder))
    runs = [[run(program) for program in programs] for _ in range(rounds)]
    read, ours = (best([pair[at] for pair in runs]) for at in (0, 1))
    files = sum(1 for _ in folder.rglob("*.parquet"))
    print(f"{name} ({files} files)\n  reading by Arrow  {read}\n  diagnosis         {ours}\n"
          f"  diagnosis / reading: {ours.cpu_s / read.cpu_s:.2f} of the processor, "
          f"{ours.peak_bytes / read.peak_bytes:.2f} of the memory", flush=True)  # fmt: skip


def run(program: str) -> Cost:
    """Runs one fresh process. Its verdict does not matter, only that it ends without an error."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, env=environment
    )
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"it failed: {program}")
    wall_s = time.perf_counter() - begin
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_stime, used.ru_maxrss * 1024)


def best(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.cpu_s)


def written_by_hosts(job: Path, folder: Path) -> None:
    """Writes the job folder with one file per table and host, rows in order of time."""
    window = JobReader(str(job)).read()
    folder.mkdir()
    shutil.copy(job / "job.json", folder)
    names = [host.name for host in window.job.hosts]
    for name, table in window.tables.items():
        host = host_of_rows(window, table)
        order = np.lexsort((table.ints(TABLES[name].time), host))
        bounds = np.searchsorted(host[order], np.arange(len(names) + 1))
        for at, recorder in enumerate(names):
            rows = order[bounds[at] : bounds[at + 1]]
            if rows.size:
                write(folder / name / f"recorder={recorder}", at, name, table.take(rows))


def host_of_rows(window: Window, table: Table) -> np.ndarray:
    """The host number of each row: from its rank, or from the row's own host column."""
    number = {host.name: at for at, host in enumerate(window.job.hosts)}
    of_rank = np.array([number.get(window.host_of(rank) or "", -1) for rank in window.ranks])
    host = of_rank[np.searchsorted(window.ranks, np.maximum(table.ints("rank"), 0))]
    if table.has("host"):
        named = table.strings("host")
        of_name = np.array([*(number.get(value, -1) for value in named.values), -1])
        host = np.where(table.ints("rank") < 0, of_name[named.codes], host)
    return host


def write(folder: Path, number: int, name: str, table: Table) -> None:
    columns = {one: own_values(column) if isinstance(column, Strings) else column
               for one, column in table.columns.items()}  # fmt: skip
    rows = arrow_table(name, rows_of(name, Table(columns)))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"20260101T000000Z-{number:08x}-000001.parquet"
    path.write_bytes(parquet_bytes(rows))


def own_values(column: Strings) -> Strings:
    """The column, with a dictionary of only the strings that it contains."""
    used, codes = np.unique(column.codes, return_inverse=True)
    known = [column.values[code] for code in used if code >= 0]
    return Strings((codes - (used.size - len(known))).astype(np.int32), tuple(known))


if __name__ == "__main__":
    main()

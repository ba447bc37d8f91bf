"""Benchmark of the simulator: wall time, CPU time and peak memory.

python benchmarks/simulate.py                    64 ranks x 100 steps, one slow GPU, in memory
python benchmarks/simulate.py 10240 20           any number of ranks and steps
python benchmarks/simulate.py --write [64 100]   the command, from its start to the written folder
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = "import sys; from stepscope.cli import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="?", default=64)
    parser.add_argument("steps", type=int, nargs="?", default=100)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    began = time.perf_counter()
    what = (written if asked.write else in_memory)(asked.ranks, asked.steps)
    wall_s = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN if asked.write else resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{asked.ranks} ranks x {asked.steps} steps: {wall_s:.2f} s, CPU time "
          f"{cpu_s:.2f} s, {used.ru_maxrss / 1e6:.1f} GB, {what}")  # fmt: skip


def fault_of(ranks: int, steps: int) -> str:
    return f"gpu_slow:rank={ranks // 2},factor=1.5,from={steps // 2}"


def in_memory(ranks: int, steps: int) -> str:
    from stepscope.simulate import Scenario, default_parallelism, parse_fault, simulate

    scenario = Scenario(
        ranks=ranks, steps=steps, parallelism=default_parallelism(ranks),
        faults=(parse_fault(fault_of(ranks, steps)),),
    )  # fmt: skip
    window = simulate(scenario).window
    return f"{sum(len(table) for table in window.tables.values()):,} rows, imports included"


def written(ranks: int, steps: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/job"
        command = [sys.executable, "-c", COMMAND, "simulate", "--ranks", str(ranks), "--steps",
                   str(steps), "--fault", fault_of(ranks, steps), "--out", out]  # fmt: skip
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        sizes = [path.stat().st_size for path in Path(out).rglob("*.parquet")]
    return f"{sum(sizes) / 1e6:.0f} MB written"


if __name__ == "__main__":
    main()

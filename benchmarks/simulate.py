"""What simulating costs: wall time, processor time and peak memory, without writing.

python benchmarks/simulate.py            64 ranks x 100 steps, one slow GPU
python benchmarks/simulate.py 10240 20   as many as are asked for
"""

from __future__ import annotations

import resource
import sys
import time

from stepscope.simulate import Scenario, default_parallelism, parse_fault, simulate


def main() -> None:
    ranks, steps = (int(one) for one in (sys.argv[1:3] or ("64", "100")))
    fault = parse_fault(f"gpu_slow:rank={ranks // 2},factor=1.5,from={steps // 2}")
    scenario = Scenario(
        ranks=ranks, steps=steps, parallelism=default_parallelism(ranks), faults=(fault,)
    )
    wall_s, processor_s = time.perf_counter(), time.process_time()
    window = simulate(scenario).window
    wall_s, processor_s = time.perf_counter() - wall_s, time.process_time() - processor_s
    rows = sum(len(table) for table in window.tables.values())
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{ranks} ranks x {steps} steps: {wall_s:.1f} s, of the processor {processor_s:.1f} s, "
          f"{peak_gb:.1f} GB, {rows:,} rows")  # fmt: skip


if __name__ == "__main__":
    main()

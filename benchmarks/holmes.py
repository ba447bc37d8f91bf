"""Holmes at the paper's scale: from disk to verdict, and the rule for operators.

    python benchmarks/holmes.py [--ranks 8192] [--steps 20] [--rounds 3] [--only rule,job]

1. The rule that calls operators abnormal, for a log of 10,000 operators (100 places, 100 steps),
   and for 10,000 places, beside the 3-sigma rule, which the paper calls "traditional". Then the
   shipped random forest, features and drift tuning included, for 10,000 operators of each: all
   steps of 100 places, one step of 10,000 places. Paper, figure 16(a), by its random forest:
   111.7 ms for 4,000 to 5,000 operators in a window of one minute, 375.7 ms for 9,000 to 10,000.
2. Simulated jobs in which an adapter, or a GPU, is slow in four steps: a fresh process, from
   Parquet on disk to JSON, beside Arrow alone reading the same rows. Paper, figure
   16(c): 30.3 s with 8,192 GPUs, with fetching of logs from the machines. Operators of tensor
   parallel groups are not recorded (`--detail brief`), so of eight ranks that share layers any may
   be named for the GPU.

One core, CPU times of 1, the best of several rounds; all checked against the baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from stepscope.diagnose.detect.published.holmes_features import Log
from stepscope.diagnose.detect.published.holmes_model import shipped
from stepscope.diagnose.graph.abnormal import Usual
from stepscope.window import Floats, Mask

Result = TypeVar("Result")
PLACES, STEPS, STEP_NS = 100, 100, 7e9
FAULTS = {
    "adapter": "nic_slow:rank={rank},factor=40,from=9,until=13",
    "GPU": "gpu_slow:rank={rank},factor=3,from=9,until=13",
}
LAYOUT = ("--tp=8", "--pp=8", "--detail=brief")
READ = """
import pyarrow.dataset as data
from pathlib import Path
from stepscope.trace import TABLES
for folder in Path('{job}').iterdir():
    if folder.name in TABLES:
        data.dataset(folder, partitioning='hive').to_table(use_threads=False)
"""
DIAGNOSE = """
from stepscope.cli import main
raise SystemExit(main(['diagnose', '--json', '--method', 'holmes-published', '{job}']))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=8_192)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="rule,job")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    wanted = options.only.split(",")
    if "rule" in wanted:
        rule(options.rounds)
    if "job" in wanted:
        end_to_end(options.ranks, options.steps, options.rounds)


def rule(rounds: int) -> None:
    """An operator of one place takes three times as long, and a second more, in one step."""
    for places, often in ((PLACES, 100), (100 * PLACES, 1)):
        lasted = logged(np.random.default_rng(0), places)
        usual = Usual.of(lasted, STEP_NS)
        size = f"{places:,} x {STEPS} operators"
        found = timed(f"rule, {size}", rounds, lambda one=lasted: by_rule(one), often)  # type: ignore[misc]
        timed(f"medians known, {size}", rounds, lambda one=lasted, known=usual: (
            known.abnormal(one)), often)  # type: ignore[misc] # fmt: skip
        sigma = timed(f"3 sigma, {size}", rounds, lambda one=lasted: by_sigma(one), often)  # type: ignore[misc]
        assert found[7, 40] and sigma[7, 40] and found.sum() == 1
        print(f"  called abnormal: {int(found.sum())}, by 3 sigma {int(sigma.sum())}; one is")
        forest(rounds, lasted, often)


def forest(rounds: int, lasted: Floats, often: int) -> None:
    """10,000 operators of the same log by the forest, and by the rule again for the ratio."""
    model, columns = shipped(), np.arange(STEPS)
    judged = columns if len(lasted) == PLACES else np.array([40])
    log = as_log(lasted)
    regular = np.setdiff1d(columns, [40])
    size = f"{len(lasted) * judged.size:,} of {lasted.size:,}"
    found, spent = measured(rounds, lambda: model.abnormal(log, judged, regular), 1)
    features = measured(rounds, lambda: log.features(judged), 1)[1]
    rule = measured(rounds, lambda: by_rule(lasted), often)[1]
    print(f"{f'forest, {size}':40} {spent * 1e3:8.3f} ms, {features * 1e3:.3f} ms of that for "
          f"features; {spent / rule:.0f} times the rule's {rule * 1e3:.3f} ms")  # fmt: skip
    print(f"  called abnormal: {int(found.sum())}; one is")


def as_log(lasted: Floats) -> Log:
    """AllReduces of 1 MB among eight ranks."""
    size = len(lasted)
    step_ns = np.full(STEPS, STEP_NS)
    step_ns[40] *= 1.2
    return Log(lasted, step_ns, np.full(size, 8), np.full(size, 1 << 20), np.zeros(size, np.int64))


def logged(random: np.random.Generator, places: int) -> Floats:
    """`[place, step]`: what operators take, in ns; medians scatter log-normally around 20 ms."""
    lasted = np.exp(random.normal(np.log(2e7), 1.0, places))[:, None]
    lasted = lasted * np.exp(0.03 * random.normal(size=(places, STEPS)))
    lasted[7, 40] = 3 * lasted[7, 40] + 1e9
    return np.asarray(lasted)


def by_rule(lasted: Floats) -> Mask:
    return Usual.of(lasted, STEP_NS).abnormal(lasted)


def by_sigma(lasted: Floats) -> Mask:
    mean, sigma = lasted.mean(axis=1)[:, None], lasted.std(axis=1)[:, None]
    return np.asarray(lasted > mean + 3 * sigma)


def end_to_end(ranks: int, steps: int, rounds: int) -> None:
    for what, fault in FAULTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            job = simulated(ranks, steps, fault.format(rank=ranks // 2), Path(scratch))
            print(f"simulated job of {ranks:,} ranks, {steps} steps: {what} of rank {ranks // 2} "
                  "is slow in steps 9 to 12")  # fmt: skip
            read = best("Arrow alone reads it", READ.format(job=job), rounds)
            ours = best("holmes-published", DIAGNOSE.format(job=job), rounds)
            print(f"  holmes-published / reading: {ours / read:.1f}", flush=True)


def simulated(ranks: int, steps: int, fault: str, scratch: Path) -> Path:
    job = scratch / "job"
    flags = [f"--ranks={ranks}", f"--steps={steps}", *LAYOUT, f"--fault={fault}"]
    command = [sys.executable, "-m", "stepscope.cli", "simulate", *flags, "--out", str(job)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return job


def best(what: str, program: str, rounds: int) -> float:
    """CPU seconds of the fastest of several fresh processes; prints all of it, and who is named."""
    runs = sorted(run(program) for _ in range(rounds))
    cpu_s, wall_s, peak_bytes, said = runs[0]
    print(f"  {what:22} {wall_s:6.1f} s, of the processor {cpu_s:5.1f} s, "
          f"{peak_bytes / 1e9:.2f} GB{said}", flush=True)  # fmt: skip
    return cpu_s


def run(program: str) -> tuple[float, float, int, str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"it failed: {program}")
    wall_s = time.perf_counter() - begin
    return used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss * 1024, said(output)


def said(output: bytes) -> str:
    if not output:
        return ""
    verdicts = json.loads(output)["verdicts"]
    return "; names " + (", ".join(one["summary"] for one in verdicts) or "nobody")


def timed(what: str, rounds: int, work: Callable[[], Result], often: int = 1) -> Result:
    """Runs the work so often in a row in each round; prints the time of one."""
    result, spent = measured(rounds, work, often)
    print(f"{what:40} {spent * 1e3:8.3f} ms", flush=True)
    return result


def measured(rounds: int, work: Callable[[], Result], often: int) -> tuple[Result, float]:
    """The result, and CPU seconds of one repetition in the fastest round."""
    spent, result = float("inf"), None
    for _ in range(max(rounds, 1)):
        begin = time.process_time()
        for _ in range(often):
            result = work()
        spent = min(spent, (time.process_time() - begin) / often)
    assert result is not None
    return result, spent


if __name__ == "__main__":
    main()

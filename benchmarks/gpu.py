"""Benchmark of everything that needs a GPU, printed as one table.

    python -m benchmarks.gpu [--only overhead launches …] [--rounds 5] [--steps 300] [--seconds 60]
        [--keep FOLDER]

- overhead: a transformer of a billion parameters in bf16 and a launch-bound model, each eager and
  with both passes as one CUDA graph. Modes: none, idle (CUPTI's library loaded, but not selected),
  cupti, and all (cupti, nccl, phases, modules; py-spy stacks are always on). Fresh processes,
  interleaved; the result is the 95 % upper bound of the median ratio. `--cases` selects some of the
  four cases: one takes 20 processes of 300 steps each.
- turns: what each collector costs, with the usual budget: processes with and without stepscope take
  turns on the GPU, 20 steps each, so that all meet the same changes of the machine. The results are
  of means, since only a part of the time is recorded. Two of the processes are without stepscope:
  a machine on which these two differ by a percent cannot show a percent. `all, detaching` has
  CUPTI leave the process between the parts of the time that are recorded.
- paired: what recording all kernels costs a step of the transformer. One process alternates
  between recording and not recording, 20 steps each, so that the machine's own changes cancel out.
- launches: there is one record per kernel. durations: those of a kernel and of backward-compute,
  compared with the job's own CUDA events. profiler: when torch.profiler runs in between, it gets
  its kernels and we get ours.
- graphs: CUDA graphs made while kernels are recorded, while they are not, and before and after
  torch.profiler, are launched throughout: nothing ends the process.
- ranks: two NCCL ranks on one GPU (`NCCL_HOSTID`), one delayed: the diagnosis names that rank.
- memory: of the process and of the GPU over `--seconds` of launches.
- window: `stepscope profile` in mid-run: the patterns hold kernels, and `--native cupti` records
  all kernels before and after it.
- counters: of the GPU's units, 1,000 and 10,000 times a second for ten seconds during launches: how
  many samples, the period of each, and the CPU time of the process that decodes them.

A topic that fails is a row of the table, and the others still run. `--keep` keeps the job folders.

Without a GPU it runs small versions of the same jobs on the CPU, says in one line what they do not
show, and gives no verdict on it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.gpu_results import (
    MODES,
    Row,
    around_row,
    close_row,
    counters_row,
    launches_row,
    memory_rows,
    order,
    overhead_rows,
    paired_row,
    plugin_row,
    profiler_rows,
    ranks_row,
    table,
    turns_rows,
    window_row,
)
from lab.gpu import SHARED_GPU
from stepscope.cli.native import FOLDER
from stepscope.errors import StepscopeError
from stepscope.processor.counters.frames import Frame, Frames
from stepscope.processor.counters.sampler import Sampler, Wanted, command
from stepscope.store import JobReader
from stepscope.window import Floats, Window

BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).with_name("gpu_train.py")
EVERYTHING, OF_HOOKS = "cupti,nccl,phases,modules", "phases,modules"
"""The latter replaces all others if there is no GPU."""
NATIVE = {
    "cupti": "cupti", "hooks": OF_HOOKS, "all": EVERYTHING, "all but stacks": EVERYTHING,
    "all, detaching": EVERYTHING,
}  # fmt: skip
TURNS = ("none", "all", "all, detaching", "cupti", "hooks", "all but stacks", "none again")
"""Processes that take turns, in this order."""
CASES = {
    "transformer": ("transformer", False),
    "transformer-graph": ("transformer", True),
    "launches": ("launches", False),
    "launches-graph": ("launches", True),
}
"""Model, and whether its passes are a CUDA graph."""
TOPICS = (
    "overhead", "turns", "paired", "launches", "durations", "profiler", "graphs", "ranks", "window",
    "memory", "counters",
)  # fmt: skip
DETACHING = {"STEPSCOPE_CUPTI_DETACH": "1"}
"""CUPTI leaves the process between the parts of the time in which kernels are recorded."""
ALWAYS, SELDOM = "1000", "0.0001"
"""`STEPSCOPE_KERNEL_BUDGET`: to record every kernel, or 156 ms of every ten seconds."""

COUNTED_HZ, COUNTED_SECONDS = (1_000, 10_000), 10.0
SHORTEST_WINDOWED = 60.0
"""Seconds of a job that is profiled: a window begins 15 s after it was asked for."""


class JobError(Exception):
    """A job of a topic ended with an error; its output is the message."""


@dataclass(frozen=True)
class Bench:
    """Where and how long jobs run."""

    folder: Path
    rounds: int
    steps: int
    seconds: float
    blocks: int
    cases: tuple[str, ...]
    has_gpu: bool

    def run(self, mode: str, *job: str, ranks: int = 1, **env: str) -> list[dict[str, Any]]:
        """The output of the ranks of a job, recorded in one of `MODES`."""
        command = [*self._prefix(mode), *_launcher(ranks), str(SCRIPT), *job]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=SCRIPT.parents[1],
            env={**os.environ, **self._variables(mode), **env},
        )  # fmt: skip
        if done.returncode:
            raise JobError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def recorded(self, *job: str, ranks: int = 1, **env: str) -> tuple[dict[str, Any], Window]:
        """Runs a job with all collectors: its output, and what was recorded."""
        (output, *_) = self.run("all", *job, ranks=ranks, **env)
        return output, JobReader(str(self.job)).read()

    def _variables(self, mode: str) -> Mapping[str, str]:
        if mode == "all, detaching":
            return DETACHING
        return _idle() if mode == "idle" and self.has_gpu else {}

    @property
    def job(self) -> Path:
        """The folder of the newest job."""
        return max(self.jobs, key=lambda path: path.stat().st_mtime_ns)

    @property
    def jobs(self) -> list[Path]:
        """All of them, without the device ledger beside them."""
        return [path for path in (self.folder / "runs").glob("[!_]*") if path.is_dir()]

    def _prefix(self, mode: str) -> list[str]:
        if mode not in NATIVE:
            return []
        native = NATIVE[mode] if self.has_gpu else OF_HOOKS
        return [
            str(BIN / "stepscope"), "run", "--store", str(self.folder / "runs"), "--socket",
            str(self.folder / f"socket-{_plain(mode)}"), "--native", native,
            *["--no-stacks"] * (mode == "all but stacks"), "--",
        ]  # fmt: skip


def _launcher(ranks: int) -> list[str]:
    return [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks)]


def _plain(mode: str) -> str:
    return mode.replace(", ", "-").replace(" ", "-")


def _idle() -> dict[str, str]:
    """The driver loads the library, which finds no processor and leaves the process alone."""
    return {"CUDA_INJECTION64_PATH": str(FOLDER / "libstepscope_cupti.so")}


def main() -> None:
    import torch

    arguments = _arguments()
    has_gpu = torch.cuda.is_available()
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = arguments.keep or Path(stack.enter_context(temporary))
        bench = Bench(
            folder, arguments.rounds, arguments.steps, arguments.seconds,
            arguments.blocks, tuple(arguments.cases), has_gpu,
        )  # fmt: skip
        for topic in arguments.only:
            rows += _rows(topic, bench)
    print(torch.cuda.get_device_name() if has_gpu else "no GPU", f"torch {torch.__version__}",
          f"load {os.getloadavg()[0]:.1f}", sep=", ")  # fmt: skip
    print(table(rows if has_gpu else [_without_verdict(row) for row in rows]))
    if not has_gpu:
        print(f"needs a GPU, not shown: {', '.join(arguments.only)} (small CPU versions were run)")
    raise SystemExit(any(row.holds is False for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=TOPICS, default=TOPICS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--blocks", type=int, default=100, help="of each process that takes turns")
    parser.add_argument("--keep", type=Path, help="an own folder for jobs, which remains")
    return parser.parse_args()


def _rows(topic: str, bench: Bench) -> list[Row]:
    """The rows of one topic, and of what made it fail."""
    rows: list[Row] = []
    try:
        rows += _TOPICS[topic](bench)
    except (JobError, OSError, ValueError, StepscopeError) as error:
        print(f"{topic}: {error}", file=sys.stderr)
        rows.append(Row(topic, f"failed: {type(error).__name__}, see above", "to run", False))
    return rows


def _without_verdict(row: Row) -> Row:
    return replace(row, goal=row.goal and f"({row.goal})", holds=None)


def _overhead(bench: Bench) -> Iterator[Row]:
    for model, graph in (CASES[name] for name in bench.cases):
        if graph and not bench.has_gpu:
            continue  # without a GPU there is no graph to measure
        seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        job = ["overhead", "--model", model, "--steps", str(bench.steps), "--warm-up",
               str(min(50, bench.steps))] + ["--graph"] * graph  # fmt: skip
        name = f"{model}{', CUDA graph' * graph}"
        for turn in track(range(bench.rounds), name, disable=not sys.stderr.isatty()):
            for mode in order(turn):
                (output,) = bench.run(mode, *job)
                seconds[mode].append(output["step_seconds"])
        yield from overhead_rows(name, seconds, has_goal=model == "transformer")


def _turns(bench: Bench) -> Iterator[Row]:
    for model in ("transformer", "launches"):
        blocks = _in_turns(bench, ("turns", "--model", model, "--blocks", str(bench.blocks)))
        yield from turns_rows(model, blocks, has_goal=model == "transformer")


def _in_turns(bench: Bench, job: Sequence[str]) -> dict[str, list[float]]:
    """Seconds per step of the same job in all `TURNS`, each block after that of the one before."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(TURNS)) as pool:
        fifos = [Path(folder) / _plain(mode) for mode in TURNS]
        for fifo in fifos:
            os.mkfifo(fifo)
        with fifos[0].open("r+b", buffering=0) as first:
            jobs = [
                pool.submit(bench.run, mode, *job, "--turn", str(turn), "--next", str(following))
                for mode, turn, following in zip(TURNS, fifos, fifos[1:] + fifos[:1], strict=True)
            ]
            first.write(b"x")
            return {mode: one.result()[0]["blocks"] for mode, one in zip(TURNS, jobs, strict=True)}


def _paired(bench: Bench) -> Iterator[Row]:
    job = ("paired", "--seconds", str(bench.seconds))
    (output,) = bench.run("cupti", *job, ranks=1, STEPSCOPE_KERNEL_BUDGET=ALWAYS)
    yield paired_row(output["without"], output["recording"], output["kernels"])


def _graphs(bench: Bench) -> Iterator[Row]:
    settings = ("graph", "node", "off", "off, detaching")
    with ThreadPoolExecutor(len(settings)) as pool:
        jobs = [pool.submit(_launching_graphs, bench, setting) for setting in settings]
        for setting, job in zip(settings, jobs, strict=True):
            try:
                result, holds = f"{job.result()} launched", True
            except JobError as error:
                print(error, file=sys.stderr)
                result, holds = "ended with an error, see above", False
            yield Row(f"CUDA graphs, {setting}", result, "no crash", holds)


def _launching_graphs(bench: Bench, setting: str) -> int:
    graphs, _, more = setting.partition(", ")
    (output,) = bench.run(
        "cupti", "graphs", ranks=1, STEPSCOPE_KERNEL_BUDGET=SELDOM, STEPSCOPE_CUDA_GRAPHS=graphs,
        **(DETACHING if more else {}),
    )  # fmt: skip
    return int(output["launched"])


def _launches(bench: Bench) -> Iterator[Row]:
    output, window = bench.recorded("launches", STEPSCOPE_KERNEL_BUDGET=ALWAYS)
    yield launches_row(3 * output["count"], kernels(window, "erfinv")[0], lost(window))


def _profiler(bench: Bench) -> Iterator[Row]:
    output, window = bench.recorded("launches", "--profile", STEPSCOPE_KERNEL_BUDGET=ALWAYS)
    yield from profiler_rows(output["count"], output["profiled"], kernels(window, "erfinv")[0])


def _durations(bench: Bench) -> Iterator[Row]:
    output, window = bench.recorded("durations")
    count, typical_ns = kernels(window, "erfinv")
    if count:
        yield close_row("a kernel's duration", typical_ns, output["kernel_ns"])
    yield close_row("backward-compute", phase(window, "backward-compute"), output["backward_ns"])
    errors = metric(window, "stepscope_device_clock_error_ns")
    if errors.size:
        worst, usual = errors.max() / 1e3, np.median(errors) / 1e3
        yield Row("where phases lie in time", f"off by at most {usual:.0f} µs, once {worst:.0f} µs")


def _ranks(bench: Bench) -> Iterator[Row]:
    bench.run("all", "ranks", "--steps", "160", "--slow-rank", "1", ranks=2, **SHARED_GPU)
    done = subprocess.run(
        [str(BIN / "stepscope"), "diagnose", str(bench.job), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    verdicts: Sequence[Mapping[str, object]] = json.loads(done.stdout)["verdicts"]
    yield ranks_row(1, verdicts)
    yield plugin_row(*counts_from_nccl(JobReader(str(bench.job)).read()))


def _window(bench: Bench) -> Iterator[Row]:
    seconds = max(bench.seconds, SHORTEST_WINDOWED)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            bench.run, "all", "train", "--seconds", str(seconds), ranks=1,
            STEPSCOPE_KERNEL_BUDGET=ALWAYS,
        )  # fmt: skip
        asked = _profiled(bench, job)
        (output,) = job.result()
    window = JobReader(str(bench.job)).read()
    yield window_row(asked, _patterns_of_kernels(window))
    yield around_row(output, kernels(window, "erfinv")[0], _seconds_profiled(window))


def _profiled(bench: Bench, job: Future[list[dict[str, Any]]]) -> str:
    """What `stepscope profile` says, asked as soon as the job has steps."""
    said = "the job ended first"
    while not job.done():
        time.sleep(2.0)
        if not bench.jobs:
            continue
        done = subprocess.run(
            [str(BIN / "stepscope"), "profile", str(bench.job), "--steps", "10"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = " ".join((done.stderr + done.stdout).split())
        if not done.returncode:
            break
    return said


def _patterns_of_kernels(window: Window) -> int:
    rows = window.table("patterns")
    return 0 if rows is None else int(rows.strings("kind").equals("kernel").sum())


def _seconds_profiled(window: Window) -> float:
    rows = window.table("profiles")
    if rows is None or not len(rows):
        return 0.0
    lasted = rows.ints("duration_ns")
    return float(lasted[lasted > 0].sum()) / 1e9


def _memory(bench: Bench) -> Iterator[Row]:
    output, _ = bench.recorded("soak", "--seconds", str(bench.seconds))
    yield from memory_rows(output["samples"], output["count"])


def _counters(bench: Bench) -> Iterator[Row]:
    load = Thread(target=bench.run, args=("none", "soak", "--seconds", str(3 * COUNTED_SECONDS)))
    if bench.has_gpu:
        load.start()
    for hz in COUNTED_HZ:
        yield counters_row(hz, *sampled(command(Wanted(hz, COUNTED_SECONDS), 0)))
    if bench.has_gpu:
        load.join()


def sampled(command: Sequence[str]) -> tuple[Sequence[Frame], float]:
    """The samples of a sampler process, and its CPU time in seconds."""
    one, frames, parts = Sampler(0, command), Frames(), list[Frame]()
    while piece := os.read(one.output, 1 << 20):
        parts += frames.feed(piece)
    _, _, usage = os.wait4(one.process.pid, 0)
    return parts, usage.ru_utime + usage.ru_stime


_TOPICS = {
    "overhead": _overhead,
    "turns": _turns,
    "paired": _paired,
    "launches": _launches,
    "durations": _durations,
    "profiler": _profiler,
    "graphs": _graphs,
    "ranks": _ranks,
    "window": _window,
    "memory": _memory,
    "counters": _counters,
}


def kernels(window: Window, word: str) -> tuple[int, float]:
    """Executions of kernels whose name contains this word, and the median duration of their most
    frequent mode in ns."""
    rows = window.table("kernel_summaries")
    if rows is None or not len(rows):
        return 0, float("nan")
    names = rows.strings("kernel")
    found = np.array([code >= 0 and word in names.values[code].lower() for code in names.codes])
    counts = rows.ints("count") * found
    return int(counts.sum()), float(rows.ints("p50_ns")[np.argmax(counts)])


def phase(window: Window, name: str) -> float:
    """Median duration in ns after the first ten, as the job itself counts."""
    rows = window.table("phases")
    if rows is None:
        return float("nan")
    rows = rows.take(rows.strings("phase").equals(name))
    in_time = np.argsort(rows.ints("start_ns"))
    return float(np.median(rows.ints("duration_ns")[in_time][10:]))


def metric(window: Window, name: str) -> Floats:
    """All samples of a metric."""
    rows = window.table("hardware")
    if rows is None:
        return np.zeros(0)
    return np.asarray(rows.columns["value"])[rows.strings("metric").equals(name)]


def counts_from_nccl(window: Window) -> tuple[int, int]:
    """Operators with a known algorithm (only the plugin reports it), and rows of transfers."""
    comm, transfers = window.table("comm_ops"), window.table("transfers")
    operators = 0
    if comm is not None and comm.has("algorithm"):
        operators = int((comm.strings("algorithm").codes >= 0).sum())
    return operators, 0 if transfers is None else len(transfers)


def lost(window: Window) -> int:
    """The number of kernels known to be lost."""
    rows = window.table("losses")
    if rows is None:
        return 0
    return int(rows.ints("rows")[rows.strings("table").equals("kernels")].sum())


if __name__ == "__main__":
    main()

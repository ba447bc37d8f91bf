"""The lab's jobs on one GPU that all ranks share, over NCCL: what only a GPU's recorders can show.

    python -m lab.gpu 'ddp-*' 'healthy-*' --seed 1 --out stepscope-runs/lab-gpu
    python -m lab.gpu ddp-device --traces     # four steps of torch.profiler instead of stepscope
    python -m lab.gpu ddp-stopped --dumps     # NCCL's flight recorder instead of stepscope

Device time is a kernel that waits, so that a rank takes as long however many share the GPU; what is
recorded of it, of NCCL and of the host is real. Links, hosts and quotas are not there: only faults
of devices, loaders, code and hangs. `python -m lab score FOLDER` scores what was recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from lab import record, scenarios, truth
from lab.faults import COMPUTE, Fault, LinkGone, OnHost
from lab.run import chosen_names
from lab.scenarios import Case
from lab.shapes import Job

RANKS = 4
LAUNCHER = "torch.distributed.run"
NATIVE = "cupti,nccl,phases,modules"
SHARED_GPU = {
    "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "2",
    "NCCL_NVLS_ENABLE": "0",
}  # fmt: skip
"""Lets several NCCL ranks share a GPU, in addition to separate host ids."""
SHARED = {**SHARED_GPU, "LAB_DEVICE": "cuda", "OMP_NUM_THREADS": "1"}
DUMPS_AFTER_SECONDS = "10"
TRACED_AFTER = 15
LIMIT_SECONDS = 90.0
ENDS_WITHIN_SECONDS = 20.0
ABSENT = ("wrong-order", "no-receive")
"""Hangs over gloo alone: NCCL's groups have their own streams, and its sends do not wait."""


def fit(job: Job) -> Job:
    """The same job for ranks on one GPU: fewer, and fewer steps."""
    options = dict(job.options)
    stages = min(job.stages, RANKS)
    options["ahead"] = 10 if int(options["log-every"]) == 10 else 1
    if job.stages > 1:
        options |= {"stages": stages, "layers": 2 * stages, "microbatches": 8}
    if "tensor" in options:
        options["tensor"] = 2
    return dataclasses.replace(
        job, hosts=1, per_host=RANKS, stages=stages, steps=120, options=options, clocks_ms=()
    )


def cases(patterns: list[str], seeds: list[int]) -> list[Case]:
    drawn = [
        scenarios.case(name, seed, fit)
        for seed in seeds
        for name in chosen_names(patterns)
        if not name.endswith(ABSENT)
    ]
    return [one for one in drawn if not any(_needs_hosts(fault) for fault in one.faults)]


def _needs_hosts(fault: Fault) -> bool:
    return isinstance(fault, OnHost | LinkGone)


@dataclass
class Ranks:
    """A job under way, and what faults can do to it from outside."""

    process: subprocess.Popen[bytes]
    stopped: list[psutil.Process] = field(default_factory=list)

    def send_signal(self, rank: int, number: int) -> None:
        for one, words in self._family():
            if words[1:2] == ["-u"] and one.environ().get("RANK") == str(rank):
                self.stopped += [one, *one.children()]
                one.send_signal(number)

    def end(self) -> None:
        """As a scheduler ends a job: SIGTERM for the launcher."""
        for one, words in self._family():
            if words[1:3] == ["-m", LAUNCHER]:
                one.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ranks have sessions of their own, and one that is stopped outlives its launcher."""
        left = [] if self.process.poll() is not None else [one for one, _ in self._family()]
        for one in (*left, *self.stopped):
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.process.kill()
        self.process.wait()

    def _family(self) -> Iterator[tuple[psutil.Process, list[str]]]:
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                yield one, one.cmdline()


def recorded(case: Case, out: Path, recorder: str) -> Path:
    """Runs a case and gives its folder, with `job/`, `traces/` or `dumps/` in it."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / ("." if recorder == "job" else recorder)).mkdir(parents=True)
    folder.chmod(0o700)  # a socket is in it
    conditions = [row for fault in case.faults for row in fault.conditions()]
    (folder / "conditions.json").write_text(json.dumps(conditions, indent=1))
    traced = _traced_step(case)
    if recorder == "traces":
        case = dataclasses.replace(case, job=dataclasses.replace(case.job, steps=traced + 8))
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            [*_recording(folder, recorder), *_command(case)], stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=_environment(folder, recorder, traced),
        )  # fmt: skip
        ranks = Ranks(process)
        try:
            _attend(case, ranks, folder / "steps.csv", ends_by_itself=recorder == "dumps")
        finally:
            ranks.kill()
    return folder


def _traced_step(case: Case) -> int:
    """The first step of a trace, while the faults hold."""
    return max([TRACED_AFTER, *(fault.when.first + 5 for fault in case.faults)])


def _recording(folder: Path, recorder: str) -> list[str]:
    if recorder != "job":
        return []
    return [
        sys.executable, "-m", "stepscope.cli", "run", "--no-traces", "--store", str(folder),
        "--job", "job", "--native", NATIVE, "--socket", str(folder / "socket"), "--",
    ]  # fmt: skip


def _command(case: Case) -> list[str]:
    launcher = [sys.executable, "-m", LAUNCHER, "--standalone",
                "--nproc-per-node", str(case.job.world)]  # fmt: skip
    script = str((record.SCRIPTS / case.job.script).relative_to(record.ROOT))
    return [*launcher, script, *case.job.arguments(case.seed)]


def _environment(folder: Path, recorder: str, traced: int) -> dict[str, str]:
    paths = [str(record.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {
        **os.environ, **SHARED, "PYTHONPATH": os.pathsep.join(paths),
        "XDG_STATE_HOME": str(folder), "LAB_CONDITIONS": str(folder / "conditions.json"),
        "LAB_STEPS": str(folder / "steps.csv"),
    }  # fmt: skip
    if recorder == "traces":
        given |= {"LAB_TRACES": str(folder / "traces"), "LAB_TRACE_STEP": str(traced)}
    if recorder == "dumps":
        given |= {
            "LAB_TIMEOUT_SECONDS": DUMPS_AFTER_SECONDS, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "dumps" / "rank_"),
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / "dumps" / "rank_"),
        }  # fmt: skip
    return given


def _attend(case: Case, ranks: Ranks, steps: Path, ends_by_itself: bool) -> None:
    """Until the job has ended; stops a rank, or the job when it hangs, when it is time to.

    Args:
        ends_by_itself: NCCL's watchdog ends a job that hangs.
    """
    until = time.monotonic() + LIMIT_SECONDS
    waiting = [fault for fault in case.faults if fault.hangs and not fault.conditions()]
    while ranks.process.poll() is None and time.monotonic() < until:
        step, age = record.progress(steps)
        for fault in [one for one in waiting if step >= one.when.first]:
            fault.begin(ranks)  # type: ignore[arg-type]
            waiting.remove(fault)
        hangs = any(fault.hangs for fault in case.faults) and step > 0
        if hangs and age > record.HANG_SECONDS and not ends_by_itself:
            ranks.end()
            until = min(until, time.monotonic() + ENDS_WITHIN_SECONDS)
        time.sleep(0.02)


def main() -> int:
    arguments = _arguments()
    if not torch.cuda.is_available():
        print("skipped: there is no GPU here")
        return 0
    recorder = "traces" if arguments.traces else "dumps" if arguments.dumps else "job"
    seeds = list(range(arguments.seed, arguments.seed + arguments.seeds))
    for case in cases(arguments.names, seeds):
        began = time.monotonic()
        twin = scenarios.twin(case, fit) if truth.needs_twin(case) else None
        if twin is not None and not truth.is_recorded(twin, arguments.out / twin.name):
            truth.write(twin, recorded(twin, arguments.out, recorder), None)
        folder = recorded(case, arguments.out, recorder)
        found = truth.write(case, folder, arguments.out / twin.name if twin else None)
        _accept_only_compute(folder)
        print(f"{case.name}: {found['steps']} steps, costs {found.get('lost', 0.0):.0%}, "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    return 0


def _accept_only_compute(folder: Path) -> None:
    """Without a GPU, `host` is accepted for a slow device as well; these recordings show which."""
    path = folder / "truth.json"
    known = json.loads(path.read_text())
    for expected in [known["expect"], *known["faults"]]:
        if set(expected.get("causes", ())) == set(COMPUTE):
            expected["causes"] = ["compute"]
    path.write_text(json.dumps(known, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="scenarios, with wildcards; default: all")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--out", type=Path, default=Path("stepscope-runs/lab-gpu"))
    recorder = parser.add_mutually_exclusive_group()
    recorder.add_argument("--traces", action="store_true", help="record by torch.profiler")
    recorder.add_argument("--dumps", action="store_true", help="record by NCCL's flight recorder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

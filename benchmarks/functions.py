"""Real jobs whose user code is slow: is the function named, and the rank?

    python -m benchmarks.functions [--each 4] [--healthy 10] [--out FILE] [--keep DIR]

Each job has four ranks on two hosts (two processors with two host names, one store). One piece of
user code is slow: a file that is read for every row, quadratic preprocessing, a lock that a helper
thread holds, a loader with a single worker, a helper thread that holds the GIL, and metrics of one
rank alone; from the first step on, or from the middle. All ranks profile 20 steps, as `stepscope
profile` orders them, and `stepscope diagnose` is asked. Results are appended to `--out` (JSON
lines), and jobs that are there already are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.triggers import Case, launch, outputs, processors
from stepscope.diagnose.thresholds import LEAST_SCORE
from stepscope.store.reader import JobReader

SCRIPT = Path(__file__).with_name("functions_train.py")
RANKS, STEPS, PROFILED = 4, 400, 20
SINCE, FIRST = 150, 350
"""The first slow step of jobs that are slow from the middle on, and the first profiled one."""
HEALTHY_STEPS = 2000
"""They are shorter, and the order takes seconds."""
NAMES = {
    "file": ("read_sample", "read_bytes", "__getitem__"),
    "quadratic": ("drop_duplicates",),
    "lock": ("update_metrics", "flush_metrics"),
    "starved": ("decode_image", "__getitem__", "_try_get_data", "_next_data"),
    "thread": ("compress_history",),
    "metrics": ("confusion_matrix",),
}
"""Functions that are right to name: the slow one, what it calls, or the user's line that waits."""


@dataclass(frozen=True)
class Result:
    """What was found in a job."""

    name: str
    patterns: bool
    """Whether its ranks profiled."""
    function: bool
    """Whether a verdict names the function."""
    ranks: bool
    """Whether that verdict names the right ranks."""
    others: int
    """Verdicts about ranks that are not slow."""
    verdicts: tuple[str, ...]


def cases(each: int, healthy: int) -> Iterator[Case]:
    for number in range(each):
        for kind in NAMES:
            since = SINCE * (number % 2)
            alone = kind == "metrics" or number % 4 >= 2
            rank = number % RANKS if alone else -1
            options = "--since", str(since), "--steps", str(STEPS)
            yield Case(f"{kind}-{number:02}", kind, rank, options)
    for number in range(healthy):
        options = "--since", "0", "--steps", str(HEALTHY_STEPS)
        yield Case(f"healthy-{number:02}", "none", -1, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--each", type=int, default=4, help="jobs of each kind")
    parser.add_argument("--healthy", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("stepscope-runs/functions.jsonl"))
    parser.add_argument("--keep", type=Path, help="keep job folders here")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    known = {result["name"] for result in _read(arguments.out)}
    for case in cases(arguments.each, arguments.healthy):
        if case.name in known:
            continue
        with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
            result = run(case, Path(folder), arguments.keep)
        with arguments.out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(json.dumps(asdict(result)), flush=True)
    print(summary(_read(arguments.out)))


def run(case: Case, root: Path, keep: Path | None = None) -> Result:
    """Runs a job on two hosts, profiles it, and asks for the diagnosis."""
    store = root / "store" if keep is None else keep.absolute()
    shutil.rmtree(store / case.name, ignore_errors=True)
    with processors(root, "--profile", "off") as sockets:
        running = launch(case.name, [str(SCRIPT), *case.words()], RANKS, store, sockets)
        _order(store / case.name, case.kind != "none")
        outputs(case.name, running)
        _summarized(store / case.name)
    profiled = "patterns" in JobReader(str(store / case.name)).refresh().tables
    return judged(case, diagnosed(store / case.name), profiled)


def _order(job: Path, first: bool) -> None:
    """Orders the window as soon as the job is known to have steps; `first`: from a given one on."""
    options = ["--steps", str(PROFILED), "--no-wait"]
    options += ["--start", str(FIRST)] if first else []
    command = [sys.executable, "-m", "stepscope.cli", "profile", str(job), *options]
    until = time.monotonic() + 60
    while (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        if time.monotonic() > until:
            raise SystemExit(done.stderr)
        time.sleep(0.5)


def _summarized(job: Path) -> None:
    """Waits until the processors have stored the patterns of all ranks."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        patterns = JobReader(str(job)).refresh().tables.get("patterns")
        if patterns is not None and len(set(patterns.ints("rank").tolist())) == RANKS:
            return
        time.sleep(1)


def diagnosed(job: Path) -> list[dict[str, Any]]:
    """The verdicts of `stepscope diagnose --json`."""
    command = [sys.executable, "-m", "stepscope.cli", "diagnose", str(job), "--json"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    found: list[dict[str, Any]] = json.loads(said)["verdicts"]
    job.with_suffix(".diagnosis.json").write_text(said)
    return found


def judged(case: Case, verdicts: Sequence[dict[str, Any]], profiled: bool) -> Result:
    verdicts = [one for one in verdicts if one["confidence"] >= LEAST_SCORE]
    wanted = [] if case.rank < 0 else [case.rank]
    names = NAMES.get(case.kind, ())
    right = [one for one in verdicts if any(name in one["summary"] for name in names)]
    others = [one for one in verdicts if one["ranks"] and one["ranks"] != wanted]
    return Result(
        case.name, profiled, bool(right),
        any(one["ranks"] == wanted for one in right), len(others),
        tuple(one["summary"] for one in verdicts),
    )  # fmt: skip


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(results: Sequence[dict[str, Any]]) -> str:
    """How many functions were named, with the right ranks, by kind; and false verdicts."""
    slow = [one for one in results if not one["name"].startswith("healthy")]
    lines = []
    for kind in NAMES:
        own = [one for one in slow if one["name"].startswith(kind)]
        right = sum(one["function"] and one["ranks"] for one in own)
        named = sum(one["function"] for one in own)
        lines.append(f"{kind:10} {right} of {len(own)} with the right ranks, {named} named")
    right = sum(one["function"] and one["ranks"] for one in slow)
    innocent = sum(bool(one["others"]) for one in slow)
    lines.append(f"{right} of {len(slow)}; innocent ranks named in {innocent} of these")
    healthy = [one for one in results if one["name"].startswith("healthy")]
    false = sum(bool(one["verdicts"]) for one in healthy)
    lines.append(f"{false} of {len(healthy)} healthy jobs got a verdict")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

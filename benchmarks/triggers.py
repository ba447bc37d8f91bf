"""Real jobs on two hosts that become slower, and healthy ones: which windows of profiling open?

    python benchmarks/triggers.py [--slow 20] [--healthy 20] [--ranks 4] [--out FILE] [--keep DIR]

Each job has two processors with two host names and one store, checkpoints every 50 steps and
evaluation every 100. Prints one line per job: whether exactly one window opened, whether its first
and last step are equal on all ranks, and how long after the order it began. Results are appended to
`--out` (JSON lines), and jobs that are there already are not run again. Half of the slow jobs are
slow on one rank.

With `--keep`, job folders stay there, to be diagnosed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope.cli.launch import environment
from stepscope.store.reader import JobReader
from stepscope.window import NULL, Table
from stepscope.wire.profiling import ProfileOrder, decode_order

SCRIPT = Path(__file__).with_name("triggers_train.py")
LAUNCHER = Path(__file__).parents[1] / "tests" / "real" / "launch.py"
HOSTS = ("host-0", "host-1")
KINDS = ("function", "file", "lock")
STEPS = 620
LONGEST_SECONDS = 300.0


@dataclass(frozen=True)
class Case:
    """A job: healthy, or slow on a rank (-1: on all)."""

    name: str
    kind: str
    rank: int
    options: tuple[str, ...]
    """Further options of the training script."""

    def words(self) -> list[str]:
        rank = [] if self.rank < 0 else ["--rank", str(self.rank)]
        return ["--kind", self.kind, *self.options, *rank]


@dataclass(frozen=True)
class Result:
    """What was seen of a job."""

    name: str
    orders: int
    windows: int
    """Windows that ranks profiled."""
    ranks: int
    """Ranks that profiled in the first window."""
    equal: bool
    """Whether first and last step were equal on all of them."""
    detected_s: float | None
    """From the first slow step to the order."""
    begun_s: float | None
    """From the order until the last rank profiled."""
    patterns: int
    troubles: tuple[str, ...]


def cases(slow: int, healthy: int, ranks: int) -> Iterator[Case]:
    for number in range(slow):
        rank = -1 if number % 2 == 0 else number // 2 % ranks
        yield Case(f"slow-{number:02}", KINDS[number % len(KINDS)], rank, _steps(number))
    for number in range(healthy):
        yield Case(f"healthy-{number:02}", "none", -1, _steps(number))


def _steps(seed: int) -> tuple[str, ...]:
    return "--slow-from", str(320 + 10 * (seed % 5)), "--steps", str(STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("stepscope-runs/triggers.jsonl"))
    parser.add_argument("--keep", type=Path, help="keep job folders here")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    known = {result["name"] for result in _read(arguments.out)}
    for case in cases(arguments.slow, arguments.healthy, arguments.ranks):
        if case.name in known:
            continue
        result = run(case, arguments.ranks, arguments.keep)
        with arguments.out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(json.dumps(asdict(result)), flush=True)
    print(summary(_read(arguments.out), arguments.ranks))


def run(case: Case, ranks: int, keep: Path | None = None) -> Result:
    """Runs a job on two hosts and looks at what was recorded."""
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        root = Path(folder)
        store = root / "store" if keep is None else keep.absolute()
        shutil.rmtree(store / case.name, ignore_errors=True)
        with processors(root) as sockets:
            began_ns = _train(case, ranks, store, sockets)
        return observed(case.name, store / case.name, began_ns)


@contextmanager
def processors(root: Path, *options: str) -> Iterator[list[Path]]:
    """One processor for each host; when it ends, they have stored everything."""
    running, sockets = [], []
    for host in HOSTS:
        path = root / host / "p.sock"
        path.parent.mkdir(mode=0o700)
        command = [sys.executable, "-m", "stepscope.cli", "-v", "processor", "--socket", str(path)]
        with path.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *options], stderr=log, env={**os.environ, "STEPSCOPE_HOST": host}
            )
        running.append(process)
        sockets.append(path)
    try:
        for path in sockets:
            _await_socket(path)
        yield sockets
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)


def _await_socket(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > until:
            raise SystemExit(path.with_suffix(".log").read_text())
        time.sleep(0.05)


def _train(case: Case, ranks: int, store: Path, sockets: Sequence[Path]) -> int:
    """Runs the job; returns when its first slow step began."""
    running = launch(case.name, [str(SCRIPT), *case.words()], ranks, store, sockets)
    lines = [json.loads(line) for line in outputs(case.name, running) if line[:1] == "{"]
    time.sleep(10)  # traces of a window at the very end are still summarized
    return min((int(line["began_ns"]) for line in lines), default=0)


def launch(
    name: str, script: Sequence[str], ranks: int, store: Path, sockets: Sequence[Path]
) -> list[subprocess.Popen[str]]:
    """Starts a job, half of its ranks on each host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    each = ranks // len(HOSTS)
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, str(LAUNCHER), "--fork", str(each), *script]
    running = []
    for number, (host, path) in enumerate(zip(HOSTS, sockets, strict=True)):
        own = {"STEPSCOPE_HOST": host, "FIRST_RANK": str(number * each)}
        env = environment({**os.environ, **shared, **own}, name, str(store), path)
        running.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE))
    return running


def outputs(name: str, running: Sequence[subprocess.Popen[str]]) -> list[str]:
    """The lines that a job wrote, when it has ended well."""
    said = [process.communicate(timeout=LONGEST_SECONDS)[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"{name} failed")
    return [line for text in said for line in text.splitlines()]


def observed(name: str, folder: Path, began_ns: int) -> Result:
    """What a job folder says about windows."""
    orders = _orders(folder)
    tables = JobReader(str(folder)).refresh().tables
    profiles, patterns = tables.get("profiles"), tables.get("patterns")
    if profiles is None or not orders:
        return Result(name, len(orders), 0, 0, False, None, None, 0, ())
    troubles = profiles.strings("trouble")
    said = [troubles[row] for row in range(len(profiles))]
    done = profiles.take(profiles.ints("duration_ns") != NULL)
    first = _of_window(done, orders[0].window)
    steps = {(int(a), int(b)) for a, b in zip(first.ints("first_step"), first.ints("last_step"),
                                              strict=True)}  # fmt: skip
    started = first.ints("start_ns")
    return Result(
        name, len(orders), len(set(_strings(done, "window"))), len(first), len(steps) == 1,
        (orders[0].asked_ns - began_ns) / 1e9 if began_ns else None,
        (int(started.max()) - orders[0].asked_ns) / 1e9 if started.size else None,
        0 if patterns is None else len(patterns),
        tuple(sorted({one for one in said if one is not None})),
    )  # fmt: skip


def _orders(folder: Path) -> list[ProfileOrder]:
    found = [decode_order(path.read_bytes()) for path in (folder / "control").glob("*.json")]
    return sorted(found, key=lambda order: order.window)


def _of_window(table: Table, window: str) -> Table:
    return table.take(table.strings("window").equals(window))


def _strings(table: Table, column: str) -> list[str | None]:
    texts = table.strings(column)
    return [texts[row] for row in range(len(table))]


def _read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(results: Sequence[dict[str, object]], ranks: int) -> str:
    slow = [one for one in results if str(one["name"]).startswith("slow")]
    healthy = [one for one in results if not str(one["name"]).startswith("slow")]
    good = [one for one in slow
            if one["windows"] == 1 and one["equal"] and one["ranks"] == ranks]  # fmt: skip
    begun = [float(str(one["begun_s"])) for one in good]
    opened = sum(1 for one in healthy if one["orders"])
    longest = f"{max(begun):.1f} s at most" if begun else "never"
    return (
        f"{len(good)} of {len(slow)} slow jobs: one window, on all ranks, with equal steps; begun "
        f"{longest} after the order. {opened} of {len(healthy)} healthy jobs: a window"
    )


if __name__ == "__main__":
    main()

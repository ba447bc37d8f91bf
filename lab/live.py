"""How soon a case is named while it runs: `stepscope diagnose --follow` beside the job."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.score import passes
from lab.truth import step_spans

INTERVAL_SECONDS = 1.0
"""How often the folder is read; what comes at once is what its processors have stored by then."""
FILE = "live.jsonl"


@dataclass(frozen=True)
class Report:
    """A diagnosis while the job ran, and when it was there (CLOCK_MONOTONIC, as `steps.csv`)."""

    at_ns: int
    verdicts: list[Any]


@contextmanager
def following(folder: Path) -> Iterator[None]:
    """Follows the job of a folder as soon as it is there; every change goes to `live.jsonl`."""
    shutil.rmtree(folder, ignore_errors=True)  # an earlier recording is not to be followed
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(folder, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(folder: Path, over: threading.Event) -> None:
    job = folder / "job"
    while not (job / "job.json").exists():
        if over.wait(0.1):
            return
    command = [sys.executable, "-m", "stepscope.cli", "diagnose", str(job), "--follow", "--json",
               "--interval", str(INTERVAL_SECONDS)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        threading.Thread(target=_ended, args=(process, over), daemon=True).start()
        with (folder / FILE).open("w", buffering=1) as file:
            for line in process.stdout:
                verdicts = json.loads(line).get("verdicts", [])
                file.write(json.dumps([time.perf_counter_ns(), verdicts]) + "\n")


def _ended(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    over.wait()
    process.terminate()


def reports(folder: Path) -> list[Report]:
    """What was said while the job ran; nothing, if nobody followed it."""
    path = folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [Report(*json.loads(line)) for line in lines]


def named_after_s(folder: Path, truth: Mapping[str, Any]) -> float | None:
    """Seconds from the begin of the first fault to the first right report; None: there was none.

    The truth of two faults at different times is known when the second has begun.
    """
    onset_ns = began_ns(folder, max(fault["when"]["first"] for fault in truth["faults"]))
    for one in reports(folder):
        if one.at_ns >= onset_ns and passes(truth, one.verdicts):
            return (one.at_ns - onset_ns) / 1e9
    return None


def began_ns(folder: Path, step: int) -> int:
    """When rank 0 began a step; of one that hangs nothing is written, so the end before it."""
    spans = step_spans(folder)
    if step in spans:
        return spans[step][0]
    return next((ended for _, ended in reversed(spans.values())), 0)

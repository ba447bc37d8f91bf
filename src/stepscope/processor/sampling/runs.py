"""What py-spy writes, as runs of identical samples, and as rows of `stacks`.

Threads of the loader are named for what they do, not by Python (`Thread-1 (_pin_memory_loop)`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from stepscope.processor.records.normalise import Rows
from stepscope.trace import GIL

PIN_MEMORY = "pin memory"
_MAIN = "MainThread"
_PINS = "_pin_memory_loop ("
"""The function that the thread runs, in torch/utils/data/_utils/pin_memory.py."""


@dataclass(frozen=True)
class Run:
    """Consecutive identical samples of one thread."""

    thread: str
    start_ns: int
    duration_ns: int
    frames: str
    active: bool | None = None
    gil: bool | None = None


def runs_of_chrometrace(events: list[dict[str, Any]], spawned_ns: int, end_ns: int) -> list[Run]:
    """Converts py-spy's begin and end events into runs of identical samples.

    Args:
        events: py-spy's output; `ts` are microseconds since the recorder's start.
        spawned_ns: wall-clock time of that start.
        end_ns: when the recorder was stopped; the last run of each thread ends there.
    """
    runs: list[Run] = []
    for thread_events in _by_thread(events).values():
        runs += _runs_of_thread(thread_events, spawned_ns, end_ns)
    return runs


def clip(runs: Iterable[Run], from_ns: int, until_ns: int) -> list[Run]:
    """The parts of the runs that lie within a window."""
    out = []
    for run in runs:
        start = max(run.start_ns, from_ns)
        end = min(run.start_ns + run.duration_ns, until_ns)
        if end > start:
            out.append(replace(run, start_ns=start, duration_ns=end - start))
    return out


def runs_of_dump(threads: list[dict[str, Any]], now_ns: int) -> list[Run]:
    """Converts `py-spy dump --json` into one run of no duration per thread."""
    return [
        Run(
            thread=str(thread.get("thread_name") or thread["thread_id"]),
            start_ns=now_ns,
            duration_ns=0,
            frames=";".join(
                _frame(frame["name"], frame["filename"], frame["line"])
                for frame in reversed(thread["frames"])
            ),
            active=bool(thread["active"]),
            gil=bool(thread["owns_gil"]),
        )
        for thread in threads
    ]


def runs_of_counts(text: str, begin_ns: int, end_ns: int, hz: int) -> list[Run]:
    """Converts `py-spy record --gil --format raw`: each stack, and how often it held the GIL.

    When it did is not known, so the runs follow each other from the begin.
    """
    runs: list[Run] = []
    at = begin_ns
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, _, frames = stack.partition(";")
        if not (count.isdecimal() and frames):
            continue
        duration = min(int(count) * 1_000_000_000 // hz, max(end_ns - at, 0))
        name = thread.partition("): ")[2] or thread
        runs.append(Run(GIL + name, at, duration, frames, active=True, gil=True))
        at += duration
    return runs


def worker_runs(runs: Iterable[Run], number: int) -> list[Run]:
    """The runs of a loader worker's threads; the main one loads."""
    name = f"loader worker {number}"
    return [
        replace(run, thread=name if run.thread == _MAIN else f"{name}: {run.thread}")
        for run in runs
    ]


def _named(run: Run) -> str:
    return PIN_MEMORY if _PINS in run.frames and run.thread != _MAIN else run.thread


def _by_thread(events: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    threads: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        threads.setdefault(event["tid"], []).append(event)
    return threads


def _runs_of_thread(events: list[dict[str, Any]], spawned_ns: int, end_ns: int) -> list[Run]:
    runs: list[Run] = []
    stack: list[str] = []
    thread = "?"
    since = 0
    for event in events:
        at = int(event["ts"])
        if at > since and len(stack) > 0:
            runs.append(_run(thread, stack, spawned_ns + since * 1000, spawned_ns + at * 1000))
        since = at
        if event["ph"] == "E":
            stack.pop()
        elif event["name"].startswith("thread ("):
            thread = event["name"].partition("): ")[2] or event["name"]
            stack.append("")
        else:
            arguments = event["args"]
            stack.append(_frame(event["name"], arguments["filename"], arguments["line"]))
    last = spawned_ns + since * 1000
    if stack and end_ns > last:
        runs.append(_run(thread, stack, last, end_ns))
    return [run for run in runs if run.frames]


def _run(thread: str, stack: list[str], start_ns: int, end_ns: int) -> Run:
    return Run(thread, start_ns, end_ns - start_ns, ";".join(frame for frame in stack if frame))


def _frame(function: str, file: str, line: int) -> str:
    return f"{function} ({file}:{line})".replace(";", ",")


def rows_of(rank: int, runs: list[Run]) -> Rows:
    """Rows of table `stacks`."""
    return {
        "rank": [rank] * len(runs),
        "thread": [_named(run) for run in runs],
        "start_ns": [run.start_ns for run in runs],
        "duration_ns": [run.duration_ns for run in runs],
        "frames": [run.frames for run in runs],
        "active": [run.active for run in runs],
        "gil": [run.gil for run in runs],
    }

"""What py-spy writes, as runs of identical samples, and as rows of `stacks`.

Threads of the loader are named for what they do, not by Python (`Thread-1 (_pin_memory_loop)`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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


def events_of(data: bytes) -> Iterator[dict[str, Any]]:
    """The events of a chrometrace, one at a time: all at once they take many times the memory of
    the text, and a processor that holds that now and then never becomes as small again.

    Raises:
        ValueError: it is no JSON array of objects.
    """
    text = data.decode(errors="replace")
    decode, at = json.JSONDecoder().raw_decode, _after(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("py-spy has not written an array")
    at = _after(text, at + 1)
    while text[at : at + 1] != "]":
        event, at = decode(text, at)
        yield event
        at = _after(text, at)
        if text[at : at + 1] == ",":
            at = _after(text, at + 1)


def _after(text: str, at: int) -> int:
    """The next place that is no white space."""
    while text[at : at + 1].isspace():
        at += 1
    return at


def runs_of_chrometrace(
    events: Iterable[Mapping[str, Any]], spawned_ns: int, end_ns: int
) -> list[Run]:
    """Converts py-spy's begin and end events into runs of identical samples.

    Args:
        events: py-spy's output; `ts` are microseconds since the recorder's start.
        spawned_ns: wall-clock time of that start.
        end_ns: when the recorder was stopped; the last run of each thread ends there.
    """
    threads: dict[Any, _Thread] = {}
    for event in events:
        threads.setdefault(event["tid"], _Thread()).take(event, spawned_ns)
    return [run for one in threads.values() for run in one.ended(spawned_ns, end_ns)]


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


@dataclass
class _Thread:
    """A thread while its events pass by."""

    runs: list[Run] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    name: str = "?"
    since: int = 0
    """Microseconds since the recorder's start."""

    def take(self, event: Mapping[str, Any], spawned_ns: int) -> None:
        at = int(event["ts"])
        if at > self.since and self.stack:
            self._add(spawned_ns, spawned_ns + at * 1000)
        self.since = at
        if event["ph"] == "E":
            self.stack.pop()
        elif event["name"].startswith("thread ("):
            self.name = event["name"].partition("): ")[2] or event["name"]
            self.stack.append("")
        else:
            arguments = event["args"]
            self.stack.append(_frame(event["name"], arguments["filename"], arguments["line"]))

    def ended(self, spawned_ns: int, end_ns: int) -> list[Run]:
        if self.stack and end_ns > spawned_ns + self.since * 1000:
            self._add(spawned_ns, end_ns)
        return self.runs

    def _add(self, spawned_ns: int, end_ns: int) -> None:
        start_ns = spawned_ns + self.since * 1000
        frames = ";".join(frame for frame in self.stack if frame)
        if frames:
            self.runs.append(Run(self.name, start_ns, end_ns - start_ns, frames))


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

"""Results of a suite as a JSON file, and the comparison of two such files."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import FormatError, SourceError, UsageError
from stepscope.evaluate.outcome import outcome, tallies
from stepscope.evaluate.reliability import reliability
from stepscope.evaluate.runner import ReportedVerdict, Result
from stepscope.evaluate.score import Score

SCHEMA = 1
WRITING = 0.05
"""Thousands of results take a second to write, which is as long as a small job takes to run."""


@dataclass(frozen=True)
class Results:
    """The results of one run of a suite."""

    suite: str
    fast: bool
    seeds: tuple[int, ...]
    version: str
    results: tuple[Result, ...]
    unfit: tuple[str, ...] = ()
    """Rows whose fault fits none of the suite's jobs."""
    missing: int = 0
    """Jobs that were not run because the run was interrupted."""
    conditions: tuple[str, ...] = ()
    """Under which conditions each job was diagnosed; empty: only as it is."""

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(one for one in self.results if one.failed)


def write(results: Results, file: Path) -> None:
    """Writes the results as JSON.

    Raises:
        UsageError: the file cannot be written.
    """
    confidence = [one.to_json() for one in reliability(results.results)]
    counts = [asdict(one) for one in tallies(results.results)] if results.conditions else []
    body = {"schema": SCHEMA, **asdict(results), "tallies": counts, "reliability": confidence}
    try:
        beside = file.with_name(f".{file.name}.part")
        beside.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)  # if we are killed while writing, the old file is still whole
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


class Keeper:
    """Writes results to a file while there are ever more of them, for a small share of the time."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._next_s = -math.inf

    def keep(self, results: Results) -> None:
        """Writes the results, unless writing would take more than `WRITING` of the time."""
        began_s = self._clock()
        if began_s < self._next_s:
            return
        write(results, self._file)
        done_s = self._clock()
        self._next_s = done_s + (done_s - began_s) / WRITING


def read(file: Path) -> Results:
    """Reads a file that `write` wrote.

    Raises:
        SourceError: it cannot be read.
        FormatError: it holds something else.
    """
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        return _results(body)
    except OSError as error:
        raise SourceError(f"cannot read {file}: {error.strerror}") from error
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise FormatError(f"{file} is no file of `stepscope evaluate --json`: {error}") from error


def _results(body: Mapping[str, Any]) -> Results:
    if body["schema"] != SCHEMA:
        raise ValueError(f"schema {body['schema']}, want {SCHEMA}")
    results = tuple(_result(one) for one in body["results"])
    return Results(str(body["suite"]), bool(body["fast"]), tuple(body["seeds"]),
                   str(body["version"]), results, tuple(body["unfit"]),
                   int(body.get("missing", 0)), tuple(body.get("conditions", ())))  # fmt: skip


def _result(body: Mapping[str, Any]) -> Result:
    said = tuple(
        ReportedVerdict(
            **{**verdict, "ranks": tuple(verdict["ranks"]), "devices": tuple(verdict["devices"])}
        )
        for verdict in body["said"]
    )
    return Result(**{**body, "said": said, "score": Score(**body["score"])})


@dataclass(frozen=True)
class Change:
    """One score of one job that differs between two runs."""

    id: str
    better: bool
    what: str


@dataclass(frozen=True)
class Comparison:
    """How many jobs two runs share, and the scores that differ."""

    common: int
    only_before: int
    only_after: int
    changes: tuple[Change, ...]

    @property
    def worse(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if not one.better)


def compare(before: Results, after: Results) -> Comparison:
    """Compares job by job: the same job has the same id, so no difference is due to chance."""
    old = {one.id: one for one in before.results}
    new = {one.id: one for one in after.results}
    both = [id for id in old if id in new]
    changes = [change for id in both for change in _changes(old[id], new[id])]
    return Comparison(len(both), len(old) - len(both), len(new) - len(both), tuple(changes))


def _changes(before: Result, after: Result) -> Sequence[Change]:
    changes = [*_differences(before.score, after.score, after.id)]
    silent = [outcome(one) == "called healthy" for one in (before, after)]
    if silent[0] != silent[1]:
        what = f"called healthy {_yes(silent[0])} -> {_yes(silent[1])}"
        changes.append(Change(after.id, silent[0], what))
    if bool(before.failed) == bool(after.failed):
        return changes
    what = f"failed: {after.failed}" if after.failed else "no longer failed"
    return [Change(after.id, not after.failed, what), *changes]


def _differences(old: Score, new: Score, id: str) -> Sequence[Change]:
    good = [(name, getattr(old, name), getattr(new, name))
            for name in ("found", "complete", "cause", "device")]  # fmt: skip
    found = [Change(id, bool(b), f"{name} {_yes(a)} -> {_yes(b)}") for name, a, b in good
             if None not in (a, b) and a != b]  # fmt: skip
    if old.hangs:
        stuck = (old.found_hang, new.found_hang)
        if stuck[0] != stuck[1]:
            found.append(Change(id, stuck[1], f"hang {_yes(stuck[0])} -> {_yes(stuck[1])}"))
    elif old.said_hang != new.said_hang:
        found.append(Change(id, old.said_hang, "false hang"))
    for name, a, b in (("false alarms", old.alarms, new.alarms),
                       ("innocent ranks", old.accused, new.accused)):  # fmt: skip
        if a != b:
            found.append(Change(id, b < a, f"{name} {a} -> {b}"))
    return found


def _yes(value: bool | None) -> str:
    return "yes" if value else "no"

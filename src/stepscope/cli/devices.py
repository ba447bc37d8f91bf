"""`stepscope devices`: which devices of a cluster to drain, by all jobs in a store."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.topology import Topology, read_tree
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.devices import JobEvidence, Shelf

_EXAMPLES = """Examples:

- `stepscope devices stepscope-runs`: the worst devices of all jobs in this store, and why

- `stepscope devices s3://bucket/runs --update`: first diagnose the jobs that nobody diagnosed yet

- `stepscope devices /shared/runs --since 7d`: only jobs of the last week

- `stepscope devices /shared/runs --json | jq '.devices[] | select(.advice=="drain").host'`: for
programs
"""
_SHOWN = 10
_AGE = re.compile(r"(\d+(?:\.\d+)?)([hd])")
_UNIT_S = {"h": 3600.0, "d": 86_400.0}

Store = Annotated[
    str,
    typer.Argument(metavar="STORE", help="The folder or URL that contains the jobs (s3://…)."),
]
Update = Annotated[
    bool,
    typer.Option(
        "--update",
        help="First diagnose jobs without evidence, as those of which `stepscope run` was killed.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="Count only jobs that were recorded since then: 12h, 7d, or a date as 2026-11-01.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN", help="Answer as of then, by the jobs up to that time [default: now]."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Show the N worst devices [default: 10; with --json, all]."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
]


def register(app: typer.Typer) -> None:
    app.command("devices", epilog=_EXAMPLES)(devices)


def devices(
    store: Store,
    update: Update = False,
    since: Since = None,
    at: At = None,
    topology: Topology = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> int:
    """Find devices that are bad in job after job: which GPU, adapter, cable or host to drain.

    Each job that `stepscope run` records adds its evidence to the store when it ends: for every
    device that it used, what its verdicts say against it, or that it ran well. Evidence loses half
    of its weight in two weeks. A device takes three bad jobs to be drained.

    `drain`: more likely bad than not. `watch`: more likely than other devices. `fine`: neither.

    Exit status: 0 nothing to drain, 1 something is, 2 the store has no evidence or cannot be read.
    """
    from stepscope.cli.terminal import knows_unicode, width
    from stepscope.devices import standings
    from stepscope.devices.text import render, to_json
    from stepscope.report.text import to_ascii

    if topology is not None and not update:
        raise UsageError("--topology needs --update: it names switches in new diagnoses")
    if topology is not None:
        read_tree(topology)  # a file that cannot be read is no trouble of each job
    now_ns = _moment_ns("--at", at, time.time_ns())
    begin_ns = 0 if since is None else _moment_ns("--since", since, now_ns)
    every, problems = _evidence(store, update, topology)
    jobs = [one for one in every if begin_ns <= one.until_ns <= now_ns]
    if not jobs:
        raise SourceError(_none_then(store, every, begin_ns, now_ns))
    for problem in problems:
        exits.print_stderr(problem)
    found = standings(jobs, now_ns)
    if as_json:
        print(json.dumps(to_json(found[:limit], len(jobs), now_ns, problems), allow_nan=False))
    else:
        text = render(found, len(jobs), now_ns, width(), limit or _SHOWN)
        print(text if knows_unicode() else to_ascii(text), end="")
    return exits.FOUND if found and found[0].advice == "drain" else exits.NOTHING_FOUND


def _evidence(
    store: str, update: bool, topology: Path | None
) -> tuple[list[JobEvidence], list[str]]:
    """The evidence of all jobs, the oldest first, and one line for each that is left out.

    Raises:
        SourceError: there is no evidence, or the store cannot be read.
    """
    from stepscope.cli.terminal import progress
    from stepscope.devices import Shelf
    from stepscope.store.location import Location
    from stepscope.store.source import check_store

    shelf = Shelf(Location.parse(store))
    check_store(shelf.store)
    with progress(f"reading the device ledger of {store}"):
        read = shelf.read()
    jobs = {one.job: one for one in read.jobs}
    problems = list(read.problems)
    if update:
        more, trouble = _update(shelf, list(read.jobs), topology)
        jobs |= {one.job: one for one in more}
        problems += trouble
    if not jobs:
        raise SourceError(_nothing(shelf, store, problems))
    return sorted(jobs.values(), key=lambda one: (one.until_ns, one.job)), problems


def _update(
    shelf: Shelf, known: list[JobEvidence], topology: Path | None
) -> tuple[list[JobEvidence], list[str]]:
    from stepscope.cli.evidence import catch_up
    from stepscope.cli.terminal import count_progress, progress

    # importing numpy starts one OpenBLAS thread per core; nothing here uses them
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with progress(f"looking for jobs in {shelf.store}"):
        missing = shelf.missing(known)
    with count_progress(f"diagnosing jobs in {shelf.store.name}") as advance:
        return catch_up(shelf, missing, topology, advance)


def _nothing(shelf: Shelf, store: str, problems: list[str]) -> str:
    """Why there is no evidence, and what to do."""
    if problems:
        return f"no evidence in {store} can be used: {problems[0]}"
    jobs = len(shelf.missing(()))
    if jobs:
        without = "1 job has none" if jobs == 1 else f"none of its {jobs} jobs has any"
        return f"no evidence about devices in {store} yet: {without}; --update diagnoses them"
    return f"no job in {store}; record one with `stepscope run --store {store} -- COMMAND`"


def _none_then(store: str, every: list[JobEvidence], begin_ns: int, now_ns: int) -> str:
    """That no job ended in the time that was asked for, and when jobs did."""
    from stepscope.report.units import moment

    last = moment(every[-1].until_ns)
    when = f"between {moment(begin_ns)} and" if begin_ns else "until"
    return f"no job in {store} ended {when} {moment(now_ns)}; the last one did at {last}"


def _moment_ns(option: str, given: str | None, now_ns: int) -> int:
    """The moment that an option means; without one, now.

    Raises:
        UsageError: it is neither an age nor a date.
    """
    if given is None:
        return now_ns
    age = _AGE.fullmatch(given)
    if age is not None:
        return now_ns - int(float(age[1]) * _UNIT_S[age[2]] * 1e9)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError as error:
        raise UsageError(
            f"{option} takes an age, as 12h or 7d, or a date, as 2026-11-01, not {given}"
        ) from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return int(aware.timestamp() * 1e9)

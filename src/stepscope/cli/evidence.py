"""Adds the evidence of jobs to the device ledger of their store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.cli.sources import Source
    from stepscope.cli.terminal import Advance
    from stepscope.devices import JobEvidence, Shelf
    from stepscope.diagnose.finding import Diagnosis
    from stepscope.window import Window

logger = logging.getLogger(__name__)


def remember(store: str, job: str, window: Window, diagnosis: Diagnosis) -> str | None:
    """Stores what a job that has ended says about its devices.

    Returns why it could not be stored: a store may be full, or not writable any more.
    """
    from stepscope.devices import Shelf, evidence_of
    from stepscope.store.layout import safe_name
    from stepscope.store.location import Location

    if not diagnosis.ranks:
        return None
    evidence = evidence_of(window, diagnosis, safe_name(job), ended=True)
    try:
        Shelf(Location.parse(store)).put(evidence)
    except StepscopeError as error:
        return f"not added to the device ledger: {error}"
    logger.info("added %s to the device ledger of %s", job, store)
    return None


def catch_up(
    shelf: Shelf, jobs: list[str], topology: Path | None, advance: Advance | None
) -> tuple[list[JobEvidence], list[str]]:
    """Diagnoses jobs and stores their evidence, which also counts if it cannot be stored.

    Returns the evidence, and one line for each job that could not be diagnosed, and for the first
    that could not be stored.
    """
    found: list[JobEvidence] = []
    problems: list[str] = []
    unwritable = ""
    for done, job in enumerate(jobs):
        if advance is not None:
            advance(done, len(jobs))
        try:
            one = _diagnosed(shelf, job, topology)
        except StepscopeError as error:
            problems.append(f"{job} is left out: {error}")
            continue
        if one is None:
            problems.append(f"{job} is left out: nothing was recorded")
            continue
        found.append(one)
        try:
            if not unwritable:
                shelf.put(one)
        except StepscopeError as error:
            unwritable = str(error)
    if unwritable:
        problems.append(f"the evidence counts now, but is not kept: {unwritable}")
    return found, problems


def _diagnosed(shelf: Shelf, job: str, topology: Path | None) -> JobEvidence | None:
    """The evidence of one job of a store, from its rows; None if it has none.

    Raises:
        SourceError: it cannot be read, or the topology is that of another cluster.
    """
    from stepscope.cli.topology import Placed
    from stepscope.devices import evidence_of
    from stepscope.diagnose.run import diagnose
    from stepscope.store.reader import JobReader

    source: Source = JobReader(str(shelf.store.child(job)))
    window = (source if topology is None else Placed(source, topology)).read()
    diagnosis = diagnose(window)
    return evidence_of(window, diagnosis, job) if diagnosis.ranks else None

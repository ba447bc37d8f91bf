"""The job: as it is described in the traces, else as far as their tracks show it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepscope.errors import FormatError
from stepscope.formats.perfetto.tracks import Owner
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.trace.kinds import kind_of_words
from stepscope.trace.merging import merge_jobs
from stepscope.trace.parsing import parse_job
from stepscope.window import Table, distinct

_OF_RANK = re.compile(r"(?:rank|host)=.*")
_TRACES = "traces"
"""The folder of a job folder with its traces."""


def described(texts: Collection[str]) -> Job | None:
    """The job that is described: what each host knew of it, or `stepscope trace`.

    Raises:
        FormatError: a description is damaged, or they are of different jobs.
    """
    jobs = [parse_job(text.encode()) for text in texts]
    names = sorted({job.job_id for job in jobs})
    if len(names) > 1:
        raise FormatError(f"the traces are of several jobs, {names[0]} and {names[1]}: keep those "
                          "of one of them, or name a file")  # fmt: skip
    return merge_jobs(jobs) if jobs else None


def job_of(
    source: Path, known: Job | None, owners: Sequence[Owner], operators: Table | None, until_ns: int
) -> Job:
    """The job with these ranks and hosts, and what is known of it otherwise.

    Several groups that are not described are left to the diagnosis, which finds their members,
    kinds and stages; it does not for a single one.
    """
    job = known or Job("", 0)
    ranks = tuple(sorted({owner.rank for owner in owners if owner.rank >= 0}))
    return replace(
        job,
        job_id=_name(source),
        world_size=max((job.world_size, *(rank + 1 for rank in ranks))),
        hosts=job.hosts or _hosts(owners),
        groups=job.groups or (() if operators is None else _only_group(operators)),
        recorded_ranks=ranks,
        observed_until_ns=job.observed_until_ns or until_ns or None,
    )


def _name(source: Path) -> str:
    """`JOB` of `JOB.perfetto-trace.gz`, `JOB/traces` and what lies below that."""
    path = source.resolve()
    folder = path.parent if path.is_file() else path
    while folder.name == _TRACES or _OF_RANK.fullmatch(folder.name):
        path = folder = folder.parent
    name = path.name.partition(".")[0] if path.is_file() else path.name
    return name or _TRACES


def _hosts(owners: Sequence[Owner]) -> tuple[Host, ...]:
    found: dict[str, list[int]] = {}
    for owner in sorted(owners, key=lambda one: one.rank):
        if owner.host is not None and owner.rank >= 0:
            found.setdefault(owner.host, []).append(owner.rank)
    return tuple(Host(name, tuple(dict.fromkeys(ranks))) for name, ranks in found.items())


def _only_group(operators: Table) -> tuple[ProcessGroup, ...]:
    group = operators.strings("group")
    known = group.codes >= 0
    used = distinct(group.codes[known])
    if used.size != 1:
        return ()
    name = group.values[int(used[0])]
    ranks = tuple(np.unique(operators.ints("rank")[known]).tolist())
    kind = kind_of_words(name)
    return (ProcessGroup(name, kind, ranks),) if kind else ()

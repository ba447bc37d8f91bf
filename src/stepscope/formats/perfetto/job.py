"""The job: its ranks, hosts and, if it has a single group, that one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepscope.formats.perfetto.tracks import Owner
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.trace.kinds import kind_of_words
from stepscope.window import Table, distinct

_OF_RANK = re.compile(r"(?:rank|host)=.*")
_TRACES = "traces"
"""The folder of a job folder with its traces."""


def job_of(source: Path, owners: Sequence[Owner], operators: Table | None, until_ns: int) -> Job:
    """The job of these ranks and hosts.

    Several groups are left to the diagnosis, which finds their members, kinds and stages; it does
    not for a single one.
    """
    ranks = tuple(sorted({owner.rank for owner in owners if owner.rank >= 0}))
    return Job(
        job_id=_name(source),
        world_size=max(ranks, default=-1) + 1,
        hosts=_hosts(owners),
        groups=() if operators is None else _only_group(operators),
        recorded_ranks=ranks,
        observed_until_ns=until_ns or None,
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

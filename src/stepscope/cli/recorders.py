"""Assigns the hosts of a simulated job to recorders, which stand for processors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.trace import Job
from stepscope.window import Column, Ints, Strings, Table


@dataclass(frozen=True)
class Recorders:
    """Splits the hosts into contiguous runs of about equal length, one per recorder."""

    job: Job
    count: int

    @property
    def names(self) -> Sequence[str]:
        """The names of the recorders: that of the first host of each."""
        return [self.job.hosts[int(at)].name for at in self._first]

    def split(self, table: Table) -> Iterator[tuple[int, Table]]:
        """For each recorder that has rows in the table: its index and those rows."""
        recorder = self._of_rows(table)
        order = np.argsort(recorder, kind="stable")
        bounds = np.searchsorted(recorder[order], np.arange(self.count + 1))
        for index in range(self.count):
            rows = order[bounds[index] : bounds[index + 1]]
            if rows.size:
                part = table.take(rows)
                yield index, Table({n: with_used_values(part.columns[n]) for n in part.columns})

    def _of_rows(self, table: Table) -> Ints:
        """The recorder of each row, by the host of its rank, or by its column `host`."""
        rank = table.ints("rank")
        host = self._host_of_rank[np.maximum(rank, 0)]
        if table.has("host"):
            names = table.strings("host")
            of_name = np.array([self._number.get(name, 0) for name in (*names.values, "")])
            host = np.where(rank < 0, of_name[names.codes], host)
        return np.searchsorted(self._first, host, side="right") - 1

    @cached_property
    def _first(self) -> Ints:
        """The index of the first host of each recorder."""
        return np.arange(self.count) * len(self.job.hosts) // self.count

    @cached_property
    def _number(self) -> dict[str, int]:
        return {host.name: at for at, host in enumerate(self.job.hosts)}

    @cached_property
    def _host_of_rank(self) -> Ints:
        host = np.zeros(self.job.world_size, np.int64)
        for index, job_host in enumerate(self.job.hosts):
            host[list(job_host.ranks)] = index
        return host


def with_used_values(column: Column) -> Column:
    """A string column without unused dictionary values, which would all go into the file."""
    if not isinstance(column, Strings):
        return column
    used, codes = np.unique(column.codes, return_inverse=True)
    nulls = int(used[0] < 0) if used.size else 0
    words = tuple(column.values[code] for code in used[nulls:])
    return Strings((codes - nulls).astype(np.int32), words)

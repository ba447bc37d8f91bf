"""Who records a simulated job: the hosts, each recorder some of them, as processors would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.trace import Job
from stepscope.window import Column, Ints, Strings, Table


@dataclass(frozen=True)
class Recorders:
    """Neighbouring hosts share a recorder, and each has about as many."""

    job: Job
    count: int

    @property
    def names(self) -> Sequence[str]:
        """Each is called after its first host."""
        return [self.job.hosts[int(at)].name for at in self._first]

    def split(self, table: Table) -> Iterator[tuple[int, Table]]:
        """The rows of each recorder that has some, with its number."""
        recorder = self._of_rows(table)
        order = np.argsort(recorder, kind="stable")
        bounds = np.searchsorted(recorder[order], np.arange(self.count + 1))
        for number in range(self.count):
            rows = order[bounds[number] : bounds[number + 1]]
            if rows.size:
                part = table.take(rows)
                yield number, Table({n: own_words(part.columns[n]) for n in part.columns})

    def _of_rows(self, table: Table) -> Ints:
        """The recorder of each row's host: its rank's, or the one that the row names."""
        rank = table.ints("rank")
        host = self._host_of_rank[np.maximum(rank, 0)]
        if table.has("host"):
            names = table.strings("host")
            of_name = np.array([self._number.get(name, 0) for name in (*names.values, "")])
            host = np.where(rank < 0, of_name[names.codes], host)
        return np.searchsorted(self._first, host, side="right") - 1

    @cached_property
    def _first(self) -> Ints:
        """The first host of each recorder."""
        return np.arange(self.count) * len(self.job.hosts) // self.count

    @cached_property
    def _number(self) -> dict[str, int]:
        return {host.name: at for at, host in enumerate(self.job.hosts)}

    @cached_property
    def _host_of_rank(self) -> Ints:
        host = np.zeros(self.job.world_size, np.int64)
        for at, one in enumerate(self.job.hosts):
            host[list(one.ranks)] = at
        return host


def own_words(column: Column) -> Column:
    """With no other words than the column uses: a file has them all."""
    if not isinstance(column, Strings):
        return column
    used, codes = np.unique(column.codes, return_inverse=True)
    nulls = int(used[0] < 0) if used.size else 0
    words = tuple(column.values[code] for code in used[nulls:])
    return Strings((codes - nulls).astype(np.int32), words)

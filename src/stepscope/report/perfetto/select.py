"""Selects the ranks and steps of a window to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.perfetto.slices import ends
from stepscope.window import NULL, Ints, Mask, Table, Window

_STEP_TABLES = ("steps", "phases", "kernels", "comm_ops", "host_ops")
"""Tables that show when a step ran, the most accurate first."""
_BEGINS = {"comm_ops": "enqueue_ns", "hardware": "ts_ns"}
_LATEST = np.iinfo(np.int64).max

Steps = tuple[int, int]
"""First and last."""


def select(window: Window, ranks: tuple[int, ...], steps: Steps | None = None) -> Window:
    """The rows of these ranks and their hosts, in these steps or during them."""
    if not ranks:
        return Window(window.job, {})
    tables = {name: table.take(_of_ranks(window, table, ranks))
              for name, table in window.tables.items() if table.has("rank")}  # fmt: skip
    if steps is not None:
        times = _times(tables, np.array(sorted(ranks), np.int64), steps)
        tables = {name: table.take(_in_steps(name, table, steps, times))
                  for name, table in tables.items()}  # fmt: skip
    return Window(window.job, {name: table for name, table in tables.items() if len(table)})


def _of_ranks(window: Window, table: Table, ranks: tuple[int, ...]) -> Mask:
    rank = table.ints("rank")
    chosen = np.isin(rank, ranks)
    if not table.has("host"):
        return chosen
    hosts = [host.name for host in window.job.hosts if set(host.ranks) & set(ranks)]
    known = table.strings("host").equals(*hosts) if window.job.hosts else np.True_
    return chosen | ((rank < 0) & known)


@dataclass(frozen=True)
class _Times:
    """The time of the chosen steps on each rank."""

    ranks: Ints
    first_ns: Ints
    last_ns: Ints

    def meet(self, rank: Ints, begin: Ints, end: Ints) -> Mask:
        """Which intervals overlap the time of their rank; for a host, that of any rank."""
        row = np.minimum(np.searchsorted(self.ranks, rank), self.ranks.size - 1)
        host = rank < 0
        first = np.where(host, self.first_ns.min(), self.first_ns[row])
        last = np.where(host, self.last_ns.max(), self.last_ns[row])
        return np.asarray((begin <= last) & (end >= first))


def _times(tables: Mapping[str, Table], ranks: Ints, steps: Steps) -> _Times:
    first, last = np.full(ranks.size, _LATEST), np.full(ranks.size, NULL)
    for name in _STEP_TABLES:
        table = tables.get(name)
        if table is None or not table.has("step", _BEGINS.get(name, "start_ns")):
            continue
        table = table.take((table.ints("rank") >= 0) & _between(table.ints("step"), steps))
        if len(table):
            row = np.searchsorted(ranks, table.ints("rank"))
            begin, end = _bounds(name, table)
            np.minimum.at(first, row, begin)
            np.maximum.at(last, row, end)
            break
    return _Times(ranks, first, last)


def _in_steps(name: str, table: Table, steps: Steps, times: _Times) -> Mask:
    if not table.has(_BEGINS.get(name, "start_ns")):
        return np.zeros(len(table), np.bool_)
    within = times.meet(table.ints("rank"), *_bounds(name, table))
    if not table.has("step"):
        return within
    step = table.ints("step")
    return np.where(step < 0, within, _between(step, steps))


def _between(step: Ints, steps: Steps) -> Mask:
    return np.asarray((step >= steps[0]) & (step <= steps[1]))


def _bounds(name: str, table: Table) -> tuple[Ints, Ints]:
    """Begin and end of each row; they are equal in tables without durations."""
    begin = table.ints(_BEGINS.get(name, "start_ns"))
    if not table.has("duration_ns"):
        return begin, begin
    return begin, np.maximum(begin, ends(begin, table.ints("duration_ns")))

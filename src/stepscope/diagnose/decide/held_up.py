"""The step graph of some ranks and of what they hold up, so small that more steps fit into it.

A slow rank holds up those it works with on one microbatch, and with them all ranks that these meet
in any operator, as when gradients are exchanged. What others do among themselves before the first
of these operators ends does not depend on it: that is left out, and counts as their own work. With
4,096 ranks in pipelines of four stages seven times as many steps fit into the same number of rows.
Where all parameters are gathered in every pass nothing can be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.step_graph import StepGraph, spread, step_graph
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.unrecorded import linked
from stepscope.diagnose.views.hidden_waits import BLOCKING_KINDS
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Ints, Mask, Table, Window


def graph_about(job: Observed, rows: Ints) -> StepGraph | None:
    """The graph for a what-if on these rows of the grid, with all judged steps or as many as fit.

    None where it was not recorded who waited for whom.
    """
    judged = np.arange(job.line.warm_up, len(job.line.steps))
    whole, comm = job.graph, job.window.table("comm_ops")
    if whole is None or comm is None or whole.lanes.columns.size == judged.size:
        return whole
    part = _held_up(job, comm, rows)
    columns = spread(part, job.line, judged)
    if columns.size <= whole.lanes.columns.size:
        return whole
    return step_graph(part, job.line, columns)


def _held_up(job: Observed, comm: Table, rows: Ints) -> Window:
    """The operators and work of these ranks and of those they hold up, and what follows once both
    meet other ranks."""
    within = job.window.job.groups_of_kind(*BLOCKING_KINDS)
    near = linked(within, frozenset(job.line.ranks[rows].tolist()))
    apart = [group.id for group in job.window.groups if near.isdisjoint(group.ranks)]
    meet = ~comm.strings("group").equals(*apart)
    part = _Part(job.line, np.array(sorted(near)), np.full(len(job.line.steps) + 1, _NEVER))
    part.begin_with(comm.take(meet))
    tables = {"comm_ops": comm.take(meet | part.ends_in(comm, comm.ints("end_ns")))}
    for name in ("phases", "kernels"):
        table = job.window.table(name)
        if table is not None and table.has("step"):
            end = table.ints("start_ns") + table.ints("duration_ns")
            tables[name] = table.take(part.ends_in(table, end))
    return replace(job.window, tables={**job.window.tables, **tables})


_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Part:
    """All work of some ranks, and the work of the others from one moment per column on."""

    line: Timeline
    near: Ints
    since_ns: Ints
    """The moment in each column; the last one is for steps that are not on the grid."""

    def begin_with(self, comm: Table) -> None:
        """Sets the moment to when the first of these operators ends at another rank."""
        end = comm.ints("end_ns")
        others = (end != NULL) & ~self._near(comm)
        np.minimum.at(self.since_ns, self.line.columns(comm.ints("step"))[others], end[others])

    def ends_in(self, table: Table, end_ns: Ints) -> Mask:
        """Which rows end within it."""
        since = self.since_ns[self.line.columns(table.ints("step"))]
        return np.asarray(self._near(table) | (end_ns >= since))

    def _near(self, table: Table) -> Mask:
        found: Mask = self._is_near[self.line.rows(table.ints("rank"))]
        return found

    @cached_property
    def _is_near(self) -> Mask:
        """By row of the grid; the last one is for ranks that are not on it."""
        return np.append(np.isin(self.line.ranks, self.near), False)

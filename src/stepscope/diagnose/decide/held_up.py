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

from stepscope.diagnose.graph.busy import Lanes
from stepscope.diagnose.graph.step_graph import StepGraph, spread_rows, step_graph
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
    part = _Part.about(job, comm, rows)
    operators = part.operators(comm)
    columns = spread_rows(int(operators.sum()), job.line, judged)
    if columns.size <= whole.lanes.columns.size:
        return whole
    window = part.of(job.window, Lanes(job.line, columns), operators)
    return step_graph(window, job.line, columns)


_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Part:
    """All work of some ranks and of those they hold up, and the work of the others from one moment
    per column on: when both meet."""

    line: Timeline
    near: Ints
    meets: Mask
    """By code of `comm_ops.group`, which groups are not of the others alone."""
    since_ns: Ints
    """The moment in each column; the last one is for steps that are not on the grid."""

    @classmethod
    def about(cls, job: Observed, comm: Table, rows: Ints) -> _Part:
        within = job.window.job.groups_of_kind(*BLOCKING_KINDS)
        near = linked(within, frozenset(job.line.ranks[rows].tolist()))
        apart = frozenset(group.id for group in job.window.groups if near.isdisjoint(group.ranks))
        never = np.full(len(job.line.steps) + 1, _NEVER)
        meets = ~comm.strings("group").among(*apart)
        part = cls(job.line, np.array(sorted(near)), meets, never)
        for _, some in comm.parts():
            part._begin_with(some.take(part._meets(some)))
        return part

    def operators(self, comm: Table) -> Mask:
        """Which operators belong to it."""
        return np.concatenate([self._meets(some) | self._ends_in(some, some.ints("end_ns"))
                               for _, some in comm.parts()])  # fmt: skip

    def of(self, window: Window, lanes: Lanes, operators: Mask) -> Window:
        """The window with only what belongs to it and may be on one of the lanes.

        Args:
            operators: the rows of `comm_ops` that belong to it.
        """
        tables = {}
        for name in lanes.tables(window):
            table = window.tables[name]
            belongs = operators if name == "comm_ops" else self._work(table)
            tables[name] = table.take(belongs & lanes.near(table))
        return replace(window, tables={**window.tables, **tables})

    def _work(self, table: Table) -> Mask:
        """Which phases or kernels belong to it."""
        return np.concatenate(
            [self._ends_in(some, some.ints("start_ns") + some.ints("duration_ns"))
             for _, some in table.parts()]
        )  # fmt: skip

    def _begin_with(self, comm: Table) -> None:
        """Sets the moment to when the first of these operators, in which both meet, ends at another
        rank."""
        end = comm.ints("end_ns")
        others = (end != NULL) & ~self._near(comm)
        np.minimum.at(self.since_ns, self.line.columns(comm.ints("step"))[others], end[others])

    def _meets(self, comm: Table) -> Mask:
        return np.asarray(self.meets.take(comm.strings("group").codes))

    def _ends_in(self, table: Table, end_ns: Ints) -> Mask:
        """Which rows end within it."""
        since = self.since_ns[self.line.columns(table.ints("step"))]
        return np.asarray(self._near(table) | (end_ns >= since))

    def _near(self, table: Table) -> Mask:
        return np.asarray(self._is_near[self.line.rows(table.ints("rank"))])

    @cached_property
    def _is_near(self) -> Mask:
        """By row of the grid; the last one is for ranks that are not on it."""
        return np.append(np.isin(self.line.ranks, self.near), False)

"""Passes that took longer than usual, or than on other replicas, and what that cost.

Fault: a rank that is slow in some passes of some microbatches, now and then or always; data that
comes late to a pass.
Paper: VenusTrace (Jiao et al., 2025), section 3.3 and algorithm 2. There a node of the critical
path is slow if T > 1.5 T_expect. Symbols: T_expect -> the median of the same pass on the same
replica; critical path -> the steps are walked again without the excess (`graph.pass_graph`), and
what does not shorten them costs nothing.
Where we differ: a microbatch with more tokens takes longer in every stage, so the common factor of
its passes is divided out. What remains is compared with its own noise instead of a factor, which
finds 1.1x and leaves 15 % of noise in peace (algorithm notes, section 4). A rank that was slow from
the start is compared with the same stage of other replicas.
Cost: a sort per pass and replica, and one walk per culprit.
Cannot see: a slow rank of a single replica that was slow from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.pass_graph import PassGraph
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints, Mask

EFFECT = 0.1
"""By which a pass must exceed its usual time: a smaller one in a few passes costs no step 2 %.
Statistics."""
LASTING_EFFECT = 0.05
"""The same of a rank in all of its passes of a kind: found in all of 100 jobs from there on, with
5 % noise (algorithm notes, section 4). Our simulator."""
NOISE_FLOOR = 0.002
"""Noise is never taken as less: clocks and rounding. Our simulator."""
REPLICAS = 3
"""With fewer it is unknown which of two is usual. Statistics."""
ENTRIES = 4
"""Passes of one microbatch, at least, whose median is its load: a slow one of four does not move
it. Statistics."""
LEAST_LEAD = 0.02
"""Of a step, by which input must be late. As `thresholds.LEAST_COST`."""
LEAD_MADS = 6.0
"""And by how many deviations of such delays. As `step_time.SPIKE_MADS`."""


@dataclass(frozen=True)
class Late:
    """The late passes, or late inputs, of one rank's place in the pipeline of one replica."""

    replica: int
    position: int
    cells: Mask
    """`[vertex, lane]` of the graph."""
    slowdown: float
    """How many times as long as usual; for input the delay divided by the step."""
    sigmas: float
    """By how much it exceeds its alarm limit, in standard deviations."""
    lasting: bool = False
    edge: bool = False
    """Whether passes began late although nothing else held them up."""


@dataclass(frozen=True)
class LatePasses:
    """The passes of one graph compared with what is usual."""

    graph: PassGraph

    @cached_property
    def usual(self) -> Floats:
        """The logarithm of the usual duration of each cell, for its load."""
        own = self._by_replica(self._log) + self._load
        return np.where(self._lasting_cells, own - self._lasting_excess, own)

    @cached_property
    def healed_ns(self) -> Ints:
        """The usual durations, `[vertex, lane]`."""
        return np.exp(self.usual).astype(np.int64)

    def late(self) -> Iterator[Late]:
        """Everything that is late, by place."""
        yield from self._of_places(self._is_late, self._excess, self._lasting_cells, False)
        yield from self._of_places(self._is_waiting, self._lead_excess, None, True)

    def _of_places(
        self, hit: Mask, excess: Floats, lasting: Mask | None, edge: bool
    ) -> Iterator[Late]:
        rows, lanes = np.nonzero(hit)
        replicas, positions = self.graph.replica[lanes], self._position[rows]
        for replica, position in dict.fromkeys(zip(replicas.tolist(), positions.tolist(),
                                                   strict=True)):  # fmt: skip
            own = (replicas == replica) & (positions == position)
            cells = np.zeros_like(hit)
            cells[rows[own], lanes[own]] = True
            values = excess[cells]
            always = lasting is not None and bool((lasting & cells).any())
            ratio = float(np.median(values)) if edge else float(np.exp(np.median(values)))
            sigmas = float(values.max() / self._noise) if not edge else LEAD_MADS
            yield Late(replica, position, cells, ratio, sigmas, always, edge)

    @cached_property
    def _log(self) -> Floats:
        return np.log(np.maximum(self.graph.longest_ns, 1).astype(np.float64))

    @cached_property
    def _position(self) -> Ints:
        passes = self.graph.passes
        return np.array([passes.position(int(one)) for one in self.graph.vertices])

    @cached_property
    def _kind(self) -> Ints:
        """Kind and stage of each vertex, as one number."""
        return self.graph.vertices // self.graph.passes.microbatches

    def _by_replica(self, values: Floats) -> Floats:
        """The median over the steps of each replica, for each cell."""
        out = np.empty_like(values)
        for replica in np.unique(self.graph.replica).tolist():
            lanes = self.graph.replica == replica
            out[:, lanes] = stats.row_medians(values[:, lanes])[:, None]
        return out

    @cached_property
    def _load(self) -> Floats:
        """How much more work each microbatch of a lane is than usual, for each cell."""
        unusual, load = self._log - self._by_replica(self._log), np.zeros_like(self._log)
        of = self.graph.vertices % self.graph.passes.microbatches
        for microbatch in np.unique(of).tolist():
            rows = of == microbatch
            if rows.sum() >= ENTRIES:
                load[rows] = stats.column_median(unusual[rows])
        return load

    @cached_property
    def _residual(self) -> Floats:
        return np.asarray(self._log - self._by_replica(self._log) - self._load)

    @cached_property
    def _noise(self) -> float:
        return max(stats.sigma(self._residual.ravel()), NOISE_FLOOR)

    @cached_property
    def _excess(self) -> Floats:
        return np.asarray(self._residual + np.where(self._lasting_cells, self._lasting_excess, 0))

    @cached_property
    def _is_late(self) -> Mask:
        size = self._residual.size
        limit = max(stats.threshold(FALSE_ALARMS, size, size) * self._noise, np.log1p(EFFECT))
        return np.asarray((self._residual > limit) | self._lasting_cells)

    @cached_property
    def _lasting_excess(self) -> Floats:
        """How much longer a replica's stage takes than that of the median replica, by cell."""
        replicas, lane = np.unique(self.graph.replica, return_inverse=True)
        if replicas.size < REPLICAS:
            return np.zeros_like(self._log)
        level = np.stack([self._levels(one) for one in replicas.tolist()], axis=1)
        if len(level) >= ENTRIES:  # as a share of its own pipeline
            level = level - stats.column_median(level)
        above = level - stats.row_medians(level)[:, None]
        kind = np.unique(self._kind, return_inverse=True)[1]
        return np.asarray(above[np.ix_(kind, lane)])

    def _levels(self, replica: int) -> Floats:
        """The usual duration of each kind and stage on one replica, as a logarithm."""
        values = self._log[:, self.graph.replica == replica]
        return np.array([np.median(values[self._kind == kind]) for kind in np.unique(self._kind)])

    @cached_property
    def _lasting_cells(self) -> Mask:
        """Cells of stages that take longer on their replica than on all but few others."""
        excess = self._lasting_excess
        known, first = np.unique(self.graph.replica, return_index=True)
        scatter = stats.sigma(excess[:, first].ravel()) if known.size >= REPLICAS else 0.0
        tests = np.unique(self._kind).size * known.size
        limit = stats.threshold(FALSE_ALARMS, tests, tests) * max(scatter, NOISE_FLOOR)
        return np.asarray(excess > max(limit, np.log1p(LASTING_EFFECT)))

    @cached_property
    def _lead_excess(self) -> Floats:
        """How much later than usual passes begin, as a share of the median step."""
        lead = self.graph.lead_ns.astype(np.float64)
        return (lead - self._by_replica(lead)) / max(self.graph.passes.line.typical_ns, 1.0)

    @cached_property
    def _is_waiting(self) -> Mask:
        moved = self._lead_excess[self._lead_excess != 0]
        limit = max(LEAD_MADS * stats.sigma(moved), LEAST_LEAD)
        return np.asarray(self._lead_excess > limit)

    def lost_ns(self, late: Late, end_ns: Floats) -> Floats:
        """How much shorter each column would have been without it.

        Args:
            end_ns: `[replica, column]`, when the passes of each replica ended.
        """
        graph, longest = self.graph, self.graph.longest_ns
        if late.edge:
            usual = self._by_replica(graph.lead_ns.astype(np.float64)).astype(np.int64)
            found = graph.slacks(lead_ns=np.where(late.cells, usual, graph.lead_ns))
        else:
            healed = np.where(late.cells, np.minimum(self.healed_ns, longest), longest)
            found = graph.slacks(duration_ns=np.ascontiguousarray(healed[:, None, :]))
        healed_end = end_ns.copy()
        healed_end[graph.replica, graph.column] = found.end_ns
        return np.asarray(end_ns.max(axis=0) - healed_end.max(axis=0))

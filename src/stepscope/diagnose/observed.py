"""A window prepared for the methods: cleaned, on one clock, on the grid of ranks and steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from stepscope.diagnose.expected import NOTHING, Expected
from stepscope.diagnose.graph.critical_path import Path, critical_path
from stepscope.diagnose.graph.step_graph import StepGraph, spread, step_graph
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.two_speeds import slow_side
from stepscope.diagnose.operators.stops import Stop, ended_stops
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.thresholds import FAST
from stepscope.diagnose.views.arrivals import Arrivals, collect_arrivals
from stepscope.diagnose.views.asynchronous import is_asynchronous
from stepscope.diagnose.views.breakdown import Breakdown, breakdown, is_computing
from stepscope.diagnose.views.cycle import Cycle, find_cycle, reduced
from stepscope.diagnose.views.frames import awaits_device
from stepscope.diagnose.views.kernel_times import Recorded, recorded
from stepscope.diagnose.views.own_time import OwnTime, own_time
from stepscope.diagnose.views.patterns import Patterns, read_patterns
from stepscope.diagnose.views.peers import (
    EXPERT_WORDS,
    comparison_groups,
    has_experts,
    is_expert,
    replicas,
)
from stepscope.diagnose.views.roles import roles
from stepscope.diagnose.views.samples import Sampled, errors, sampled
from stepscope.diagnose.views.stack_rows import beside_training, read_samples
from stepscope.diagnose.views.stacks import Samples
from stepscope.diagnose.views.timeline import Timeline, timeline
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.diagnose.views.work_size import WorkSize, work_size
from stepscope.trace import TABLES
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window

P = ParamSpec("P")
R = TypeVar("R")

SHARE, SLICE_NS = 0.05, 1e6
"""What is added to own times before levels are compared, in steps and at least: as in
`straggler_brief` and `straggler`. Measured on real data, our simulator."""
TWO_SPEEDS = 0.01
"""Part of healthy jobs in which ranks may seem to have two speeds, all phases together.
Statistics."""


@dataclass(frozen=True)
class Observed:
    """The data that all methods share; each part is computed once, on first use."""

    window: Window
    expected: Expected = NOTHING
    """What functions do in the user's healthy jobs."""
    has_ends: bool = True
    """Whether the ends of operators were recorded, and not inferred from their calls: these show
    how far the clocks of hosts differ."""

    @cached_property
    def has_devices(self) -> bool:
        """Whether kernels, GPUs or waits for them are known; else the job may compute on its
        hosts."""
        kernels = (self.window.table(name) for name in ("kernels", "kernel_summaries"))
        gpus = any(host.gpus for host in self.window.job.hosts)
        if gpus or any(table is not None for table in kernels):
            return True
        return self.samples is not None and bool(self.samples.end_in(awaits_device).any())

    @cached_property
    def line(self) -> Timeline:
        return timeline(self.window)

    @cached_property
    def asynchronous(self) -> bool:
        """Whether ranks do not wait for each other, so that a slow one costs only its own steps."""
        return is_asynchronous(self.window, self.line)

    @cached_property
    def own(self) -> OwnTime:
        return own_time(self.window, self.line)

    @cached_property
    def total(self) -> Floats:
        return self.own.total

    @cached_property
    def host_ns(self) -> Floats | None:
        """How long each host works on each step, `[rank, step]`, NaN if unknown; None where no
        trace shows it."""
        steps = self.window.table("steps")
        if steps is None or not steps.knows("host_ns"):
            return None
        cell, works = self.line.cells(steps), steps.ints("host_ns")
        known, grid = (cell >= 0) & (works != NULL), np.full(int(np.prod(self.line.shape)), np.nan)
        grid[cell[known]] = works[known]
        return grid.reshape(self.line.shape)

    @cached_property
    def device_busy(self) -> Floats | None:
        """The part of each window in which each device computes, `[rank, window]`; None where no
        kernels were recorded."""
        if self.kernels is None:
            return None
        busy: Floats = self.kernels.spent_ns(is_computing) / np.maximum(self.kernels.length_ns, 1.0)
        return busy

    def until(self, column: int) -> Observed:
        """The same job before a column: nothing that happened from its begin on."""
        if column >= len(self.line.steps):
            return self
        end_ns = int(self.line.begins_ns[column])
        tables = {}
        for name, table in self.window.tables.items():
            time = TABLES[name].time if name in TABLES else None
            known = time is not None and table.has(time)
            tables[name] = table.take(table.ints(time) < end_ns) if known and time else table
        return replace(self, window=replace(self.window, tables=tables))

    def adapter_of(self, host: str) -> str:
        """The local name of a host's network adapter, `nic` where it is not known."""
        found = next((one for one in self.window.job.hosts if one.name == host), None)
        return found.nics[0] if found is not None and found.nics else "nic"

    @cached_property
    def cycle(self) -> Cycle:
        """Which steps are alike, by what every rank does in them beside loading and collecting."""
        loading = [own for phase, own in self.own.items()
                   if loads(phase)]  # fmt: skip
        apart = sum((np.nan_to_num(own) for own in loading), np.zeros(self.total.shape))
        apart = apart if self.pauses is None else apart + self.pauses
        least = np.fmin.reduce(self.total - apart, axis=0, initial=np.nan)
        moved = reduced(self.window, self.line)
        return find_cycle(least, self.line.steps, self.line.warm_up, moved)

    @cached_property
    def work(self) -> WorkSize:
        """How much work each step has, by the sizes of messages."""
        return work_size(self.window, self.line)

    @property
    def period_ns(self) -> Floats:
        """The job's step times as if all steps of a cycle did the same work."""
        return self.cycle.levelled(self.line.job_period_ns)

    def period_without_ns(self, lost_ns: Floats) -> Floats:
        """The job's step times without what was lost in each; an empty array: nothing was."""
        period = self.line.job_period_ns
        return period - lost_ns if lost_ns.size else period

    @property
    def comparable(self) -> Observed:
        """The same job with a basis for comparison where no two ranks do the same work.

        In a pipeline of single ranks each is compared with its own past: own times are given on
        the scale of the median rank, by their fast levels, and all ranks are peers.

        Not cached: an object that refers to itself outlives the diagnosis, with all its tables.
        """
        if self._equals or len(self.line.ranks) < 2 or not self.own.phases:
            return self
        levelled = replace(self)
        everybody = [np.arange(len(self.line.ranks))]
        own = _levelled(self.own, self.line.warm_up)
        vars(levelled).update(line=self.line, own=own, _equals=everybody, _experts=self._experts)
        return levelled

    def groups(self, phase: str | None) -> list[Ints]:
        """Groups of ranks (rows) that do equal work in a phase; None: in all phases together."""
        return self._experts if is_expert(phase) else self._equals

    def slow_side(self, phase: str | None) -> Mask:
        """The rows of the slower of two separate clusters of ranks, by their own time in a phase,
        or else in the longest phase that has two; none where there are no two."""
        known = self._slow_sides.get(phase, np.zeros(0, np.bool_))
        none = np.zeros(len(self.line.ranks), np.bool_)
        return known if known.any() else next(
            (one for one in self._slow_sides.values() if one.any()), none)  # fmt: skip

    @cached_property
    def _slow_sides(self) -> dict[str | None, Mask]:
        """By phase, those with the longest own time first."""
        parts = sorted(self.parts(), key=lambda part: -stats.median(part[1]))
        return {phase: self._slow_side_of(phase, own) for phase, own in parts}

    def _slow_side_of(self, phase: str | None, own: Floats) -> Mask:
        levels = self.levels(own[:, self.line.warm_up :])
        alarms = TWO_SPEEDS / (len(self.own.phases) + 1)
        return slow_side(levels, self.groups(phase), self.host_rows, alarms)

    def levels(self, own: Floats) -> Floats:
        """The logarithm of what each rank typically takes, from own times `[rank, step]`.

        Ranks that were there at different times saw other steps: what these were longer for all is
        taken out first, as in a round of Tukey's median polish.
        """
        pad = max(SHARE * self.line.typical_ns, SLICE_NS)
        logs = np.log(own + pad)
        seen, levels = np.asarray(np.isfinite(logs)), stats.row_medians(logs)
        if (seen == seen.any(axis=1, keepdims=True)).all():
            return levels
        return stats.row_medians(logs - stats.column_median(logs - levels[:, None]))

    def peers_of(self, row: int, phase: str | None) -> Ints:
        """Rows of the ranks that do the same work as the given one, without that rank itself.

        If ranks have two speeds, those of the fast ones: they show what the work needs.
        """
        for group in self.groups(phase):
            if row in group:
                others = group[group != row]
                fast = others[~self.slow_side(phase)[others]]
                return np.asarray(fast if fast.size else others)
        return np.zeros(0, np.int64)

    def nearest_peers(self, row: int, phase: str | None, most: int) -> Ints:
        """The same, at most so many: those with the nearest numbers."""
        peers = self.peers_of(row, phase)
        return peers[np.argsort(np.abs(peers - row), kind="stable")[:most]]

    def peer_median(self, values: Floats, phase: str | None, row: int) -> Floats:
        """Of `[rank, step]`, column medians over the ranks that do the same work in a phase; of a
        job of one rank, what it takes itself when it is fast."""
        if len(values) == 1 and np.isfinite(values).any():
            return np.full(values.shape[1], np.nanquantile(values, FAST))
        return stats.column_median(values[self.peers_of(row, phase)])

    def excess(self, own: Floats, phase: str | None, row: int) -> Floats:
        """Per step, how much longer the rank takes than the median of its peers; NaN unknown."""
        return np.asarray(own[row] - self.peer_median(own, phase, row))

    @cached_property
    def replicas(self) -> list[frozenset[int]]:
        """The ranks of each replica of the model."""
        return replicas(self.window)

    @cached_property
    def host_rows(self) -> list[Ints]:
        """The rows of the ranks of each host of which any rank is on the grid."""
        hosts = [self.line.rows(np.array(host.ranks, np.int64)) for host in self.window.job.hosts]
        return [rows[rows >= 0] for rows in hosts if (rows >= 0).any()]

    def parts(self) -> list[tuple[str | None, Floats]]:
        """Own times `[rank, step]` by phase; of several phases, also all together (None)."""
        parts: list[tuple[str | None, Floats]] = [*self.own.items()]
        return [*parts, (None, self.total)] if len(parts) > 1 else parts

    def excess_of(self, phase: str | None, row: int) -> Floats:
        """The same of a phase, or of all together (None)."""
        own = self.total if phase is None else self.own.of(phase)
        return self.excess(own, phase, row)

    @cached_property
    def samples(self) -> Samples | None:
        """Samples of the main threads' stacks; None where nobody took any."""
        return read_samples(self.window, self.line)

    @cached_property
    def samples_beside(self) -> Samples | None:
        """Sampled stacks of the other threads."""
        return read_samples(self.window, self.line, beside_training)

    @cached_property
    def patterns(self) -> tuple[Patterns, ...]:
        """What functions did in each window of profiling; none where nobody profiled."""
        return read_patterns(self.window, self.line)

    @cached_property
    def roles(self) -> list[Ints]:
        """The rows of ranks that run the same program; all of them in most jobs, and in pipelines,
        whose stages are parts of one program."""
        everybody = np.arange(len(self.line.ranks))
        return [everybody] if is_staged(self.window) else roles(self.window)

    @property
    def has_experts(self) -> bool:
        """Whether the model has experts, whose work is unequal by design."""
        return has_experts(self.window)

    @property
    def has_roles(self) -> bool:
        """Whether ranks run several programs, of which one waits for the other."""
        return len(self.roles) > 1

    @cached_property
    def stops(self) -> list[Stop]:
        """When processes were stopped, and went on."""
        return ended_stops(self.window)

    @cached_property
    def _equals(self) -> list[Ints]:
        return comparison_groups(self.window, None)

    @cached_property
    def _experts(self) -> list[Ints]:
        return comparison_groups(self.window, EXPERT_WORDS[0])

    @cached_property
    def arrivals(self) -> Arrivals | None:
        return collect_arrivals(self.window, self.line)

    @cached_property
    def graph(self) -> StepGraph | None:
        """Which rank waited for which, in the judged steps or a sample of them; None if unknown."""
        judged = np.arange(self.line.warm_up, len(self.line.steps))
        return step_graph(self.window, self.line, spread(self.window, self.line, judged))

    @cached_property
    def path(self) -> Path | None:
        """The critical path of each step of the graph."""
        return None if self.graph is None else critical_path(self.graph)

    @cached_property
    def breakdown(self) -> Breakdown | None:
        """Where each rank's and step's time went; None without a profiler trace."""
        return None if self.window.table("host_ops") is None else breakdown(self.window)

    @cached_property
    def pauses(self) -> Floats | None:
        """Garbage collection per rank and step in ns, or None if pauses were not recorded."""
        if "pauses" not in self.window.tables and not self._counts_collections():
            return None
        table = self.window.table("pauses")
        if table is None:
            return np.zeros(self.line.shape)
        row = self.line.rows(table.ints("rank"))
        column = self._column_of_pauses(table)
        keep = (row >= 0) & (column >= 0) & table.strings("kind").equals("gc")
        cell = np.where(keep, row * len(self.line.steps) + column, -1)
        return self.line.sums(cell, table.ints("duration_ns"))

    def _column_of_pauses(self, table: Table) -> Ints:
        """The column of each pause: its step, as the process counted that; else by its time. (The
        times of steps may be assumed.)"""
        column = self.line.column_at(table.ints("start_ns"))
        if not table.has("step"):
            return column
        counted = self.line.columns(table.ints("step"))
        return np.where(counted >= 0, counted, column)

    def _counts_collections(self) -> bool:
        """Whether garbage collection was recorded, but made no pause long enough for a row."""
        hardware = self.window.table("hardware")
        return hardware is not None and "gc_collections" in hardware.strings("metric").values

    @cached_property
    def processor(self) -> Floats | None:
        """CPU time of the main thread per rank and step, or None if it was not measured."""
        return self.processor_in(self.own.phases)

    def processor_in(self, phases: Collection[str]) -> Floats | None:
        """The same in some phases."""
        own = self.own.cpu[[one in phases for one in self.own.phases]]
        known = np.isfinite(own).any(axis=0)
        return np.where(known, np.nansum(own, axis=0), np.nan) if known.any() else None

    def hardware(self, metric: str, first: int, stop: int) -> Floats:
        """Mean of a per-rank metric over a range of steps; NaN for ranks without samples."""
        if self.window.table("hardware") is None or stop <= first:
            return np.full(len(self.line.ranks), np.nan)
        if metric not in self._sampled:
            table, row = self.window.tables["hardware"], self._rows_of_hardware
            self._sampled[metric] = sampled(table, metric, row, len(self.line.ranks))
        return self._sampled[metric].mean(*self.line.span_ns(first, stop))

    def of_hosts(self, metric: str, first: int, stop: int) -> dict[str, float]:
        """Mean of a host metric over a range of steps, for each host with samples."""
        table = self.window.table("hardware")
        if table is None or not table.has("host"):
            return {}
        hosts = table.strings("host")
        row = np.where(table.ints("rank") < 0, hosts.codes, -1)
        samples = sampled(table, metric, row, len(hosts.values))
        means = samples.mean(*self.line.span_ns(first, stop)).tolist()
        known = zip(hosts.values, means, strict=True)
        return {host: mean for host, mean in known if np.isfinite(mean)}

    @cached_property
    def sees_devices(self) -> bool:
        """Whether operators were recorded as devices ran them, with the times of their starts."""
        comm = self.window.table("comm_ops")
        return comm is not None and comm.knows("start_ns")

    @cached_property
    def errors(self) -> Mask:
        """`[rank, step]`: where a rank's own device may have reported errors."""
        return errors(self.window, self.line)

    @cached_property
    def remembered(self) -> dict[tuple[object, ...], Any]:
        """What several methods of a stage need, until its end: see `once`."""
        return {}

    @cached_property
    def kernels(self) -> Recorded | None:
        """The kernels of all ranks, or None where they were not recorded."""
        return recorded(self.window, self.line)

    @cached_property
    def _sampled(self) -> dict[str, Sampled]:
        return {}

    @cached_property
    def _rows_of_hardware(self) -> Ints:
        return self.line.rows(self.window.tables["hardware"].ints("rank"))


def once(work: Callable[Concatenate[Observed, P], R]) -> Callable[Concatenate[Observed, P], R]:
    """A function of a job, or of a part of it, whose result is remembered for the stage."""

    @wraps(work)
    def known(job: Observed, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (work, *args, *kwargs.items())
        if key not in job.remembered:
            job.remembered[key] = work(job, *args, **kwargs)
        found: R = job.remembered[key]
        return found

    return known


def _levelled(own: OwnTime, warm_up: int) -> OwnTime:
    """Own times scaled so that every rank's fast level in a phase is that of the median rank."""
    fast = stats.fast_level(own.own[:, :, warm_up:])
    usual = np.stack([stats.column_median(levels[:, None]) for levels in fast])
    scale = np.where(fast > 0, usual / np.maximum(fast, 1.0), 1.0)
    return replace(own, own=own.own * scale[:, :, None])

"""Fills all tables of a job, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from stepscope.simulate.engine import NEVER
from stepscope.simulate.record.comm import CommRows
from stepscope.simulate.record.hardware import HardwareRows
from stepscope.simulate.record.kernels import KernelRows, KernelSource, SummaryRows
from stepscope.simulate.record.moment import EPOCH_NS, Clocks, Moment
from stepscope.simulate.record.patterns import PatternRows
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.record.stacks import PauseRows, StackRows
from stepscope.simulate.record.steps import PhaseRows, StepRows
from stepscope.simulate.record.transfers import TransferRows
from stepscope.simulate.scenario import Detail
from stepscope.simulate.world import World
from stepscope.window import Table

FULL_UP_TO = 200_000
NORMAL_UP_TO = 4_000_000
"""Operations of all ranks and steps, above which `auto` records less. Two hundred thousand
operations are half a million rows of kernels; four million are 300 MB of memory."""


def detail_of(world: World) -> Detail:
    """The detail that `auto` selects for a job of this size."""
    scenario = world.scenario
    if scenario.detail != "auto":
        return scenario.detail
    size = scenario.ranks * scenario.steps * len(world.ops)
    if size <= FULL_UP_TO:
        return "full"
    return "normal" if size <= NORMAL_UP_TO else "brief"


@dataclass(frozen=True)
class Recorder:
    """Fills the tables that the scenario's level of detail includes.

    `full` includes every kernel; `normal` has one summary of kernels per minute; `brief` also
    leaves out phases within a pass, and tensor-, context- and expert-parallel operators except
    those that are outstanding when a job hangs.
    """

    world: World
    epoch_ns: int = EPOCH_NS

    def add(self, moment: Moment, watched_until_ns: int = NEVER) -> None:
        """Records one step; if it never ends, what had happened by the last look."""
        self._steps.add(moment)
        self._phases.add(moment)
        self._comm.add(moment)
        self._pauses.add(moment)
        self._transfers.add(moment)
        self._stacks.add(moment, watched_until_ns)
        self._hardware.add(moment, watched_until_ns)
        self._patterns.add(moment, watched_until_ns)
        if self._detail == "full":
            self._kernels.add(moment)
        else:
            self._summaries.add(moment)

    def look(self, moment: Moment, watched_until_ns: int) -> None:
        """Records what has changed since an earlier look at a step that never ends."""
        self._stacks.add(moment, watched_until_ns)
        self._hardware.add(moment, watched_until_ns)

    def tables(self, until_ns: int) -> Mapping[str, Table]:
        """All tables that have rows."""
        self._summaries.finish(until_ns)
        return _not_empty({name: rows.table() for name, rows in self._rows.items()})

    def drain(self) -> Mapping[str, Table]:
        """The rows since the last call; kernel summaries only of minutes that are over."""
        return _not_empty({name: rows.drain() for name, rows in self._rows.items()})

    def beside(self) -> Recorder:
        """A recorder that continues from here, with rows of its own."""
        other = Recorder(self.world, self.epoch_ns)
        other._stacks.until = self._stacks.until
        return other

    @property
    def _rows(self) -> Mapping[str, Rows]:
        return {
            "steps": self._steps.rows, "phases": self._phases.rows, "comm_ops": self._comm.rows,
            "kernels": self._kernels.rows, "kernel_summaries": self._summaries.rows,
            "stacks": self._stacks.rows, "pauses": self._pauses.rows,
            "transfers": self._transfers.rows, "hardware": self._hardware.rows,
            "patterns": self._patterns.rows,
        }  # fmt: skip

    @cached_property
    def _detail(self) -> Detail:
        return detail_of(self.world)

    @cached_property
    def _clocks(self) -> Clocks:
        return Clocks(self.world, self.epoch_ns)

    @cached_property
    def _source(self) -> KernelSource:
        return KernelSource(self.world)

    @cached_property
    def _steps(self) -> StepRows:
        return StepRows(self.world, self._clocks)

    @cached_property
    def _phases(self) -> PhaseRows:
        return PhaseRows(self.world, self._clocks, inner=self._detail != "brief")

    @cached_property
    def _comm(self) -> CommRows:
        return CommRows(self.world, self._clocks, blocking=self._detail != "brief")

    @cached_property
    def _kernels(self) -> KernelRows:
        return KernelRows(self.world, self._clocks, self._source)

    @cached_property
    def _summaries(self) -> SummaryRows:
        return SummaryRows(self.world, self._clocks, self._source)

    @cached_property
    def _stacks(self) -> StackRows:
        return StackRows(self.world, self._clocks)

    @cached_property
    def _pauses(self) -> PauseRows:
        return PauseRows(self.world, self._clocks)

    @cached_property
    def _transfers(self) -> TransferRows:
        return TransferRows(self.world, self._clocks)

    @cached_property
    def _patterns(self) -> PatternRows:
        return PatternRows(self.world, self._clocks, self._source)

    @cached_property
    def _hardware(self) -> HardwareRows:
        return HardwareRows(self.world, self._clocks)


def _not_empty(tables: Mapping[str, Table]) -> Mapping[str, Table]:
    return {name: table for name, table in tables.items() if len(table)}

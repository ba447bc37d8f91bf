"""All tables of a job, filled step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from stepscope.simulate.engine import NEVER
from stepscope.simulate.record.comm import CommRows
from stepscope.simulate.record.hardware import HardwareRows
from stepscope.simulate.record.kernels import KernelRows, KernelSource, SummaryRows
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.stacks import PauseRows, StackRows
from stepscope.simulate.record.steps import PhaseRows, StepRows
from stepscope.simulate.record.transfers import TransferRows
from stepscope.simulate.scenario import Detail
from stepscope.simulate.world import World
from stepscope.window import Table


class _HasTable(Protocol):
    def table(self) -> Table: ...


FULL_UP_TO = 200_000
NORMAL_UP_TO = 4_000_000
"""Operations of all ranks and steps, above which `auto` writes less: every kernel of two hundred
thousand operations is half a million rows, four million operators are 300 MB of memory."""


def detail_of(world: World) -> Detail:
    """What `auto` means for a job of this size."""
    scenario = world.scenario
    if scenario.detail != "auto":
        return scenario.detail
    size = scenario.ranks * scenario.steps * len(world.ops)
    if size <= FULL_UP_TO:
        return "full"
    return "normal" if size <= NORMAL_UP_TO else "brief"


@dataclass(frozen=True)
class Recorder:
    """Fills the tables that the scenario's detail asks for.

    `full` has every kernel; `normal` sums of kernels per minute; `brief` in addition leaves out
    phases within a pass and the tensor-, context- and expert-parallel operators.
    """

    world: World

    def add(self, moment: Moment, watched_until_ns: int = NEVER) -> None:
        """One step; of what never ends collectors have seen what was until they last looked."""
        self._steps.add(moment)
        self._phases.add(moment)
        self._comm.add(moment)
        self._pauses.add(moment)
        self._transfers.add(moment)
        self._stacks.add(moment, watched_until_ns)
        self._hardware.add(moment, watched_until_ns)
        if self._detail == "full":
            self._kernels.add(moment)
        else:
            self._summaries.add(moment)

    def tables(self, until_ns: int) -> Mapping[str, Table]:
        """All tables that have rows."""
        self._summaries.finish(until_ns)
        found: dict[str, _HasTable] = {
                 "steps": self._steps, "phases": self._phases, "comm_ops": self._comm,
                 "kernels": self._kernels, "kernel_summaries": self._summaries,
                 "stacks": self._stacks, "pauses": self._pauses, "transfers": self._transfers,
                 "hardware": self._hardware}  # fmt: skip
        tables = {name: rows.table() for name, rows in found.items()}
        return {name: table for name, table in tables.items() if len(table)}

    @cached_property
    def _detail(self) -> Detail:
        return detail_of(self.world)

    @cached_property
    def _clocks(self) -> Clocks:
        return Clocks(self.world)

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
    def _hardware(self) -> HardwareRows:
        return HardwareRows(self.world, self._clocks)

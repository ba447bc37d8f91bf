"""One step as it happened, and the host clocks through which it is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.simulate.conditions import Conditions, Stall
from stepscope.simulate.engine import NEVER, Costs, Times
from stepscope.simulate.world import World
from stepscope.window import Ints

EPOCH_NS = 1_766_000_000_000_000_000
"""When simulated jobs begin: a day in December 2025."""
PPM = 1_000_000


@dataclass(frozen=True)
class Moment:
    """One step: its conditions, its costs, and when everything happened.

    Times are `[slot, stage, rank within the stage]`, counted from the start of the job.
    """

    world: World
    step: int
    conditions: Conditions
    costs: Costs
    times: Times
    start: Ints
    """When each host began the step: `[stage, rank within the stage]`."""
    stalls: tuple[Stall, ...]
    """Stalls that faults caused, and harmless ones."""

    @cached_property
    def finished(self) -> bool:
        return bool((self.times.done < NEVER).all())


def by_row(table: Ints) -> Ints:
    """Reshapes a table `[slot, stage, rank within the stage]` to one row per slot and stage."""
    return table.reshape(-1, table.shape[-1])


@dataclass(frozen=True)
class Clocks:
    """The clock of every host: it has a constant offset and a drift."""

    world: World
    epoch_ns: int = EPOCH_NS
    """When the job began."""

    @cached_property
    def _offset_ns(self) -> Ints:
        return self._per_host("clock offset", self.world.scenario.noise.clock_offset_us * 1000)

    @cached_property
    def _drift_ppb(self) -> Ints:
        return self._per_host("clock drift", self.world.scenario.noise.clock_drift_ppm * 1000)

    def _per_host(self, purpose: str, spread: float) -> Ints:
        cluster = self.world.cluster
        drawn = self.world.random.source(purpose).standard_normal(cluster.hosts) * spread
        return np.rint(drawn).astype(np.int64)[cluster.host_of_place]

    def show(self, time: Ints, places: Ints) -> Ints:
        """What the clocks of some places show at some times."""
        return self.at(places).show(time)

    def at(self, places: Ints) -> Dials:
        """The clocks of some places, for repeated use."""
        return Dials(self.epoch_ns + self._offset_ns[places], self._drift_ppb[places])


@dataclass(frozen=True)
class Dials:
    """Some clocks, for repeated use."""

    zero_ns: Ints
    """What each clock shows when the job begins."""
    drift_ppb: Ints

    def show(self, time: Ints) -> Ints:
        return self.zero_ns + time + self.drift_ppb * (time // 1000) // PPM

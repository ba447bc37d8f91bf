"""The abnormal conditions of one step: the only way in which faults affect the simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.simulate.world import World
from stepscope.window import Floats, Ints


@dataclass(frozen=True)
class Stall:
    """A delay of the host before it issues an operation."""

    slot: int
    places: Ints
    lasting_ns: Ints
    frames: str
    """Its call stack during the stall, below the training loop."""
    active: bool = True
    """Whether it uses a CPU; else it waits, or is kept off the CPU."""
    pause: str = ""
    """The kind of pause that the collector's hooks would record, e.g. `gc`."""


@dataclass(frozen=True)
class Reading:
    """A changed value of a hardware counter: `times` its normal value plus `plus`."""

    metric: str
    places: Ints
    times: float = 1.0
    plus: float = 0.0
    host_level: bool = False
    of_adapter: bool = False
    """Whether the places' adapters have the counter, e.g. `nic_retrans.nic-3` of their host."""


@dataclass
class Conditions:
    """The changes of one step. Those of several faults combine: factors multiply, delays add."""

    world: World
    step: int
    stretched: list[tuple[Ints, Ints, float | Floats]] = field(default_factory=list)
    delayed: list[tuple[Ints, Ints, int]] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    issuing: list[tuple[Ints, float]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    slower: Floats = field(init=False)
    """How many times slower each device of the network is."""
    serial: bool = False
    standing: list[tuple[int, int]] = field(default_factory=list)
    """Slots and places whose posted requests do not complete until the transfer ends."""
    detours: list[tuple[Ints, Ints]] = field(default_factory=list)
    """Places whose traffic goes through another adapter of their host, and its number."""

    def __post_init__(self) -> None:
        self.slower = np.ones(len(self.world.network.slowness))

    def stretch(self, slots: Ints, places: Ints, factor: float | Floats) -> None:
        """Makes work or transfers take `factor` times as long on these places (or one each)."""
        self.stretched.append((slots, places, factor))

    def delay(self, slots: Ints, places: Ints, lasting_ns: int) -> None:
        """Adds a fixed time to work or transfers. For a group, pass all its members."""
        self.delayed.append((slots, places, lasting_ns))

    def stall(self, stall: Stall) -> None:
        self.stalls.append(stall)

    def slow_host(self, places: Ints, factor: float) -> None:
        """Makes everything that the host does take longer."""
        self.issuing.append((places, factor))

    def slow_device(self, devices: tuple[int, ...], factor: float) -> None:
        self.slower[list(devices)] *= factor

    def read(self, reading: Reading) -> None:
        self.readings.append(reading)

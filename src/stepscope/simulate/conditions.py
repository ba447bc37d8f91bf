"""What is out of the ordinary in one step: the only way in which faults reach the physics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.simulate.world import World
from stepscope.window import Floats, Ints


@dataclass(frozen=True)
class Stall:
    """The host does something else before it issues an operation."""

    slot: int
    places: Ints
    lasting_ns: Ints
    frames: str
    """Its call stack meanwhile, below the training loop."""
    active: bool = True
    """Whether it uses a processor; else it waits or is kept off one."""
    pause: str = ""
    """The kind of pause that the collector's hooks would note, as `gc`."""


@dataclass(frozen=True)
class Reading:
    """What a hardware counter shows instead: `times` its ordinary value plus `plus`."""

    metric: str
    places: Ints
    times: float = 1.0
    plus: float = 0.0
    host_level: bool = False
    of_adapter: bool = False
    """Counted by the places' adapters, as `nic_retrans.nic-3` of their host."""


@dataclass
class Conditions:
    """The changes of one step. Changes of several faults add up: factors multiply, delays sum."""

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
    """Slots and places whose requests, once posted, do not complete until the transfer ends."""
    detours: list[tuple[Ints, Ints]] = field(default_factory=list)
    """Places whose traffic goes by another adapter of their host, and its number."""

    def __post_init__(self) -> None:
        self.slower = np.ones(len(self.world.network.slowness))

    def stretch(self, slots: Ints, places: Ints, factor: float | Floats) -> None:
        """Work or transfers take `factor` times as long on these places (or one factor each)."""
        self.stretched.append((slots, places, factor))

    def delay(self, slots: Ints, places: Ints, lasting_ns: int) -> None:
        """Work or transfers take longer by a fixed time. Of a group, name all its members."""
        self.delayed.append((slots, places, lasting_ns))

    def stall(self, stall: Stall) -> None:
        self.stalls.append(stall)

    def slow_host(self, places: Ints, factor: float) -> None:
        """Whatever the host does takes longer."""
        self.issuing.append((places, factor))

    def slow_device(self, devices: tuple[int, ...], factor: float) -> None:
        self.slower[list(devices)] *= factor

    def read(self, reading: Reading) -> None:
        self.readings.append(reading)

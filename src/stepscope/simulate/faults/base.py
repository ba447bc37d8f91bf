"""Base classes of faults: when a fault is active, what it changes, and who the culprits are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions
from stepscope.simulate.world import World
from stepscope.window import Ints

MS = 1_000_000
ABOVE_ZERO = ("factor", "ms", "share")
"""Fields of faults that must be positive."""


@dataclass(frozen=True)
class Blame:
    """The correct diagnosis of a fault, in the terms of the diagnosis JSON.

    `ranks` is empty if all ranks, or different ranks each time, are at fault. A device is a pair of
    type and full name.
    """

    cause: str
    kind: str = "slowdown"
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    phase: str | None = None
    function: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fault(ABC):
    """A fault, which is active from a step on, for a while, or now and then.

    It is active from step `onset` until before step `until`, but of every `every` steps only in the
    first `lasting`, and in each of these steps with probability `chance`.
    """

    onset: int = 0
    until: int | None = None
    every: int = 1
    lasting: int = 1
    chance: float = 1.0

    name: ClassVar[str]
    family: ClassVar[str]
    """The paper that reports it, e.g. `ARGUS Table 6`."""
    help: ClassVar[str]
    """A one-sentence description."""

    def active(self, step: int, world: World) -> bool:
        """Whether it is active in a step. Chance depends on the seed, the fault and the step."""
        if step < self.onset or (self.until is not None and step >= self.until):
            return False
        if (step - self.onset) % self.every >= self.lasting:
            return False
        return self.drawn(step, world, self.chance)

    def drawn(self, step: int, world: World, chance: float) -> bool:
        """Whether it is drawn with this chance. The draw depends on places, not on rank numbers."""
        key = f"fault {self.name} {self.onset} {chance} {self.where(world)}"
        return chance >= 1 or world.random.source(key, step).random() < chance

    def where(self, world: World) -> str:
        """What distinguishes it from other faults of its kind, without rank numbers."""
        return ""

    def check(self, world: World) -> None:
        """Raises UsageError if it does not fit the job, or a factor or a time is not positive."""
        self.blame(world)
        for what, value in self.parameters().items():
            if what in ABOVE_ZERO and not value > 0:
                raise UsageError(f"{self.name}: {what}={value} must be above 0")

    def parameters(self) -> Mapping[str, Any]:
        """All its fields, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def apply(self, conditions: Conditions) -> None:
        """Changes the conditions of a step in which it is active."""

    @abstractmethod
    def blame(self, world: World) -> Blame:
        """The culprits."""


@dataclass(frozen=True, kw_only=True)
class RankFault(Fault):
    """A fault of certain ranks."""

    ranks: tuple[int, ...]

    def where(self, world: World) -> str:
        return str(self.places(world).tolist())

    def places(self, world: World) -> Ints:
        """The places of its ranks.

        Raises:
            UsageError: the job has no such ranks.
        """
        return places_of(world, self.ranks, self.name)

    def blamed(self, world: World, cause: str, device: str = "", **more: Any) -> Blame:
        """Blames its ranks, with their hosts and their devices of one kind."""
        places = self.places(world).tolist()
        names = world.cluster.host_names
        hosts = dict.fromkeys(names[int(world.cluster.host_of_place[one])] for one in places)
        devices = dict.fromkeys((device, world.cluster.device_name(device, one))
                                for one in places if device)  # fmt: skip
        return Blame(cause, ranks=self.ranks, hosts=tuple(hosts), devices=tuple(devices), **more)


@dataclass(frozen=True, kw_only=True)
class HostFault(Fault):
    """A fault of all ranks of certain hosts."""

    hosts: tuple[str, ...]

    def where(self, world: World) -> str:
        return str(self.hosts)

    def places(self, world: World) -> Ints:
        """The places of the ranks of its hosts.

        Raises:
            UsageError: the job has no such host.
        """
        names = world.cluster.host_names
        unknown = [one for one in self.hosts if one not in names]
        if unknown or not self.hosts:
            raise UsageError(f"{self.name}: no host {', '.join(unknown) or 'given'}; "
                             f"this job has {names[0]} to {names[-1]}")  # fmt: skip
        return np.concatenate([world.cluster.places_on(names.index(one)) for one in self.hosts])

    def blamed(self, world: World, cause: str, device: str) -> Blame:
        """Blames its hosts with all their ranks."""
        ranks = sorted(world.cluster.rank_of[self.places(world)].tolist())
        devices = tuple((device, f"{host}/cpu" if device == "cpu" else host) for host in self.hosts)
        return Blame(cause, ranks=tuple(ranks), hosts=self.hosts, devices=devices)


def places_of(world: World, ranks: Sequence[int], name: str) -> Ints:
    unknown = [rank for rank in ranks if not 0 <= rank < world.scenario.ranks]
    if unknown or not ranks:
        raise UsageError(f"{name}: no rank {', '.join(map(str, unknown)) or 'given'}; "
                         f"this job has ranks 0 to {world.scenario.ranks - 1}")  # fmt: skip
    return world.cluster.place_of[list(ranks)]


def everywhere(world: World) -> Ints:
    """All places."""
    return np.arange(world.scenario.ranks)

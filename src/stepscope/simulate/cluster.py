"""Maps ranks to places in the grid of parallelism, to hosts and devices, and to groups.

A place is a position in the grid (stage, data, context, tensor), the last varying fastest. The
simulation itself knows places only, and ranks are names of places: renumbering the ranks changes
names and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.simulate.engine import Grid
from stepscope.simulate.scenario import Scenario
from stepscope.trace import Fabric, Host, Job, ProcessGroup, Schedule, Switch
from stepscope.window import Ints


@dataclass(frozen=True)
class Cluster:
    """The grid and the machines of one scenario."""

    scenario: Scenario

    @property
    def stages(self) -> int:
        return self.scenario.parallelism.pp

    @property
    def per_stage(self) -> int:
        return self.scenario.ranks // self.stages

    @cached_property
    def grid(self) -> Grid:
        """The ranks of one stage, by expert-data group, expert rank, context and tensor rank."""
        one = self.scenario.parallelism
        shape = (self.scenario.dp // one.ep, one.ep, one.cp, one.tp)
        over = {"tp": (3,), "cp": (2,), "ep": (1,), "edp": (0,), "dp": (0, 1, 2)}
        return Grid(shape, over)

    @cached_property
    def rank_of(self) -> Ints:
        """The rank at each place."""
        return np.array(self.scenario.rank_of or range(self.scenario.ranks), np.int64)

    @cached_property
    def place_of(self) -> Ints:
        """The place of each rank."""
        return np.argsort(self.rank_of)

    @cached_property
    def by_stage(self) -> Ints:
        """Ranks as `[stage, place within it]`."""
        return self.rank_of.reshape(self.stages, self.per_stage)

    # ---- machines ----

    @property
    def hosts(self) -> int:
        return -(-self.scenario.ranks // self.scenario.hardware.gpus_per_host)

    @cached_property
    def host_of_place(self) -> Ints:
        return np.arange(self.scenario.ranks) // self.scenario.hardware.gpus_per_host

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        return tuple(f"host-{at:03d}" for at in range(self.hosts))

    def places_on(self, host: int) -> Ints:
        return np.flatnonzero(self.host_of_place == host)

    def ranks_on(self, host: int) -> tuple[int, ...]:
        return tuple(sorted(self.rank_of[self.places_on(host)].tolist()))

    def gpu_of(self, place: int) -> int:
        """The number of its GPU on its host."""
        return place % self.scenario.hardware.gpus_per_host

    def nic_of(self, place: int) -> int:
        hardware = self.scenario.hardware
        return self.gpu_of(place) * hardware.nics_per_host // hardware.gpus_per_host

    def device_name(self, kind: str, place: int) -> str:
        """The full name of the device of a place: `host-000/gpu-5`."""
        host = self.host_names[int(self.host_of_place[place])]
        number = {"gpu": self.gpu_of, "nic": self.nic_of, "pcie": self.gpu_of}.get(kind)
        return f"{host}/{kind}" if number is None else f"{host}/{kind}-{number(place)}"

    @property
    def leaves(self) -> int:
        return -(-self.hosts // self.scenario.hardware.hosts_per_leaf)

    def leaf_of(self, host: int) -> int:
        return host // self.scenario.hardware.hosts_per_leaf

    # ---- groups ----

    def members(self, kind: str) -> Iterator[Ints]:
        """The places of every group of a kind; members are in the order of the ring."""
        places = np.arange(self.scenario.ranks).reshape(self.stages, *self.grid.shape)
        if kind == "world":
            yield places.ravel()
        elif kind in ("pp", "embedding"):
            stages = places if kind == "pp" else places[[0, -1]]
            yield from stages.reshape(len(stages), -1).T
        else:
            yield from _along(places, [1 + axis for axis in self.grid.over[kind]])

    @cached_property
    def group_of(self) -> dict[str, Ints]:
        """For each kind of group, the number of each place's group; -1: it is in none."""
        found = {}
        for kind in self.kinds:
            number = np.full(self.scenario.ranks, -1)
            for at, places in enumerate(self.members(kind)):
                number[places] = at
            found[kind] = number
        return found

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of groups that this job has."""
        one = self.scenario.parallelism
        sizes = {"tp": one.tp, "cp": one.cp, "pp": one.pp, "ep": one.ep,
                 "dp": self.scenario.dp * one.cp, "edp": self.scenario.dp // one.ep,
                 "embedding": one.pp, "world": self.scenario.ranks}  # fmt: skip
        if one.ep == 1:
            del sizes["edp"]
        return tuple(kind for kind, size in sizes.items() if size > 1)

    def groups(self) -> tuple[ProcessGroup, ...]:
        return tuple(
            ProcessGroup(f"{kind}-{at}", kind, tuple(self.rank_of[places].tolist()))
            for kind in self.kinds
            for at, places in enumerate(self.members(kind))
        )

    # ---- the job ----

    def job(self) -> Job:
        """The content of `job.json`."""
        scenario, one = self.scenario, self.scenario.parallelism
        degrees = {"tp": one.tp, "cp": one.cp, "pp": one.pp, "dp": scenario.dp, "ep": one.ep}
        name = "interleaved-1f1b" if one.chunks > 1 else "1f1b"
        return Job(
            scenario.name, scenario.ranks, tuple(self._hosts()), degrees, self.groups(),
            Schedule(name, one.microbatches, one.chunks) if one.pp > 1 else None,
            Fabric(tuple(self._switches())),
        )  # fmt: skip

    def _hosts(self) -> Iterator[Host]:
        hardware = self.scenario.hardware
        nics = tuple(f"nic-{at}" for at in range(hardware.nics_per_host))
        for host, name in enumerate(self.host_names):
            ranks = self.ranks_on(host)
            yield Host(name, ranks, nics, tuple(f"gpu-{at}" for at in range(len(ranks))))

    def _switches(self) -> Iterator[Switch]:
        hardware = self.scenario.hardware
        for leaf in range(self.leaves):
            hosts = [
                name for host, name in enumerate(self.host_names) if self.leaf_of(host) == leaf
            ]
            nics = [f"{name}/nic-{at}" for name in hosts for at in range(hardware.nics_per_host)]
            yield Switch(f"leaf-{leaf}", 0, tuple(nics))
        leaves = tuple(f"leaf-{leaf}" for leaf in range(self.leaves))
        for spine in range(hardware.spines if self.leaves > 1 else 0):
            yield Switch(f"spine-{spine}", 1, leaves)


def _along(places: Ints, axes: Sequence[int]) -> Iterator[Ints]:
    """The places along some axes of the grid, for every position on the other axes."""
    rest = [axis for axis in range(places.ndim) if axis not in axes]
    size = int(np.prod([places.shape[axis] for axis in axes]))
    yield from places.transpose(*rest, *axes).reshape(-1, size)

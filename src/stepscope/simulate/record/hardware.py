"""Table `hardware`: the counters of GPUs, adapters and hosts.

Every rank is sampled once a second, or once a step if that is longer. Normal values follow from
what the rank did in the meantime; faults change the counters of the hardware that they affect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.simulate.conditions import Reading
from stepscope.simulate.engine import NEVER
from stepscope.simulate.network import passes
from stepscope.simulate.program import DEVICE_WORK, TRANSFERS, Op
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.world import World
from stepscope.window import Floats, Ints

PERIOD_NS = 1_000_000_000
SECOND_NS = 1_000_000_000
SM_CLOCK_MHZ, IDLE_W, BUSY_W, IDLE_C, BUSY_C = 1980.0, 120.0, 650.0, 38.0, 66.0
"""An H100 SXM: its boost clock, and its power and temperature when idle and when busy."""
SPREAD = 0.02
"""Log-normal spread of counter values."""
HOST_LEVEL = -1
PCIE_LINK_GB_PER_S = 63.0
"""PCIe 5 x16 at the rate at which it is trained; the rate that transfers reach is lower."""
ADAPTERS_LINK = "nic_pcie_gb_per_s"
CORES_PER_RANK = 1.1
"""The main thread launches or spins; the other threads use a little more."""
CORES_PER_HOST = 192
EVENTS = ("xid", "ecc_sbe", "ecc_dbe", "nic_port_down", "nic_rx_errors", "pcie_replays")
"""Counters that are normally zero; only rows above zero are written."""
EXACT = (*EVENTS, "sm_clock_mhz", "gpu_strangers", "pcie_link_gb_per_s")
"""Counters without noise."""


@dataclass
class HardwareRows:
    """One row per rank, metric and sample; `rank` is -1 for metrics of a host."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"host", "metric"})))
    _last_ns: int = -PERIOD_NS

    def add(self, moment: Moment, watched_until_ns: int) -> None:
        now = min(int(moment.times.done.min()), watched_until_ns)
        due = now - self._last_ns >= PERIOD_NS or not moment.finished
        if not due and not moment.conditions.readings:
            return
        places = np.arange(self.world.scenario.ranks)
        shown = self.clocks.show(np.full(len(places), now), places)
        for metric, values in self._values(moment, now).items():
            if metric in EVENTS:
                self._put(metric, values, shown, np.flatnonzero(values > 0))
            elif due:
                self._put(metric, values, shown, places)
        self._adapters(moment, now)
        if due:
            self._last_ns = now
            self._hosts(moment, now)
            self._adapters_links(moment, now)

    def _put(self, metric: str, values: Floats, shown: Ints, places: Ints) -> None:
        """Adds rows for those of the given places whose clocks have a sample."""
        if len(places):
            self.rows.add(
                rank=self._ranks[places], host=self._host_codes[places],
                metric=np.int32(self.rows.code(metric)), ts_ns=shown[places],
                value=values[places],
            )  # fmt: skip

    def _adapters(self, moment: Moment, now: int) -> None:
        """Counters of adapters, which belong to the host."""
        cluster = self.world.cluster
        for one in moment.conditions.readings:
            counts = one.of_adapter and one.metric != ADAPTERS_LINK
            for place in one.places.tolist() if counts else ():
                metric = f"{one.metric}.nic-{cluster.nic_of(place)}"
                at = np.array([place])
                self.rows.add(
                    rank=np.int32(HOST_LEVEL), host=self._host_codes[at],
                    metric=np.int32(self.rows.code(metric)),
                    ts_ns=self.clocks.show(np.array([now]), at), value=np.float64(one.plus),
                )  # fmt: skip

    def _adapters_links(self, moment: Moment, now: int) -> None:
        """The rates at which the links between adapters and hosts are trained."""
        cluster, nics = self.world.cluster, self.world.scenario.hardware.nics_per_host
        carries = np.full((cluster.hosts, nics), PCIE_LINK_GB_PER_S)
        for one in moment.conditions.readings:
            if one.metric == ADAPTERS_LINK:
                number = [cluster.nic_of(place) for place in one.places.tolist()]
                carries[cluster.host_of_place[one.places], number] *= one.times
        first = self._first_on_hosts
        metrics = self.rows.codes([f"{ADAPTERS_LINK}.nic-{nic}" for nic in range(nics)])
        self.rows.add(
            rank=np.int32(HOST_LEVEL), host=self._host_codes[first], metric=metrics[:, None],
            ts_ns=self.clocks.show(np.full(len(first), now), first), value=carries.T,
        )  # fmt: skip

    def _hosts(self, moment: Moment, now: int) -> None:
        """CPU use of whole hosts, as a fraction."""
        cluster = self.world.cluster
        per_rank = self._read(
            "cpu_util", np.full(self.world.scenario.ranks, CORES_PER_RANK), moment
        )
        used = np.bincount(cluster.host_of_place, weights=per_rank) / CORES_PER_HOST
        for one in moment.conditions.readings:
            if one.host_level and one.metric == "cpu_util":
                used[cluster.host_of_place[one.places]] = np.minimum(one.plus, 1.0)
        first = self._first_on_hosts
        self.rows.add(
            rank=np.int32(HOST_LEVEL), host=self._host_codes[first],
            metric=np.int32(self.rows.code("cpu_util")),
            ts_ns=self.clocks.show(np.full(len(first), now), first), value=used,
        )  # fmt: skip

    def _values(self, moment: Moment, now: int) -> Mapping[str, Floats]:
        """Every metric for every place."""
        ranks = self.world.scenario.ranks
        lasted = np.maximum(np.minimum(moment.times.done, now) - moment.start, 1).ravel()
        busy = np.clip(self._worked(moment) / lasted, 0.0, 1.0)
        nvlink, nic, pcie = (sent / lasted * SECOND_NS for sent in self._sent)
        ordinary = {
            "sm_active": busy,
            "sm_clock_mhz": np.full(ranks, SM_CLOCK_MHZ),
            "gpu_power_w": IDLE_W + (BUSY_W - IDLE_W) * busy,
            "gpu_temp_c": IDLE_C + (BUSY_C - IDLE_C) * busy,
            "dram_active": 0.6 * busy,
            "nvlink_tx_bytes_per_s": nvlink,
            "nic_tx_bytes_per_s": nic,
            "pcie_tx_bytes_per_s": pcie,
            "gpu_strangers": np.zeros(ranks),
            "pcie_link_gb_per_s": np.full(ranks, PCIE_LINK_GB_PER_S),
            "cpu_util": np.full(ranks, CORES_PER_RANK),
            "run_delay": np.full(ranks, 0.01),
            **{metric: np.zeros(ranks) for metric in EVENTS},
        }
        return {metric: self._read(metric, values, moment) for metric, values in ordinary.items()}

    def _read(self, metric: str, values: Floats, moment: Moment) -> Floats:
        spread = 0.0 if metric in EXACT else SPREAD
        shape = (self.world.scenario.ranks,)
        shown = values * self.world.random.factors(f"hardware {metric}", spread, shape, moment.step)
        for one in moment.conditions.readings:
            if one.metric == metric and not one.host_level:
                shown[one.places] = _changed(shown[one.places], one)
        return shown

    @cached_property
    def _first_on_hosts(self) -> Ints:
        """One place on each host."""
        cluster = self.world.cluster
        return np.array([cluster.places_on(host)[0] for host in range(cluster.hosts)])

    @cached_property
    def _ranks(self) -> NDArray[np.int32]:
        return self.world.cluster.rank_of.astype(np.int32)

    @cached_property
    def _host_codes(self) -> Ints:
        names = self.world.cluster.host_names
        return self.rows.codes(names).astype(np.int64)[self.world.cluster.host_of_place]

    @cached_property
    def _device_slots(self) -> Ints:
        return self.world.program.slots(lambda op: op.kind in DEVICE_WORK)

    def _worked(self, moment: Moment) -> Floats:
        """Nanoseconds of work on each device in this step."""
        slots, times = self._device_slots, moment.times
        done = times.end[slots] < NEVER
        worked: Ints = np.where(done, times.end[slots] - times.begin[slots], 0).sum(axis=0)
        return worked.ravel().astype(np.float64)

    @cached_property
    def _sent(self) -> tuple[Floats, Floats, Floats]:
        """Bytes that each place sends in one step through NVLink, adapter and PCIe."""
        ranks = self.world.scenario.ranks
        nvlink, nic = np.zeros(ranks), np.zeros(ranks)
        for stage, ops in enumerate(self.world.program.stages):
            for op in ops:
                if op.kind in TRANSFERS and op.kind != "recv":
                    size = op.size_bytes * passes(op.name, self.world.members(op))
                    places, inside, away = self._ways(op, stage)
                    nvlink[places] += size * inside
                    nic[places] += size * away
        copies = sum(op.size_bytes for op in self.world.ops if op.kind == "copy")
        return nvlink, nic, nic + copies

    def _ways(self, op: Op, stage: int) -> tuple[Ints, Floats, Floats]:
        """The places of a stage, and the share of an operator that each sends within its host and
        to other hosts."""
        cluster = self.world.cluster
        places = np.arange(cluster.per_stage) + stage * cluster.per_stage
        if op.partner is not None:
            there = places + (op.partner[0] - stage) * cluster.per_stage
            away = (cluster.host_of_place[there] != cluster.host_of_place[places]).astype(float)
            return places, 1 - away, away
        beyond, share = self._counterparts[op.group]
        crosses = beyond[places] != places
        alone = crosses & (share[places] == 1)
        return places, (~alone).astype(float), np.where(crosses, share[places], 0.0)

    @cached_property
    def _counterparts(self) -> Mapping[str, tuple[Ints, Floats]]:
        network = self.world.network
        return {kind: network.counterparts(kind) for kind in self.world.cluster.kinds}


def _changed(values: Floats, one: Reading) -> Floats:
    return values * one.times + one.plus

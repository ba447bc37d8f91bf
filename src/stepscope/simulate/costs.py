"""The duration of every operation of one step: base costs, noise, and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.simulate import workload
from stepscope.simulate.conditions import Conditions, Stall
from stepscope.simulate.engine import Costs
from stepscope.simulate.network import latency_ns, passes
from stepscope.simulate.noise import job_factors
from stepscope.simulate.program import DEVICE_WORK, TRANSFERS, Op
from stepscope.simulate.workload import EXPERTS, HEAD, PHASE_OF, ROUTER
from stepscope.simulate.world import World
from stepscope.trace import BACKWARD, DATA_LOAD, OPTIMIZER
from stepscope.window import Floats, Ints

MS, US = 1_000_000, 1_000
ROUTER_MS = 0.5
"""Gating is a small matrix product and a top-k."""
BACKWARD_TIMES = 2.0
"""The gradients of weights and of inputs each take as long as the forward pass."""
SPIKE_MS = 10.0
"""Mean duration of a harmless interruption: a scheduler's time slice, or a page being reclaimed."""
SPIKE_FRAMES = "interrupted (kernel)"


@dataclass(frozen=True)
class Pricing:
    """Computes the durations of a world's operations, step by step."""

    world: World

    def costs(self, conditions: Conditions) -> Costs:
        """The durations in one step."""
        slots, stages, inner = self.world.shape
        lasting = np.zeros((slots, stages * inner))
        lasting[self._work] = self._working(conditions.step)
        lasting[self._comm] = self._transferring(conditions)
        issuing = self._issuing(conditions)
        for at, places, factor in conditions.stretched:
            lasting[np.ix_(at, places)] *= factor
        whole: Ints = np.rint(lasting).astype(np.int64)
        for at, places, more in conditions.delayed:
            whole[np.ix_(at, places)] += more
        shape = (slots, stages, inner)
        return Costs(whole.reshape(shape), issuing.reshape(shape))

    def between_ns(self, step: int) -> Ints:
        """What each host does between a step and the next, e.g. writing a checkpoint."""
        noise, ranks = self.world.scenario.noise, self.world.scenario.ranks
        pause = np.zeros(ranks)
        for name, every, lasting_ms in (
            ("checkpoint", noise.checkpoint_every, noise.checkpoint_ms),
            ("evaluate", noise.evaluate_every, noise.evaluate_ms),
        ):
            if every and (step + 1) % every == 0:
                spread = self.world.random.factors(name, noise.transfer, (ranks,), step)
                pause += lasting_ms * MS * spread
        return np.rint(pause).astype(np.int64)

    # ---- work on the device ----

    @cached_property
    def _work(self) -> Ints:
        return self.world.program.slots(lambda op: op.kind in DEVICE_WORK)

    @cached_property
    def _comm(self) -> Ints:
        return self.world.program.slots(lambda op: op.kind in TRANSFERS)

    @cached_property
    def _base(self) -> Floats:
        """Nominal duration of each operation on the device, in nanoseconds."""
        return np.array([self._base_of(self.world.ops[slot]) for slot in self._work])

    def _base_of(self, op: Op) -> float:
        work = self.world.scenario.workload
        if op.kind == "copy":
            return op.size_bytes / self.world.scenario.hardware.pcie_gb_per_s
        ms = {workload.ATTENTION: work.attention_ms, workload.MLP: work.mlp_ms,
              EXPERTS: work.mlp_ms, ROUTER: ROUTER_MS, HEAD: work.head_ms,
              OPTIMIZER: work.optimizer_ms}[op.name]  # fmt: skip
        return ms * MS * (BACKWARD_TIMES if op.phase == BACKWARD else 1.0)

    @cached_property
    def _job_factors(self) -> Floats:
        """How many times longer the whole job's work takes in each step, including the warm-up."""
        noise, steps = self.world.scenario.noise, self.world.scenario.steps
        factors = job_factors(self.world.random, noise.wobble, noise.drift, steps)
        warm = np.array(noise.warm_up[:steps])
        factors[: len(warm)] *= warm
        return factors

    @cached_property
    def _constant(self) -> Floats:
        """How many times longer each place's GPU takes in every step."""
        noise = self.world.scenario.noise
        return self.world.random.factors("gpu", noise.rank, (self.world.scenario.ranks,))

    def _working(self, step: int) -> Floats:
        noise, ranks = self.world.scenario.noise, self.world.scenario.ranks
        shape = (ranks, len(self._work))
        factors = self.world.random.many_factors("compute", noise.compute, shape, step)
        work: Floats = (self._job_factors[step] * self._base)[:, None] * self._constant * factors
        kind = self.world.scenario.workload.kind
        if kind == "variable":
            work *= self._shapes(step)[self._shape_index]
        elif kind == "moe":
            work[self._experts] *= self._routed(step)
        return work

    @cached_property
    def _experts(self) -> Ints:
        return np.flatnonzero([self.world.ops[slot].name == EXPERTS for slot in self._work])

    def _routed(self, step: int) -> Floats:
        spread = self.world.scenario.workload.routing_spread
        shape = (self.world.scenario.ranks, len(self._experts))
        return self.world.random.factors("routing", spread, shape, step).T

    @cached_property
    def _shape_index(self) -> Ints:
        """For each operation the row of `_shapes` of its microbatch; the last row is for none."""
        none = self.world.scenario.parallelism.microbatches
        found = [self.world.ops[slot] for slot in self._work]
        return np.array([op.microbatch if op.phase in PHASE_OF.values() else none for op in found])

    def _shapes(self, step: int) -> Floats:
        """`[microbatch, place]`: all ranks of a replica work on the same samples."""
        scenario, cluster = self.world.scenario, self.world.cluster
        shape = (scenario.dp, scenario.parallelism.microbatches)
        spread = scenario.workload.shape_spread
        drawn = self.world.random.factors("shapes", spread, shape, step)
        within = np.repeat(drawn, cluster.per_stage // scenario.dp, axis=0)
        everywhere = np.tile(within, (cluster.stages, 1)).T
        return np.vstack([everywhere, np.ones(scenario.ranks)])

    # ---- transfers ----

    @cached_property
    def _passes(self) -> Floats:
        """Bytes that each operator moves over its slowest edge."""
        ops = [self.world.ops[slot] for slot in self._comm]
        return np.array([op.size_bytes * passes(op.name, self.world.members(op)) for op in ops])

    @cached_property
    def _latency(self) -> Floats:
        members = [self.world.members(self.world.ops[slot]) for slot in self._comm]
        return np.array([latency_ns(one) for one in members])

    def _transferring(self, conditions: Conditions) -> Floats:
        """The duration of each operator's transfer, for all operators of one kind of group at once.

        A receive gets its sender's edge and a draw of its own, but the engine uses the sender's.
        """
        noise = self.world.scenario.noise.transfer
        shape = (self.world.scenario.ranks, len(self._comm))
        spread = self.world.random.many_factors("transfer", noise, shape, conditions.step)
        out = np.empty((len(self._comm), shape[0]))
        for (group, before), at in self._alike.items():
            per_byte = self.world.network.ns_per_byte(group, conditions.slower)
            each = self._latency[at, None] + self._passes[at, None] * per_byte * spread[at]
            out[at] = self._agreed(group, before, each)
        return out

    @cached_property
    def _alike(self) -> Mapping[tuple[str, bool], Ints]:
        """The operators by kind of group, and by whether they use the edge before their stage.

        Edge number s leads from stage s to s + 1: a stage that receives activations or sends
        gradients uses the edge before it.
        """
        found: dict[tuple[str, bool], list[int]] = {}
        for at, slot in enumerate(self._comm):
            op = self.world.ops[slot]
            before = op.group == "pp" and (op.key[0] == "forward") == (op.kind == "recv")
            found.setdefault((op.group, before), []).append(at)
        return {key: np.array(which) for key, which in found.items()}

    def _agreed(self, group: str, before: bool, each: Floats) -> Floats:
        """One duration for all members: the first member's draw, or that of the edge."""
        cluster = self.world.cluster
        by_stage = each.reshape(len(each), cluster.stages, -1)
        if group == "pp":
            return (np.roll(by_stage, 1, axis=1) if before else by_stage).reshape(each.shape)
        if group == "embedding":
            return np.broadcast_to(by_stage[:, :1], by_stage.shape).reshape(each.shape)
        if group == "world":
            return np.broadcast_to(each[:, :1], each.shape)
        over = cluster.grid.over[group]
        grid = each.reshape(len(each), cluster.stages, *cluster.grid.shape)
        first = tuple(slice(0, 1) if axis - 2 in over else slice(None) for axis in range(grid.ndim))
        return np.broadcast_to(grid[first], grid.shape).reshape(each.shape)

    # ---- the host ----

    @cached_property
    def _launching(self) -> Floats:
        """Host time to issue each operation, including the host's own work, in ns."""
        work = self.world.scenario.workload
        own = {DATA_LOAD: work.data_load_ms * MS}
        return np.array([own.get(op.name, op.launches * work.launch_us * US)
                         for op in self.world.ops])  # fmt: skip

    def _issuing(self, conditions: Conditions) -> Ints:
        scenario, random = self.world.scenario, self.world.random
        shape = (scenario.ranks, len(self.world.ops))
        factors = random.many_factors("host", scenario.noise.host, shape, conditions.step)
        issuing = self._launching[:, None] * factors
        for places, factor in conditions.issuing:
            issuing[:, places] *= factor
        whole: Ints = np.rint(issuing).astype(np.int64)
        for stall in (*self.interruptions(conditions.step), *conditions.stalls):
            whole[stall.slot, stall.places] += stall.lasting_ns
        return whole

    def interruptions(self, step: int) -> list[Stall]:
        """Harmless interruptions, not caused by a fault; never two at the same place."""
        scenario = self.world.scenario
        source = self.world.random.source("spikes", step)
        hit = np.flatnonzero(source.random(scenario.ranks) < scenario.noise.spikes_per_rank_step)
        stage_ops = self.world.program.host_order
        found = []
        for place in hit:
            order = stage_ops[place // self.world.cluster.per_stage]
            slot = int(order[source.integers(len(order))])
            lasting = np.array([int(source.exponential(SPIKE_MS) * MS)])
            found.append(Stall(slot, np.array([place]), lasting, SPIKE_FRAMES, active=False))
        return found

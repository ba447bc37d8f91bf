"""Tables `kernels` and `kernel_summaries`: what the device executed, one by one or summarised."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.simulate.engine import NEVER
from stepscope.simulate.program import ON_DEVICE, Op
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.workload import ATTENTION, EXPERTS, HEAD, MLP, ROUTER
from stepscope.simulate.world import World
from stepscope.trace import BACKWARD, OPTIMIZER
from stepscope.trace.modes import WINDOW_NS
from stepscope.window import Ints

SHARES = {
    ATTENTION: (("flash_{}_kernel", 0.55), ("sm90_xmma_gemm_bf16_qkv_{}", 0.35),
                ("rms_norm_{}_kernel", 0.10)),
    MLP: (("sm90_xmma_gemm_bf16_mlp_{}", 0.85), ("fused_swiglu_{}_kernel", 0.15)),
    EXPERTS: (("sm90_grouped_gemm_bf16_{}", 0.80), ("moe_permute_{}_kernel", 0.20)),
    ROUTER: (("moe_router_topk_{}_kernel", 1.0),),
    HEAD: (("sm90_xmma_gemm_bf16_vocab_{}", 0.75), ("cross_entropy_{}_kernel", 0.25)),
    OPTIMIZER: (("multi_tensor_adam_kernel", 0.90), ("multi_tensor_l2norm_kernel", 0.10)),
}  # fmt: skip
"""The kernels of one operation in order, each with its share of the time."""
NCCL = {"AllReduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "AllGather": "ncclDevKernel_AllGather_RING_LL",
        "ReduceScatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
        "AllToAll": "ncclDevKernel_SendRecv", "Send": "ncclDevKernel_SendRecv",
        "Recv": "ncclDevKernel_SendRecv"}  # fmt: skip
PERMILLE = 1000
GAP, LEAST, LEAST_SHARE = 1.1, 5, 100
"""Modes must differ by a tenth in their medians, and have at least five executions and one in a
hundred of all: the same limits as in the processor."""


@dataclass(frozen=True)
class _Kernel:
    """One kernel on one stream, as part of the operations of one stage."""

    name: str
    stream: int
    slots: Ints
    first: int
    """Start and end within the operation, in thousandths."""
    last: int


def _parts(op: Op) -> list[tuple[str, int, int]]:
    """The names, starts and ends of an operation's kernels."""
    if op.kind == "copy":
        return [(op.name, 0, PERMILLE)]
    if op.name in NCCL:
        return [(NCCL[op.name], 0, PERMILLE)]
    way = "bwd" if op.phase == BACKWARD else "fwd"
    shares = SHARES[op.name]
    edges = np.rint(np.cumsum([0.0, *(share for _, share in shares)]) * PERMILLE).astype(int)
    return [(name.format(way), int(a), int(b))
            for (name, _), a, b in zip(shares, edges, edges[1:], strict=False)]  # fmt: skip


@dataclass
class KernelSource:
    """The kernels that each stage runs."""

    world: World

    @cached_property
    def kernels(self) -> list[list[_Kernel]]:
        return [self._of(stage) for stage in range(self.world.cluster.stages)]

    @cached_property
    def streams(self) -> dict[str, int]:
        """Stream numbers as CUDA assigns them: computation is 7, then one number per stream."""
        names = dict.fromkeys(op.stream for op in self.world.ops if op.kind in ON_DEVICE)
        return {name: 7 + 4 * at for at, name in enumerate(sorted(names, key="compute".__ne__))}

    def _of(self, stage: int) -> list[_Kernel]:
        found: dict[tuple[str, int, int, int], list[int]] = {}
        for op in self.world.program.stages[stage]:
            if op.kind in ON_DEVICE:
                for name, first, last in _parts(op):
                    key = (name, self.streams[op.stream], first, last)
                    found.setdefault(key, []).append(self.world.program.slot[op.key])
        return [_Kernel(name, stream, np.array(slots), first, last)
                for (name, stream, first, last), slots in found.items()]  # fmt: skip


@dataclass
class KernelRows:
    """One row per kernel, copy and collective that finished on the device."""

    world: World
    clocks: Clocks
    source: KernelSource
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"kernel"})))

    def add(self, moment: Moment) -> None:
        for stage, kernels in enumerate(self.source.kernels):
            for kernel in kernels:
                self._add(moment, stage, kernel)

    def _add(self, moment: Moment, stage: int, kernel: _Kernel) -> None:
        begin, end = moment.times.begin[kernel.slots, stage], moment.times.end[kernel.slots, stage]
        known, took = end < NEVER, end - begin
        place = np.arange(begin.shape[1]) + stage * self.world.cluster.per_stage
        places = np.broadcast_to(place, begin.shape)[known]
        first = (begin + took * kernel.first // PERMILLE)[known]
        last = (begin + took * kernel.last // PERMILLE)[known]
        shown = self.clocks.show(first, places)
        self.rows.add(
            rank=self.world.cluster.rank_of[places].astype(np.int32),
            step=np.int64(moment.step), kernel=np.int32(self.rows.code(kernel.name)),
            stream=np.int64(kernel.stream), start_ns=shown,
            duration_ns=self.clocks.show(last, places) - shown,
        )  # fmt: skip


@dataclass
class SummaryRows:
    """One row per kernel, stream, rank, minute and mode: the number of executions, and the 50th and
    99th percentile of their durations, as in `trace.modes`."""

    world: World
    clocks: Clocks
    source: KernelSource
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"kernel"})))
    _since_ns: int = 0
    _took: list[Ints] = field(default_factory=list)
    """The duration of every operation of each step, `[slot, stage, rank within the stage]`."""

    def add(self, moment: Moment) -> None:
        if not moment.finished:
            return
        if not self._took:
            self._since_ns = int(moment.start.min())
        self._took.append(moment.times.end - moment.times.begin)
        done = int(moment.times.done.max())
        if done - self._since_ns >= WINDOW_NS:
            self._close(done)

    def finish(self, until_ns: int) -> None:
        if self._took:
            self._close(until_ns)

    def _close(self, until_ns: int) -> None:
        for stage, kernels in enumerate(self.source.kernels):
            for kernel in kernels:
                took = np.concatenate([table[kernel.slots, stage] for table in self._took])
                self._add(stage, kernel, took * (kernel.last - kernel.first) // PERMILLE, until_ns)
        self._took = []

    def _add(self, stage: int, kernel: _Kernel, took: Ints, until_ns: int) -> None:
        took.sort(axis=0)
        for mode in _modes(took):
            places = mode.column + stage * self.world.cluster.per_stage
            since = np.full(len(places), self._since_ns)
            count = mode.stop - mode.start
            self.rows.add(
                rank=self.world.cluster.rank_of[places].astype(np.int32),
                window_start_ns=self.clocks.show(since, places),
                window_ns=np.int64(until_ns - self._since_ns),
                kernel=np.int32(self.rows.code(kernel.name)), stream=np.int64(kernel.stream),
                cluster=np.int32(mode.cluster), count=count,
                p50_ns=took[mode.start + (count - 1) // 2, mode.column],
                max_ns=took[mode.stop - 1, mode.column],
                p99_ns=took[mode.start - (-count * 99 // 100) - 1, mode.column],
            )  # fmt: skip


@dataclass(frozen=True)
class _Mode:
    """The rows of one mode in some columns of a sorted table."""

    cluster: int
    column: Ints
    start: Ints
    stop: Ints


def _modes(took: Ints) -> Iterator[_Mode]:
    """The modes of every column of a sorted table, the shortest first.

    Like processors (docs/methods/compression.md), it splits at a gap of a tenth with enough
    executions on either side. Unlike there, modes that overlap stay together.
    """
    rows, columns = took.shape
    least = max(LEAST, -(-rows // LEAST_SHARE))
    wide = took[1:] >= took[:-1] * GAP
    wide[max(rows - least, 0) :] = False
    column, start = np.arange(columns), np.zeros(columns, np.int64)
    for cluster in itertools.count():
        after = wide[:, column] & (np.arange(1, rows)[:, None] >= start + least)
        more = after.any(axis=0)
        stop = np.where(more, after.argmax(axis=0) + 1 if rows > 1 else rows, rows)
        yield _Mode(cluster, column, start, stop)
        column, start = column[more], stop[more]
        if not len(column):
            return

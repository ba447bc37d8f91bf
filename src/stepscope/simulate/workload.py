"""Builds the program of a scenario: which operations a step consists of, and in what order.

Modelled on Megatron-LM: a forward and a backward pass are blocks of attention and MLP (or experts)
with tensor-parallel all-reduces between them; gradients are reduced in buckets that overlap the
last backward pass; a global norm, the optimizer and, with ZeRO-1, an all-gather of parameters end
the step. FSDP gathers each block's parameters one block ahead of their use.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.simulate.program import COMPUTE, HOST, Key, Kind, Op, Program
from stepscope.simulate.scenario import Scenario
from stepscope.simulate.schedule import Cell, order_of
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER

ATTENTION, MLP, EXPERTS, ROUTER, HEAD = "self_attention", "mlp", "moe_experts", "moe_router", "head"
PHASE_OF = {"forward": FORWARD, "backward": BACKWARD}
MB = 1_000_000
NORM_BYTES = 8
EMBEDDING_PART = 1 / 16
"""The embedding's share of the gradients of the first and the last stage: a vocabulary of 128,000
with 8,192 values each, divided by tensor parallelism like the rest."""
PHASE_WORDS = {"AllReduce": "all-reduce", "AllGather": "all-gather",
               "ReduceScatter": "reduce-scatter", "AllToAll": "alltoall",
               "Send": "send", "Recv": "recv"}  # fmt: skip
LAUNCHES = {ATTENTION: 100, MLP: 60, EXPERTS: 120, ROUTER: 10, HEAD: 10, OPTIMIZER: 40}
"""Kernel launches of one operation in the forward pass; the backward pass makes twice as many. A
block of twenty milliseconds represents about eight layers of a dozen launches each."""
AHEAD = 2
"""FSDP's default limit of outstanding all-gathers."""


def build(scenario: Scenario, overlap: bool = True) -> Program:
    """The program; without `overlap`, computation waits for every bucket of gradients."""
    stages = range(scenario.parallelism.pp)
    return Program(tuple(_Stage(scenario, stage, overlap).build() for stage in stages))


class _Stage:
    """Builds one stage's operations, in the order in which its hosts issue them."""

    def __init__(self, scenario: Scenario, stage: int, overlap: bool) -> None:
        self.scenario, self.one = scenario, scenario.parallelism
        self.stage, self.overlap = stage, overlap
        self.ops: list[Op] = []
        self.cell = Cell("forward", 0, 0)
        self.before: tuple[Key, ...] = ()
        """What the next computation must wait for."""
        self.computed: list[Key] = []
        self.grads: list[Key] = []
        self.last_backward: dict[int, int] = {}

    def build(self) -> tuple[Op, ...]:
        order = order_of(self.stage, self.one.pp, self.one.microbatches, self.one.chunks)
        self.last_backward = {c.chunk: at for at, c in enumerate(order) if c[0] == "backward"}
        self._host((DATA_LOAD,), DATA_LOAD, "host", DATA_LOAD)
        for at, self.cell in enumerate(order):
            if self.cell.direction == "forward":
                self._forward()
            else:
                self._backward(at == self.last_backward[self.cell.chunk])
        self._finish()
        return tuple(self.ops)

    # ---- the two passes ----

    def _forward(self) -> None:
        if self.cell.chunk == 0:
            self._copy()
        self._receive()
        for block in range(self.scenario.workload.blocks):
            self._gather(block)
            self._attention(block)
            self._mlp(block)
        if self._is_last:
            self._compute(HEAD)
        self._send()

    def _backward(self, last: bool) -> None:
        self._receive()
        if self._is_last:
            self._compute(HEAD)
        for block in reversed(range(self.scenario.workload.blocks)):
            self._gather(block)
            self._mlp(block)
            self._attention(block)
            if last or self.one.sharding == "fsdp":
                self._reduce(block)
        self._send()

    def _attention(self, block: int) -> None:
        self._collective("cp", "AllGather", block, "attention")
        self._compute(ATTENTION, block)
        self._collective("tp", "AllReduce", block, "attention")

    def _mlp(self, block: int) -> None:
        if self.scenario.workload.kind != "moe":
            self._compute(MLP, block)
            self._collective("tp", "AllReduce", block, "mlp")
            return
        if self.cell.direction == "forward":
            self._compute(ROUTER, block)
            self._read_counts(block)
        self._collective("ep", "AllToAll", block, "dispatch")
        self._compute(EXPERTS, block)
        self._collective("ep", "AllToAll", block, "combine")

    def _read_counts(self, block: int) -> None:
        """The host must know the token counts before it can issue the all-to-all."""
        self._host((*self.cell, block, "counts"), "token-counts", "sync", "", self.computed[-1:])

    # ---- single operations ----

    @property
    def _is_last(self) -> bool:
        """Whether this chunk is the end of the model."""
        return self.stage == self.one.pp - 1 and self.cell.chunk == self.one.chunks - 1

    def _add(
        self, key: Key, name: str, kind: Kind, stream: str, phase: str,
        after: Sequence[Key] = (), group: str = "", size: float = 0, launches: int = 1,
        partner: tuple[int, Key] | None = None,
    ) -> Key:  # fmt: skip
        in_cell = phase in (FORWARD, BACKWARD) or kind in ("send", "recv", "copy")
        microbatch, chunk = (self.cell.microbatch, self.cell.chunk) if in_cell else (-1, 0)
        self.ops.append(Op(key, name, kind, stream, phase, microbatch, chunk, tuple(after), group,
                           int(size), launches, partner))  # fmt: skip
        return key

    def _host(self, key: Key, name: str, kind: Kind, phase: str, after: Sequence[Key] = ()) -> None:
        self._add(key, name, kind, HOST, phase, after, launches=0)

    def _compute(self, name: str, block: int = 0) -> None:
        phase = PHASE_OF[self.cell.direction]
        launches = LAUNCHES[name] * (1 if self.cell.direction == "forward" else 2)
        key = (*self.cell, block, name)
        self._add(key, name, "compute", COMPUTE, phase, self.before, launches=launches)
        self.before = ()
        self.computed.append(key)

    def _collective(self, group: str, op: str, block: int, what: str) -> None:
        """A collective between two computations."""
        if self._size(group) == 1:
            return
        key = (*self.cell, block, group, what)
        work = self.scenario.workload
        size = work.layers * work.activation_mb * MB / self.one.cp
        after = (*self.computed[-1:], *self.before)
        self._add(key, op, "collective", group, PHASE_OF[self.cell.direction], after, group, size)
        self.before = (key,)

    def _copy(self) -> None:
        key = ("copy", self.cell.microbatch)
        size = self.scenario.workload.input_mb * MB
        self._add(key, "Memcpy HtoD (Pinned -> Device)", "copy", "copy", "", size=size)
        self.before = (*self.before, key)

    def _gather(self, block: int) -> None:
        """FSDP: gathers the block's parameters once few enough earlier blocks are still in use."""
        if self.one.sharding != "fsdp" or self._size("dp") == 1:
            return
        key = (*self.cell, block, "params")
        used = self.computed[-2 * AHEAD : -2 * AHEAD + 1]
        self._add(key, "AllGather", "collective", "dp", "dp-all-gather", used, "dp", self._bucket)
        self.before = (*self.before, key)

    def _reduce(self, block: int) -> None:
        """Reduces a bucket of gradients while the backward pass goes on."""
        op = "AllReduce" if self.one.sharding == "ddp" else "ReduceScatter"
        kinds = [kind for kind in self._gradient_groups if self._size(kind) > 1]
        for kind in kinds:
            key = (*self.cell, block, kind, "grads")
            phase = f"{kind}-{PHASE_WORDS[op]}"
            size = self._bucket / len(self._gradient_groups)
            self._add(key, op, "collective", "dp", phase, self.computed[-1:], kind, size)
            self.grads.append(key)
            if not self.overlap:
                self.before = (*self.before, key)

    @property
    def _gradient_groups(self) -> tuple[str, ...]:
        return ("dp", "edp") if self.one.ep > 1 else ("dp",)

    @property
    def _bucket(self) -> float:
        workload = self.scenario.workload
        return workload.gradient_mb * MB / (workload.blocks * self.one.chunks)

    def _size(self, group: str) -> int:
        one, dp = self.one, self.scenario.dp
        return {"tp": one.tp, "cp": one.cp, "ep": one.ep, "dp": dp * one.cp, "edp": dp // one.ep,
                "world": self.scenario.ranks, "embedding": one.pp}[group]  # fmt: skip

    # ---- between stages ----

    def _receive(self) -> None:
        here = self._neighbour(-1)
        if here is not None:
            key = self._exchange("Recv", here)
            self.before = (*self.before, key)

    def _send(self) -> None:
        there = self._neighbour(1)
        if there is not None:
            self._exchange("Send", there, (*self.computed[-1:], *self.before))
        # `before` stays: the next pass waits for this one's last all-reduce, as the device's
        # main stream does to add its result

    def _neighbour(self, way: int) -> tuple[int, int] | None:
        """The stage and chunk from which a cell gets its input (-1) or to which it sends (1)."""
        way = way if self.cell.direction == "forward" else -way
        stage, chunk = self.stage + way, self.cell.chunk
        if not 0 <= stage < self.one.pp:
            stage, chunk = stage % self.one.pp, chunk + way
        return (stage, chunk) if 0 <= chunk < self.one.chunks else None

    def _exchange(self, op: str, other: tuple[int, int], after: Sequence[Key] = ()) -> Key:
        direction, chunk, microbatch = self.cell
        word, counterpart = ("send", "recv") if op == "Send" else ("recv", "send")
        key: Key = (direction, word, chunk, microbatch)
        partner: Key = (direction, counterpart, other[1], microbatch)
        size = self.scenario.workload.activation_mb * MB / self.one.tp / self.one.cp
        kind: Kind = "send" if op == "Send" else "recv"
        return self._add(key, op, kind, f"pp-{direction}-{word}", f"pp-{word}", after, "pp", size,
                         partner=(other[0], partner))  # fmt: skip

    # ---- the end of the step ----

    def _finish(self) -> None:
        after = (*self.computed[-1:], *self.before, *self.grads)
        if self.one.pp > 1 and self.stage in (0, self.one.pp - 1):
            size = self.scenario.workload.gradient_mb * MB * EMBEDDING_PART
            after = (self._add(("embedding",), "AllReduce", "collective", "embedding",
                               "embedding-all-reduce", after, "embedding", size),)  # fmt: skip
        if self.scenario.ranks > 1:
            after = (self._add(("norm",), "AllReduce", "collective", "world", "world-all-reduce",
                               after, "world", NORM_BYTES),)  # fmt: skip
        last: Key = (OPTIMIZER,)
        self._add(last, OPTIMIZER, "compute", COMPUTE, OPTIMIZER, after,
                  launches=LAUNCHES[OPTIMIZER])  # fmt: skip
        if self.one.sharding == "zero1" and self._size("dp") > 1:
            last = self._add(("params",), "AllGather", "collective", "dp", "dp-all-gather",
                             (last,), "dp", self.scenario.workload.gradient_mb * MB)  # fmt: skip
        self._host(("end",), "step-end", "sync", "", (last,))

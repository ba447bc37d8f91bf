"""The operations of one step on every rank of a stage: on which stream, and in which order issued.

All ranks of a pipeline stage run the same program and differ only in how long things take. A slot
is one operation of the step; stages that have the same operation share its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from stepscope.window import Ints, Mask

Kind = Literal["compute", "copy", "host", "sync", "collective", "send", "recv"]
Key = tuple[str | int, ...]
"""Identifies an operation within the step; it is the same on every stage that has it."""

DEVICE_WORK = ("compute", "copy")
TRANSFERS = ("collective", "send", "recv")
ON_DEVICE = (*DEVICE_WORK, *TRANSFERS)
ACROSS_STAGES = ("world", "mp", "embedding")
"""Groups with members in several pipeline stages."""
COMPUTE, HOST = "compute", "host"
"""Streams. The host thread counts as a stream: what follows a wait of the host comes after it."""


@dataclass(frozen=True)
class Op:
    """One operation.

    `compute` and `copy` run on the device, `host` keeps the host busy, `sync` makes the host wait
    for the operations in `after`. `collective`, `send` and `recv` end for all members at once.
    """

    key: Key
    name: str
    kind: Kind
    stream: str
    phase: str
    microbatch: int = -1
    chunk: int = 0
    after: tuple[Key, ...] = ()
    group: str = ""
    size_bytes: int = 0
    launches: int = 1
    partner: tuple[int, Key] | None = None
    """For a send or receive: the other stage, and the operation there."""


@dataclass(frozen=True)
class Program:
    """The operations of all stages; each stage's are in the order in which its hosts issue them."""

    stages: tuple[tuple[Op, ...], ...]

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """One operation per slot, as defined by the first stage that has it."""
        found: dict[Key, Op] = {}
        for ops in self.stages:
            for op in ops:
                found.setdefault(op.key, op)
        return tuple(found.values())

    @cached_property
    def slot(self) -> Mapping[Key, int]:
        return {op.key: at for at, op in enumerate(self.ops)}

    @cached_property
    def host_order(self) -> tuple[Ints, ...]:
        """Per stage, its slots in the order in which the host issues them."""
        return tuple(np.array([self.slot[op.key] for op in ops]) for ops in self.stages)

    @cached_property
    def present(self) -> Mask:
        """Which stage has which slot: `[slot, stage]`."""
        present = np.zeros((len(self.ops), len(self.stages)), np.bool_)
        for stage, slots in enumerate(self.host_order):
            present[slots, stage] = True
        return present

    def slots(self, wanted: Callable[[Op], bool]) -> Ints:
        """The slots whose operation is wanted."""
        return np.array([at for at, op in enumerate(self.ops) if wanted(op)], np.int64)

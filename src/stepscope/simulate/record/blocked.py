"""How long each communication operator kept its rank from going on.

A rank does one thing after the other: it computes, or it stands until an operator is over that what
comes next needs. It stands for the operator from when it could have gone on (all before is done,
and the host has issued what comes next) until the operator ends, and for several in the order in
which it needs them. An operator that ran beside computing, or while the host was late, blocked
nobody; nor does a send, which nothing waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.simulate.engine import NEVER, Times
from stepscope.simulate.program import TRANSFERS, Key, Program
from stepscope.window import NULL, Ints, Mask


class _Turn(NamedTuple):
    """One thing that a stage's ranks are through with before they go on."""

    slot: int
    needed_by: int
    """The slot of what comes next; of computation itself its own."""
    is_wait: bool


@dataclass(frozen=True)
class Line:
    """What the ranks of one stage are through with, in order."""

    slots: Ints
    needed_by: Ints
    waits: Mask

    @classmethod
    def of(cls, program: Program, stage: int) -> Line:
        turns = list(_turns(program, stage))
        slots, needed_by, waits = zip(*turns, strict=True)
        return cls(np.array(slots), np.array(needed_by), np.array(waits))

    def blocked_ns(self, times: Times, stage: int) -> Ints:
        """Of every slot, `[slot, rank within the stage]`; NULL: the rank stands in it for ever."""
        slots, waits = self.slots, self.waits
        end = times.end[slots, stage]
        through = np.maximum.accumulate(end, axis=0)
        before = np.concatenate((np.zeros_like(through[:1]), through[:-1]))
        since = np.maximum(before, times.issued[self.needed_by, stage])
        stood = np.where((end >= NEVER) & (since < NEVER), NULL, np.maximum(end - since, 0))
        stood[since >= NEVER] = 0  # it never came to that
        found = np.zeros_like(times.end[:, stage])
        found[slots[waits]] = stood[waits]
        return found


def _turns(program: Program, stage: int) -> Iterator[_Turn]:
    ops, slot = program.stages[stage], program.slot
    kinds = {op.key: op.kind for op in ops}
    through: set[Key] = set()
    for op in ops:
        for key in op.after:
            if kinds[key] != "compute" and key not in through:
                through.add(key)
                yield _Turn(slot[key], slot[op.key], kinds[key] in TRANSFERS)
        if op.kind == "compute":
            yield _Turn(slot[op.key], slot[op.key], False)

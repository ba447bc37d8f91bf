"""How long each communication operator blocked its rank.

A rank does one thing at a time: it computes, or it is blocked in an operator whose result it needs
next. An operator blocks the rank from when the rank could have gone on (everything before is done,
and the host has issued what comes next) until the operator ends. If the rank needs several, they
block it in the order in which it needs them. An operator blocks nobody if it overlaps computation
or ends before the host gets there; nor does a send, because nothing waits for it.
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
    """One thing that a stage's ranks must finish before they go on."""

    slot: int
    needed_by: int
    """The slot that needs it; for computation its own slot."""
    is_wait: bool


@dataclass(frozen=True)
class Line:
    """What the ranks of one stage must finish, in order."""

    slots: Ints
    needed_by: Ints
    waits: Mask

    @classmethod
    def of(cls, program: Program, stage: int) -> Line:
        turns = list(_turns(program, stage))
        slots, needed_by, waits = zip(*turns, strict=True)
        return cls(np.array(slots), np.array(needed_by), np.array(waits))

    def blocked_ns(self, times: Times, stage: int) -> Ints:
        """For every slot, `[slot, rank within the stage]`; NULL: the rank is blocked for ever."""
        slots, waits = self.slots, self.waits
        end = times.end[slots, stage]
        through = np.maximum.accumulate(end, axis=0)
        before = np.concatenate((np.zeros_like(through[:1]), through[:-1]))
        since = np.maximum(before, times.issued[self.needed_by, stage])
        stood = np.where((end >= NEVER) & (since < NEVER), NULL, np.maximum(end - since, 0))
        stood[since >= NEVER] = 0  # the rank never got there
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

"""What goes wrong in a training script, and when: read from a file that `LAB_CONDITIONS` names.

A condition is an object with `what`, and where it does not hold everywhere and always: `ranks`,
`first` and `last` step, `layer`. How large it is: `factor` (times as long) or `seconds` (more).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path

ALWAYS = 1 << 30


@dataclass(frozen=True)
class Condition:
    """One thing that is not as it should be."""

    what: str
    ranks: tuple[int, ...] | None = None
    first: int = 0
    last: int = ALWAYS
    layer: int | None = None
    factor: float = 1.0
    seconds: float = 0.0
    every: int = 1

    def holds(self, rank: int, step: int) -> bool:
        mine = self.ranks is None or rank in self.ranks
        begun = self.first <= step <= self.last
        return mine and begun and (step - self.first) % self.every == 0


class Conditions:
    """Those of one rank; the training loop says which step it is in."""

    def __init__(self, conditions: list[Condition], rank: int) -> None:
        self._all = conditions
        self._rank = rank
        self.step = 0

    def factor(self, what: str, layer: int | None = None, step: int | None = None) -> float:
        """How many times as long something takes."""
        product = 1.0
        for condition in self._holding(what, step):
            if condition.layer is None or condition.layer == layer:
                product *= condition.factor
        return product

    def seconds(self, what: str, step: int | None = None) -> float:
        """How much longer something takes."""
        return sum(condition.seconds for condition in self._holding(what, step))

    def holds(self, what: str, step: int | None = None) -> bool:
        return bool(self._holding(what, step))

    def _holding(self, what: str, step: int | None = None) -> list[Condition]:
        now = self.step if step is None else step
        return [c for c in self._all if c.what == what and c.holds(self._rank, now)]


def read(rank: int) -> Conditions:
    """None at all where the variable is not set."""
    path = os.environ.get("LAB_CONDITIONS")
    rows = json.loads(Path(path).read_text()) if path else []
    known = {field.name for field in fields(Condition)}
    conditions = []
    for row in rows:
        values = {key: value for key, value in row.items() if key in known}
        if values.get("ranks") is not None:
            values["ranks"] = tuple(values["ranks"])
        conditions.append(Condition(**values))
    return Conditions(conditions, rank)

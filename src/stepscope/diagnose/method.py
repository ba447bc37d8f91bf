"""What a method of diagnosis is: detectors find, explanations say why.

A new method is a class with `name`, `needs` and one function, a line in `registry`, a page in
`docs/methods/` and a test. Methods of other packages are found by the entry point group
`stepscope.methods` (docs/methods/README.md has an example).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from stepscope.diagnose.finding import Cause, Evidence, Finding
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.window import Floats, Window

Strength = Literal["measured", "inferred", "residual"]
"""How a cause is known: something measured shows it, it follows from something measured, or it is
what is left when nothing else fits."""
STRENGTHS: tuple[Strength, ...] = ("measured", "inferred", "residual")


@dataclass(frozen=True, init=False)
class Needs:
    """The tables, columns and ranks that a method cannot run without.

    `Needs("phases", "comm_ops.end_ns", "kernels|kernel_summaries", ranks=2)`: a table, a column of
    a table, one of two tables, and at least two ranks. `hardware:sm_clock_mhz` is a metric.
    """

    wanted: tuple[str, ...]
    ranks: int
    also: tuple[str, ...] | None
    """All other tables that it uses where they are there; None: it may use any."""

    def __init__(self, *wanted: str, ranks: int = 1, also: tuple[str, ...] | None = None) -> None:
        object.__setattr__(self, "wanted", wanted)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "also", also)

    @property
    def tables(self) -> frozenset[str] | None:
        """All tables that a method with these needs uses; None: any."""
        if self.also is None:
            return None
        named = (re.split("[.:]", one)[0] for each in self.wanted for one in each.split("|"))
        return frozenset((*named, *self.also))

    def missing(self, window: Window) -> str | None:
        """Why a method with these needs cannot run; None where it can."""
        lacking = [wanted for wanted in self.wanted
                   if not any(_has(window, one) for one in wanted.split("|"))]  # fmt: skip
        if lacking:
            return f"no {', '.join(dict.fromkeys(_either(window, one) for one in lacking))}"
        if window.ranks and len(window.ranks) < self.ranks:
            return "one rank has no peers"
        return None

    def __str__(self) -> str:
        parts = [one.replace("|", " or ") for one in self.wanted]
        parts += [f"{self.ranks} ranks"] if self.ranks > 1 else []
        return ", ".join(parts) or "nothing"


def _has(window: Window, wanted: str) -> bool:
    name, _, metric = wanted.partition(":")
    name, _, column = name.partition(".")
    table = window.table(name)
    if table is None or (column and not table.has(column)):
        return False
    return not metric or metric in table.strings("metric").values


def _either(window: Window, wanted: str) -> str:
    found = sorted({_described(window, one) for one in wanted.split("|")})
    if all(one.startswith("table ") for one in found):
        return f"table {' or '.join(one.removeprefix('table ') for one in found)}"
    return " or ".join(found)


def _described(window: Window, wanted: str) -> str:
    """What is not there: a column or metric of a table, or the whole table."""
    for mark, what in ((".", "column"), (":", "metric")):
        table, found, name = wanted.partition(mark)
        if found and window.table(table) is not None:
            return f"{what} {name} in table {table}"
    return f"table {re.split('[.:]', wanted)[0]}"


@dataclass(frozen=True)
class SoFar:
    """What has been decided when a detector runs."""

    blamed: frozenset[int] = frozenset()
    """Ranks that have a verdict."""
    culprits: tuple[Suspect, ...] = ()
    """The slow ranks among them."""
    lost_ns: Floats = field(default_factory=lambda: np.zeros(0))
    """Time that all verdicts so far cost in each step; empty: none."""


@runtime_checkable
class Detector(Protocol):
    """Finds slow or stuck ranks, slow links, or steps in which the whole job was slow."""

    name: str
    """The same id in evidence, `skipped`, `--method` and docs/methods."""
    needs: Needs

    def detect(self, job: Observed, so_far: SoFar) -> Iterable[Finding]:
        """Everything it finds in this window."""
        ...


@dataclass(frozen=True)
class Explained:
    """What one explanation says about a suspect: its cause, or only evidence if that is None."""

    cause: Cause | None
    strength: Strength
    evidence: tuple[Evidence, ...] = ()
    share: float | None = None
    """The part of the excess that it explains; None if not known."""
    needed: float = 0.5
    """From this share on it counts as explaining most of the excess."""
    function: str | None = None
    kernels: tuple[str, ...] = ()
    phase: str | None = None
    """A phase more specific than the one in which the rank was found to be slow."""
    slowdown: float | None = None
    """How many times longer the rank takes in that phase than its peers."""
    whole_rank: bool = False
    """Whether the cause concerns all work of the rank, so that no phase is named."""
    proven: bool = False
    """Whether the cause itself was measured, and not only where the time goes."""
    of_gpu: bool = False
    """Whether others compete for the GPU, and not for the host."""
    beside: tuple[int, ...] = ()
    """All ranks of the host that the same cause slows down, where that was measured."""
    context: tuple[Evidence, ...] = ()
    """Evidence that is shown only with the chosen explanation."""
    agrees: bool = False
    """Whether function, kernels and evidence are added to any explanation of the same cause."""
    always: bool = False
    """Whether the evidence is shown whatever the cause is."""


@runtime_checkable
class Explanation(Protocol):
    """Explains why a suspect is slow."""

    name: str
    causes: tuple[Cause, ...]
    needs: Needs

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        """The cause of the suspect's excess by this explanation; None where it does not apply."""
        ...

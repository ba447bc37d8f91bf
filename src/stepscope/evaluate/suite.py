"""The parts of every suite: rows of the result table, and the jobs counted in each row."""

from __future__ import annotations

import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepscope.errors import UsageError
from stepscope.evaluate.draw import Form, draw, shuffled
from stepscope.evaluate.layouts import strategy_of
from stepscope.simulate import Scenario

HEALTHY = "healthy"
"""Prefix of the rows whose jobs have no fault."""
LOOKS = (2, 5, 10, 15, 20, 30, 45)
"""Numbers of steps after the onset at which the job is diagnosed again; the steps to verdict are
one of these."""

LARGE = 2048
"""From this many ranks on, a job of fifty steps needs 10 to 40 GB if it goes through the wire."""


@dataclass(frozen=True)
class Case:
    """One job to diagnose. `row` is the row of the table in which it is counted."""

    row: str
    family: str
    scenario: Scenario
    dimensions: int
    form: str = ""
    """The form of the fault, if the row covers several."""
    looks: tuple[int, ...] = LOOKS
    group: str = ""
    """A group that is accepted as an answer instead of its culprits, because the paper's own
    diagnosis got no further."""
    size: int = 0
    """The nominal size, if the layout needs a different number of ranks; 0: the job's own size."""

    @property
    def nominal(self) -> int:
        """The size under which the job is counted."""
        return self.size or self.scenario.ranks

    @property
    def id(self) -> str:
        scenario = self.scenario
        layout = f"{scenario.ranks} ranks, {self.dimensions}D {strategy_of(scenario)}"
        return f"{self.row} / {layout} / seed {scenario.seed}"


@dataclass(frozen=True)
class Suite(ABC):
    """A set of jobs. The same row and seed always give the same jobs, whatever else is added."""

    name: str
    help: str
    seeds: int
    """How many seeds are run by default."""

    @property
    def by_wire(self) -> bool:
        """Whether its jobs are small enough to go through wire, processor and store; else they are
        diagnosed as with `--fast`."""
        return True

    @property
    @abstractmethod
    def rows(self) -> Sequence[str]:
        """The rows of the table; `--family` matches their beginnings."""

    @abstractmethod
    def cases(self, row: str, seed: int) -> Iterator[Case]:
        """The jobs of one row and seed; none if the row's fault fits no job of the suite."""


def first_that_fits(
    forms: Iterable[Form], layouts: Iterable[int], make: Callable[[Form, int], Case]
) -> Iterator[Case]:
    """One job, from the first combination of form and layout that is valid."""
    for dimensions, form in itertools.product(layouts, forms):
        try:
            yield make(form, dimensions)
        except UsageError:
            continue  # try another layout, e.g. one with experts or a pipeline
        return


def with_fault(row: str, form: Form, job: Scenario, onset: int, dimensions: int) -> Case:
    """The job with a fault of this form, drawn for the row.

    Raises:
        UsageError: no such fault fits the job.
    """
    fault = draw(form, job, onset, (job.seed, row))
    scenario = replace(job, name=row.replace(" ", "-"), faults=(fault,))
    return Case(row, form.family, scenario, dimensions, form.name)


def drawn_order(forms: Sequence[Form], row: str, seed: int) -> list[Form]:
    """The forms in the order in which they are tried."""
    names = {form.name: form for form in forms}
    return [names[name] for name in shuffled(names, (seed, row))]


def place(row: str, what: str, turn: int) -> int:
    """An index that advances with `turn` and starts at a different value for each row."""
    return zlib.crc32(f"{what} of {row}".encode()) + turn

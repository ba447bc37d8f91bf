"""What every suite is made of: rows of a table, and jobs that count in them."""

from __future__ import annotations

import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepscope.errors import UsageError
from stepscope.evaluate.draw import Form, draw, shuffled
from stepscope.evaluate.layouts import way_of
from stepscope.simulate import Scenario

HEALTHY = "healthy"
"""Rows of jobs in which nothing is wrong begin with this."""
LOOKS = (2, 5, 10, 15, 20, 30, 45)
"""After so many steps with the fault a look is taken; time to verdict is one of these."""

LARGE = 2048
"""From so many ranks on a job of fifty steps needs 10 to 40 GB by wire."""


@dataclass(frozen=True)
class Case:
    """One job to diagnose. `row` is the line of the table that it counts in."""

    row: str
    family: str
    scenario: Scenario
    dimensions: int
    form: str = ""
    """Which form of the fault this is, where the row holds several."""
    looks: tuple[int, ...] = LOOKS
    group: str = ""
    """A group of ranks that is as good an answer as the ranks: as far as the paper came itself."""
    size: int = 0
    """The size that it stands for, where its layout divides another number of ranks; 0: its own."""

    @property
    def nominal(self) -> int:
        """The size that it counts for."""
        return self.size or self.scenario.ranks

    @property
    def id(self) -> str:
        one = self.scenario
        layout = f"{one.ranks} ranks, {self.dimensions}D {way_of(one)}"
        return f"{self.row} / {layout} / seed {one.seed}"


@dataclass(frozen=True)
class Suite(ABC):
    """Jobs with a purpose. Equal rows and seeds give equal jobs, whatever else there is."""

    name: str
    help: str
    seeds: int
    """How many are run unless told otherwise."""

    @property
    def by_wire(self) -> bool:
        """Whether its jobs can go the whole way; else they are diagnosed as with `--fast`."""
        return True

    @property
    @abstractmethod
    def rows(self) -> Sequence[str]:
        """Lines of the table; words of the command line are what they begin with."""

    @abstractmethod
    def cases(self, row: str, seed: int) -> Iterator[Case]:
        """The jobs of a row, of one seed; none, if what the row is about fits none."""


def first_that_fits(
    forms: Iterable[Form], layouts: Iterable[int], make: Callable[[Form, int], Case]
) -> Iterator[Case]:
    """One job: with the first of these forms of a fault, in the first layout, that go together."""
    for dimensions, form in itertools.product(layouts, forms):
        try:
            yield make(form, dimensions)
        except UsageError:
            continue  # another layout, as one with experts or a pipeline
        return


def with_fault(row: str, form: Form, job: Scenario, onset: int, dimensions: int) -> Case:
    """The job with a fault of this form, drawn for the row.

    Raises:
        UsageError: none fits.
    """
    fault = draw(form, job, onset, (job.seed, row))
    scenario = replace(job, name=row.replace(" ", "-"), faults=(fault,))
    return Case(row, form.family, scenario, dimensions, form.name)


def drawn_order(forms: Sequence[Form], row: str, seed: int) -> list[Form]:
    """Which of several forms is tried first."""
    names = {form.name: form for form in forms}
    return [names[name] for name in shuffled(names, (seed, row))]


def place(row: str, what: str, turn: int) -> int:
    """Which of several has its turn, for each row from another one on."""
    return zlib.crc32(f"{what} of {row}".encode()) + turn

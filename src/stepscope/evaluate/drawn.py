"""Suites with every fault that the simulator knows, at locations drawn by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from stepscope.errors import UsageError
from stepscope.evaluate.draw import Form, Key, all_forms, draw, shuffled
from stepscope.evaluate.layouts import job, strategies_with
from stepscope.evaluate.suite import (
    HEALTHY,
    LARGE,
    LOOKS,
    Case,
    Suite,
    drawn_order,
    first_that_fits,
    place,
    with_fault,
)
from stepscope.simulate import Fault, Scenario
from stepscope.simulate.scenario import Detail
from stepscope.simulate.world import World

TWO = "two faults at once"
AFTER = "hang after a slowdown"


@dataclass(frozen=True)
class DrawnSuite(Suite):
    """Sizes, layouts and strategies change from seed to seed, in the given orders. Each row starts
    at another layout and strategy, so that a size does not always have the same layout.

    Faults begin after `onset` steps: L1 needs twenty steps before and after a change, and the first
    five are warm-up.
    """

    ranks: tuple[int, ...]
    dimensions: tuple[int, ...]
    """How many of dp, tp, pp, ep and cp are above 1."""
    steps: int
    onset: int
    healthy: int
    """Healthy jobs per seed."""
    every_form: bool = True
    """Whether each form of a fault has its own row; else one form is drawn for each seed."""
    detail: Detail = "auto"
    looks: tuple[int, ...] = LOOKS
    """Each repetition costs a diagnosis."""
    sizes_by_row: bool = False
    """Whether each row also starts at another size, so that a single seed covers all sizes."""

    @property
    def by_wire(self) -> bool:
        return max(self.ranks) < LARGE

    @property
    def rows(self) -> Sequence[str]:
        return (HEALTHY, *self._forms, TWO, AFTER)

    def cases(self, row: str, seed: int) -> Iterator[Case]:
        if row == HEALTHY:
            yield from self._healthy(seed)
        elif row in (TWO, AFTER):
            yield from self._composed(row, seed)
        else:
            yield from self._faulty(row, seed)

    @property
    def _forms(self) -> Mapping[str, tuple[Form, ...]]:
        """The rows of faults, and the forms that are counted in each."""
        forms = all_forms()
        if self.every_form:
            return {form.name: (form,) for form in forms}
        names = dict.fromkeys(form.fault for form in forms)
        return {name: tuple(form for form in forms if form.fault == name) for name in names}

    def _healthy(self, seed: int) -> Iterator[Case]:
        """Each has its own seed; dense, with experts, and with variable inputs in turn."""
        for number in range(self.healthy):
            turn = seed * self.healthy + number
            dimensions = self._layouts(HEALTHY, turn)[0]
            scenario = self._job(HEALTHY, turn, 1000 * seed + number, dimensions)
            if number % 3 == 2 and scenario.workload.kind == "dense":
                varied = replace(scenario.workload, kind="variable")
                scenario = replace(scenario, workload=varied)
            yield Case(HEALTHY, "nothing is wrong", replace(scenario, name=HEALTHY), dimensions,
                       looks=self.looks)  # fmt: skip

    def _faulty(self, row: str, seed: int) -> Iterator[Case]:
        def make(form: Form, dimensions: int) -> Case:
            scenario = self._job(row, seed, seed, dimensions)
            case = with_fault(row, form, scenario, self.onset, dimensions)
            return replace(case, looks=self.looks)

        forms = drawn_order(self._forms[row], row, seed)
        yield from first_that_fits(forms, self._layouts(row, seed), make)

    def _composed(self, row: str, seed: int) -> Iterator[Case]:
        for dimensions in self._layouts(row, seed):
            scenario = self._job(row, seed, seed, dimensions)
            with suppress(UsageError):
                faults = self._two_faults(row, scenario, (seed, row))
                family = "composed: " + " + ".join(one.name for one in faults)
                named = replace(scenario, name=row.replace(" ", "-"), faults=faults)
                yield Case(row, family, named, dimensions, row, self.looks)
                return

    def _two_faults(self, row: str, scenario: Scenario, key: Key) -> tuple[Fault, ...]:
        slow = _any_fault("slowdown", scenario, self.onset, (*key, "first"))
        if row == TWO:
            second = (*key, "second")
            return slow, _any_fault("slowdown", scenario, self.onset, second, besides=slow.name)
        return slow, _any_fault("hang", scenario, (self.onset + self.steps) // 2, (*key, "second"))

    def _layouts(self, row: str, turn: int) -> list[int]:
        """All layouts, starting with the one whose turn it is."""
        first = self.dimensions[place(row, "layout", turn) % len(self.dimensions)]
        return [first, *(other for other in (3, 4, 2, 5, 1) if other != first)]

    def _job(self, row: str, turn: int, seed: int, dimensions: int) -> Scenario:
        at = place(row, "size", turn) if self.sizes_by_row else turn
        ranks, strategies = self.ranks[at % len(self.ranks)], strategies_with(dimensions)
        strategy = strategies[place(row, "way", turn) % len(strategies)]
        return job(ranks, self.steps, seed, dimensions, strategy, self.detail)


def _any_fault(kind: str, scenario: Scenario, onset: int, key: Key, besides: str = "") -> Fault:
    """A fault of particular ranks, of any form that fits the job.

    Raises:
        UsageError: none fits.
    """
    forms = {form.name: form for form in all_forms()}
    for name in shuffled(forms, key):
        with suppress(UsageError):
            fault = draw(forms[name], scenario, onset, key)
            blame = fault.blame(World(scenario))
            if blame.kind == kind and blame.ranks and fault.name != besides:
                return fault
    raise UsageError(f"no {kind} fits {scenario.ranks} ranks")

"""Draws faults for a job from the simulator's registry, so new faults are tested automatically.

A fault with several forms (it can hit the forward pass or a transfer, for example) is drawn in each
of them. All other parameters of a fault keep their defaults.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate import FAULTS, Fault, Scenario
from stepscope.simulate.faults.hang import PLACES
from stepscope.simulate.faults.irregular import DEVICES, TYPES
from stepscope.simulate.parse import is_required
from stepscope.simulate.world import World

FORMS: Mapping[str, tuple[str, ...]] = {
    "at": tuple(PLACES),
    "device": DEVICES,
    "type": tuple(TYPES),
}
"""The values that a field of this name can have, if its default is one of them."""
OPTIONAL_TARGETS = ("ranks", "replicas")
"""If such a field is optional, the fault has two forms: with and without a particular target."""
DELAY_MS = (50.0, 30_000.0)
"""VenusTrace, section 5.1: slowdowns in this range, drawn evenly on a logarithmic scale."""


@dataclass(frozen=True)
class Form:
    """A fault of the registry together with the parameters that distinguish this form of it."""

    fault: str
    given: tuple[tuple[str, str], ...] = ()
    target: str = ""
    """The optional field that names the affected ranks or replicas, if this form sets it."""

    @property
    def name(self) -> str:
        words = [self.fault, *(value for _, value in self.given)]
        return " ".join([*words, *([f"of one {self.target[:-1]}"] if self.target else [])])

    @property
    def family(self) -> str:
        """Where the fault comes from: the paper and section, as in the registry."""
        return FAULTS[self.fault].family


def all_forms() -> tuple[Form, ...]:
    """Every form of every fault, in the registry's order. Some forms fit no job."""
    return tuple(form for name in FAULTS for form in forms_of(name))


def forms_of(name: str) -> Iterator[Form]:
    known = fields(FAULTS[name])
    varied = [one.name for one in known if one.default in FORMS.get(one.name, ())]
    for values in itertools.product(*(FORMS[one] for one in varied)):
        yield Form(name, tuple(zip(varied, values, strict=True)))
    for one in known:
        if one.name in OPTIONAL_TARGETS and not is_required(one):
            yield Form(name, target=one.name)


Key = tuple[str | int, ...]
"""What a draw is for. Draws with different keys are independent, so adding a fault, a field or a
host changes no other job."""

T = TypeVar("T", str, int)


def shuffled(names: Iterable[T], key: Key) -> list[T]:
    """The names in an order drawn for this key; an additional name leaves the others in order."""
    return sorted(names, key=lambda one: _number((*key, one)))


def _number(key: Key) -> int:
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def draw(form: Form, scenario: Scenario, onset: int, key: Key) -> Fault:
    """Draws a fault of this form that fits the job.

    Raises:
        UsageError: no such fault fits, or it has a required field that cannot be drawn here.
    """
    why = UsageError(f"no {form.name} fits {scenario.ranks} ranks")
    for attempt in range(_ATTEMPTS):
        fault = _drawn(form, World(scenario), onset, (*key, form.name, attempt))
        try:
            fault.check(World(scenario))
        except UsageError as error:
            why = error
        else:
            return fault
    raise why


_ATTEMPTS = 16
"""Enough that a fault limited to one stage in four fails to be drawn less than once in a hundred
tries."""


def _drawn(form: Form, world: World, onset: int, key: Key) -> Fault:
    kind = FAULTS[form.fault]
    values: dict[str, Any] = dict(form.given)
    for one in fields(kind):
        if one.name not in values and _is_drawn(one, form):
            values[one.name] = _value(one.name, kind, world, (*key, one.name))
    if kind.name == "delay":
        low, high = np.log(DELAY_MS)
        source = np.random.default_rng(_number((*key, "ms")))
        values["ms"] = float(np.exp(source.uniform(low, high)))
    fault = kind(**values)
    # a fault that ends by itself, such as compilation at the start, sets its own time
    return fault if fault.until is not None else replace(fault, onset=onset)


def _is_drawn(one: Field[Any], form: Form) -> bool:
    return is_required(one) or one.name in ("rank", form.target)


def _value(name: str, kind: type[Fault], world: World, key: Key) -> Any:
    if name in _NUMBERED:
        chosen = shuffled(range(_NUMBERED[name](world)), key)[0]
        return chosen if name == "rank" else (chosen,)
    if name == "hosts":
        return (shuffled(world.cluster.host_names, key)[0],)
    if name == "switch":
        return shuffled([f"leaf-{leaf}" for leaf in range(world.cluster.leaves)], key)[0]
    raise UsageError(f"{kind.name} needs {name}, which no suite can draw")


_NUMBERED: Mapping[str, Callable[[World], int]] = {
    "rank": lambda world: world.scenario.ranks,
    "ranks": lambda world: world.scenario.ranks,
    "replicas": lambda world: world.scenario.dp,
}
"""Fields whose values are indices, and how many indices there are."""

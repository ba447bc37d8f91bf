"""Faults for a job, drawn from the simulator's registry: what is added there is tried here.

A fault with several forms, as one that may strike in the forward pass or in a transfer, is drawn
in each of them. Everything else that a fault can be told keeps its default.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate import FAULTS, Fault, Scenario
from stepscope.simulate.faults.hang import PLACES
from stepscope.simulate.faults.irregular import DEVICES, TYPES
from stepscope.simulate.world import World

FORMS: Mapping[str, tuple[str, ...]] = {
    "at": tuple(PLACES),
    "device": DEVICES,
    "type": tuple(TYPES),
}
"""What a field of this name can be, where its default is one of these."""
SOMEBODY = ("ranks", "replicas")
"""Where such a field may be left out, a fault strikes nobody in particular: two forms."""
DELAY_MS = (50.0, 30_000.0)
"""VenusTrace, section 5.1: slowdowns between these, drawn evenly on a logarithmic scale."""


@dataclass(frozen=True)
class Form:
    """One kind of trouble: a fault of the registry, and what makes this form of it."""

    fault: str
    given: tuple[tuple[str, str], ...] = ()
    somebody: str = ""
    """The field that names who has it, where that could be left out."""

    @property
    def name(self) -> str:
        words = [self.fault, *(value for _, value in self.given)]
        return " ".join([*words, *([f"of one {self.somebody[:-1]}"] if self.somebody else [])])

    @property
    def family(self) -> str:
        """Where the fault comes from, in the registry's words."""
        return FAULTS[self.fault].family


def all_forms() -> tuple[Form, ...]:
    """Every form of every fault, in the registry's order. Some fit no job at all."""
    return tuple(form for name in FAULTS for form in forms_of(name))


def forms_of(name: str) -> Iterator[Form]:
    known = fields(FAULTS[name])
    varied = [one.name for one in known if one.default in FORMS.get(one.name, ())]
    for values in itertools.product(*(FORMS[one] for one in varied)):
        yield Form(name, tuple(zip(varied, values, strict=True)))
    for one in known:
        if one.name in SOMEBODY and not _required(one):
            yield Form(name, somebody=one.name)


Key = tuple[str | int, ...]
"""What a draw is for: draws of different keys know nothing of one another, so that what is added
anywhere, a fault, a field or a host, changes no other job."""

T = TypeVar("T", str, int)


def shuffled(names: Iterable[T], key: Key) -> list[T]:
    """Names in an order drawn for this key; one more changes nothing among the others."""
    return sorted(names, key=lambda one: _number((*key, one)))


def _number(key: Key) -> int:
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def draw(form: Form, scenario: Scenario, onset: int, key: Key) -> Fault:
    """A fault of this form that fits the job.

    Raises:
        UsageError: none does, or it needs something that nobody here knows how to draw.
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
"""A fault of one stage in four is drawn in fewer but once in a hundred."""


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
    # a fault that ends by itself, as compilation at the start, knows its time
    return fault if fault.until is not None else replace(fault, onset=onset)


def _is_drawn(one: Field[Any], form: Form) -> bool:
    return _required(one) or one.name in ("rank", form.somebody)


def _required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _value(name: str, kind: type[Fault], world: World, key: Key) -> Any:
    if name in _NUMBERED:
        chosen = shuffled(range(_NUMBERED[name](world)), key)[0]
        return chosen if name == "rank" else (chosen,)
    if name == "hosts":
        return (shuffled(world.cluster.host_names, key)[0],)
    if name == "switch":
        return shuffled([f"leaf-{leaf}" for leaf in range(world.cluster.leaves)], key)[0]
    raise UsageError(f"{kind.name} needs {name}, and no suite knows what that may be")


_NUMBERED: Mapping[str, Callable[[World], int]] = {
    "rank": lambda world: world.scenario.ranks,
    "ranks": lambda world: world.scenario.ranks,
    "replicas": lambda world: world.scenario.dp,
}
"""Fields whose values are counted, and how many there are."""

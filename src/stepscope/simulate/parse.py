"""Parses scenarios and faults: TOML files, and `name:key=value,…` on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

from stepscope.errors import UsageError
from stepscope.simulate.faults import FAULTS, Fault
from stepscope.simulate.scenario import (
    Hardware,
    Noise,
    Parallelism,
    Scenario,
    Workload,
    default_parallelism,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_ALIASES = {"from": "onset", "rank": "ranks", "host": "hosts", "replica": "replicas"}
"""Keys that stand for a field. `rank` is not replaced if the fault has a field `rank`."""
_SEPARATOR = "+"
"""Separates several values of one key on the command line: `ranks=3+4`."""


def parse_scenario(text: str) -> Scenario:
    """Parses a scenario in TOML.

        ranks = 64
        [parallelism]
        tp = 4
        [[fault]]
        name = "gpu_slow"
        rank = 37

    Raises:
        UsageError: it is not TOML, or has an unknown key or value.
    """
    return from_values(read_toml(text))


def read_toml(text: str) -> dict[str, Any]:
    """The plain values of a TOML text.

    Raises:
        UsageError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this scenario is not valid TOML: {error}") from error


def from_values(data: Mapping[str, Any]) -> Scenario:
    """Builds a scenario from plain values; its faults may be objects already."""
    rest = dict(data)
    faults = tuple(_fault_of(one) for one in _tables(rest.pop("fault", [])))
    sections = {"hardware": Hardware, "workload": Workload, "noise": Noise}
    built: dict[str, Any] = {
        name: _build(kind, rest.pop(name, {}), name) for name, kind in sections.items()
    }
    ranks = rest.get("ranks", Scenario.ranks)
    if not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"ranks={ranks} must be 1 or more")
    usual = default_parallelism(ranks)
    asked = rest.pop("parallelism", {})
    named = {"tp", "pp", "cp", "ep"} & set(asked)
    degrees = {} if named else {"tp": usual.tp, "pp": usual.pp}
    built["parallelism"] = _build(Parallelism, {**degrees, **asked}, "parallelism")
    return _build(Scenario, rest, "the scenario", {**built, "faults": faults})


def parse_fault(text: str) -> Fault:
    """Parses `gpu_slow:rank=37,factor=1.5,from=50`; several values are joined with `+`.

    Raises:
        UsageError: the fault, a key or a value is unknown.
    """
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{text}: {pair} is not key=value")
        values[key.strip()] = value.strip()
    return make_fault(name.strip(), values)


def make_fault(name: str, values: Mapping[str, Any]) -> Fault:
    """Builds a fault from its name and its fields, given as text or as plain values."""
    if name not in FAULTS:
        raise UsageError(f"no fault is called {name}; `--list-faults` explains all of them: "
                         f"{', '.join(FAULTS)}")  # fmt: skip
    return _build(FAULTS[name], values, name)


def _fault_of(data: Mapping[str, Any] | Fault) -> Fault:
    if isinstance(data, Fault):
        return data
    rest = dict(data)
    name = rest.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"every [[fault]] needs a name, one of {', '.join(FAULTS)}")
    return make_fault(name, rest)


def _tables(value: Any) -> list[Mapping[str, Any] | Fault]:
    if not isinstance(value, list) or not all(isinstance(one, dict | Fault) for one in value):
        raise UsageError("write each fault as a table of its own: [[fault]]")
    return value


def _build(
    kind: type[T], values: Any, where: str, ready: Mapping[str, Any] | None = None
) -> T:  # fmt: skip
    """An instance of a dataclass from plain values; `ready` holds fields that are built already."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{where} must be a table of keys, not {values!r}")
    hints = get_type_hints(kind, localns={"Fault": Fault})
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    found = dict(ready or {})
    for key, value in values.items():
        name = _ALIASES[key] if key in _ALIASES and key not in known else key
        if name not in known or name in found:
            free = [one for one in known if one not in (ready or {})]
            raise UsageError(f"{where} has no key {key}; its keys are {', '.join(free)}")
        found[name] = _value(hints[name], value, f"{where}: {key}")
    missing = [name for name, field in known.items() if name not in found and is_required(field)]
    if missing:
        raise UsageError(f"{where} needs {', '.join(missing)}")
    return kind(**found)


def is_required(field: Field[Any]) -> bool:
    """Whether a value has to be given."""
    return field.default is MISSING and field.default_factory is MISSING


def _value(hint: Any, value: Any, where: str) -> Any:
    """Converts a value to the type of its field; text is parsed."""
    text = str(hint)
    if text.startswith("tuple["):
        parts = value.split(_SEPARATOR) if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        return tuple(_value(hint.__args__[0], one, where) for one in parts)
    kinds = [
        one for one in (bool, int, float) if one is hint or one in getattr(hint, "__args__", ())
    ]
    if not kinds:
        return _word(hint, value, where)
    return _number(kinds[0], value, where)


def _word(hint: Any, value: Any, where: str) -> str:
    choices = [one for one in getattr(hint, "__args__", ()) if isinstance(one, str)]
    if not isinstance(value, str) or (choices and value not in choices):
        wanted = f"one of {', '.join(choices)}" if choices else "a word"
        raise UsageError(f"{where}={value} is not {wanted}")
    return value


_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def _number(kind: type[bool] | type[int] | type[float], value: Any, where: str) -> Any:
    if kind is bool:
        found = _WORDS.get(str(value).lower())
        if found is None:
            raise UsageError(f"{where}={value} is neither true nor false")
        return found
    try:
        number = float(value)
        if isinstance(value, bool) or (kind is int and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        wanted = "a whole number" if kind is int else "a number"
        raise UsageError(f"{where}={value} is not {wanted}") from error
    return kind(number)

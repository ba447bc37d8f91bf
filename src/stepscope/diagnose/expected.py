"""What a healthy job's functions are expected to do: ranges of beta, mu, sigma and time per step.

`learned` ranges come from the user's own healthy jobs (`stepscope baseline`); where there are none,
`account.ranges` has the shipped ones. The file format is described in docs/operations.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FORMAT, VERSION = "stepscope-expected", 1
MOST_FUNCTIONS = 10_000
"""With more functions than this it is not a baseline of ours."""
LONGEST_NAME = 10_000
ENOUGH_WINDOWS = 5
"""From this many windows on, learned ranges are as good as they get: the largest of five healthy
windows is exceeded by one in six. Statistics."""


class Range(NamedTuple):
    """From the lowest to the highest value that is expected."""

    low: float
    high: float


class Key(NamedTuple):
    """A function wherever it runs: its line may move from one version to the next."""

    kind: str
    name: str
    file: str


@dataclass(frozen=True)
class Ranges:
    """What is expected of one function; None: not known."""

    beta: Range
    mu: Range | None = None
    sigma: Range | None = None
    step_ns: Range | None = None
    """Its time per step on the critical path."""


@dataclass(frozen=True)
class Expected:
    """What was learned from healthy jobs; nothing by default."""

    functions: Mapping[Key, Ranges] = field(default_factory=dict)
    jobs: int = 0
    windows: int = 0
    step_ns: Range | None = None
    """How long a step takes outside of profiled steps."""
    uneven: Range | None = None
    """How much the time in kernels scatters over ranks with the same role, as a share of it."""

    def of(self, key: Key) -> Ranges | None:
        return self.functions.get(key)


NOTHING = Expected()


class InvalidBaselineError(ValueError):
    """The bytes are not a baseline of ours; the message says why."""


def to_json(expected: Expected) -> dict[str, Any]:
    """Plain values for a JSON file."""
    rows = [{**key._asdict(), **_ranges_to_json(ranges)}
            for key, ranges in sorted(expected.functions.items())]  # fmt: skip
    return {
        "format": FORMAT, "version": VERSION, "jobs": expected.jobs, "windows": expected.windows,
        "step_ns": None if expected.step_ns is None else list(expected.step_ns),
        "uneven": None if expected.uneven is None else list(expected.uneven),
        "functions": rows,
    }  # fmt: skip


def _ranges_to_json(ranges: Ranges) -> dict[str, Any]:
    return {name: None if value is None else [float(f"{one:.6g}") for one in value]
            for name, value in vars(ranges).items()}  # fmt: skip


def from_json(data: Any) -> Expected:
    """Reads what `to_json` wrote; the file may come from anywhere.

    Raises:
        InvalidBaselineError: it is something else.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidBaselineError(f"it has no format {FORMAT}")
    if data.get("version") != VERSION:
        raise InvalidBaselineError(f"its version is {data.get('version')!r}, not {VERSION}")
    rows = data.get("functions")
    if not isinstance(rows, list) or len(rows) > MOST_FUNCTIONS:
        raise InvalidBaselineError(f"functions is no list of at most {MOST_FUNCTIONS}")
    functions = dict(map(_function, rows))
    step_ns = _range(data, "step_ns", math.inf, optional=True)
    uneven = _range(data, "uneven", math.inf, optional=True)
    return Expected(functions, _count(data, "jobs"), _count(data, "windows"), step_ns, uneven)


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidBaselineError(f"{name} is {value!r}, not a count")
    return value


def _function(row: Any) -> tuple[Key, Ranges]:
    if not isinstance(row, dict):
        raise InvalidBaselineError("a function is no object")
    words = [row.get(name) for name in Key._fields]
    if not all(isinstance(one, str) and len(one) <= LONGEST_NAME for one in words):
        raise InvalidBaselineError("a function has no kind, name and file")
    beta = _range(row, "beta", 1.0)
    if beta is None:
        raise InvalidBaselineError("a function has no range of beta")
    others = [_range(row, name, most, optional=True)
              for name, most in (("mu", 1.0), ("sigma", 1.0), ("step_ns", math.inf))]  # fmt: skip
    return Key(*map(str, words)), Ranges(beta, *others)


def _range(row: Mapping[str, Any], name: str, most: float, optional: bool = False) -> Range | None:
    value = row.get(name)
    if value is None and optional:
        return None
    if not _is_range(value, most):
        raise InvalidBaselineError(f"{name} is {value!r}, not a range within 0 to {most:g}")
    return Range(float(value[0]), float(value[1]))  # type: ignore[index]


def _is_range(value: Any, most: float) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    if any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in value):
        return False
    return math.isfinite(value[1]) and 0 <= value[0] <= value[1] <= most

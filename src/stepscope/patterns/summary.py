"""The patterns of one rank in one window, from a profiler's events.

    kernels > copies > collectives > operators > Python functions        with a device
    operators > collectives > waiting operators > Python functions       on processors only

A function is on the critical path while it runs and nothing of a higher class does (EROICA). On
processors the operators are the computation, so they take the place of the kernels. Those in which
others communicate (the gradient of a user's all-reduce, a hook of FSDP) may wait for that
themselves, so while communication is in progress their own time is no computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.patterns.activity import Activity, Lane, Span, joined_lanes
from stepscope.patterns.compiled import critical_ns
from stepscope.patterns.frames import LONGEST_NAME
from stepscope.patterns.rows import (
    COLLECTIVE,
    COPY,
    KERNEL,
    LEAST_BETA,
    OPERATOR,
    PYTHON,
    Pattern,
    Patterns,
    kept,
)
from stepscope.patterns.stacks import Functions, function_name, named_functions, nested
from stepscope.patterns.use import Series, Use, critical_use, own_use
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats, Ints, Mask, Strings, Table

COMMUNICATES = (
    "c10d::", "c10d_functional", "_c10d_functional", "gloo:", "nccl:", "rccl:", "mpi:", "ucc:",
    "record_param_comms",
)  # fmt: skip
"""Operators that call for communication count as such."""
CPU = "cpu"


@dataclass
class _Numbers:
    """Gives each function a number: all lanes share one sequence."""

    kind: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    _of: dict[tuple[str, str], int] = field(default_factory=dict)

    def of(self, kind: str, name: str) -> int:
        number = self._of.setdefault((kind, name), len(self.name))
        if number == len(self.name):
            self._add(kind, name, 0)
        return number

    def new(self, kind: str, name: str, calls: int) -> None:
        self._add(kind, name, calls)

    def _add(self, kind: str, name: str, calls: int) -> None:
        self.kind.append(kind)
        self.name.append(name)
        self.calls.append(calls)

    def count(self, numbers: Ints, calls: Ints | None = None) -> None:
        found = np.bincount(numbers, calls, len(self.name)).astype(np.int64)
        self.calls = (np.array(self.calls, np.int64) + found).tolist()


@dataclass(frozen=True)
class _Lanes:
    kernels: Lane
    copies: Lane
    collectives: Lane
    operators: Lane
    waiting: Lane
    """Operators in which others communicate."""
    python: Lane
    own_operators: Lane
    """Those of the training thread only."""
    functions: Functions | None
    first_function: int
    """The number of the first Python function."""


def summarize(activity: Activity, span: Span, use: Sequence[Series] = ()) -> Patterns:
    """The patterns of a rank in a window that are worth keeping."""
    return kept(patterns_of(activity, span, use))


def patterns_of(activity: Activity, span: Span, use: Sequence[Series] = ()) -> Patterns:
    """The patterns of all functions that are not too short, in any order.

    Args:
        use: samples of resources in order of time, the best of a resource first.
    """
    numbers = _Numbers()
    lanes = _lanes(activity.within(span), numbers)
    beta = _beta(lanes, activity.has_device, len(numbers.name), span)
    measured = _measured(lanes, numbers, use)
    callers = _Callers(lanes, beta)
    rows = [
        _pattern(number, numbers, float(beta[number]), lanes, measured, callers)
        for number in np.flatnonzero(beta >= LEAST_BETA).tolist()
    ]
    short = beta[(beta > 0) & (beta < LEAST_BETA)]
    return Patterns(span, tuple(rows), short.size, float(short.sum()))


def _lanes(activity: Activity, numbers: _Numbers) -> _Lanes:
    kernels = _plain(activity.kernels, KERNEL, numbers)
    copies = _plain(activity.copies, COPY, numbers)
    threads = [_operators(table, numbers) for table in activity.operators]
    collectives = [_plain(activity.collectives, COLLECTIVE, numbers)]
    collectives += [thread.talking for thread in threads]
    first = len(numbers.name)
    python, functions = _python(activity.python, numbers)
    return _Lanes(
        kernels, copies, joined_lanes(collectives),
        joined_lanes([thread.computing for thread in threads]),
        joined_lanes([thread.waiting for thread in threads]), python,
        threads[0].own if threads else Lane(), functions, first,
    )  # fmt: skip


def _plain(table: Table, kind: str, numbers: _Numbers) -> Lane:
    """Events of a device: each is an execution."""
    if not len(table):
        return Lane()
    of = _numbered(table.strings("name"), kind, numbers)
    numbers.count(of)
    start = table.ints("start_ns")
    return Lane(start, start + table.ints("duration_ns"), of)


@dataclass(frozen=True)
class _Thread:
    """The innermost operators of one thread."""

    computing: Lane
    waiting: Lane
    """Those in which others communicate."""
    talking: Lane
    """Those that communicate."""

    @property
    def own(self) -> Lane:
        return joined_lanes([self.computing, self.waiting])


def _operators(table: Table, numbers: _Numbers) -> _Thread:
    calls = nested(table)
    of = _numbered(Strings(calls.name.astype(np.int32), table.strings("name").values),
                   OPERATOR, numbers)  # fmt: skip
    numbers.count(of, calls.calls)
    is_talk = np.array([one == COLLECTIVE for one in numbers.kind] or [False], np.bool_)
    talks, around = is_talk[of], _around(is_talk[of], calls.parent)
    chosen = (~talks & ~around, ~talks & around, talks)
    lane = Lane(calls.start_ns, calls.end_ns, of[calls.stack])
    return _Thread(*(_chosen(lane, stacks[calls.stack]) for stacks in chosen))


def _around(stacks: Mask, parent: Ints) -> Mask:
    """The stacks that contain some of these."""
    found = np.zeros(stacks.shape, np.bool_)
    at = parent[stacks]
    while (at := np.unique(at[at >= 0])).size:
        found[at] = True
        at = parent[at]
    return found


def _numbered(names: Strings, kind: str, numbers: _Numbers) -> Ints:
    used = np.unique(names.codes)
    place = np.zeros(int(used.max(initial=-1)) + 1, np.int64)
    for code in used.tolist():
        name = names.values[code]
        talks = kind == OPERATOR and name.startswith(COMMUNICATES)
        place[code] = numbers.of(COLLECTIVE if talks else kind, name[:LONGEST_NAME])
    return place[names.codes]


def _chosen(lane: Lane, segments: Mask) -> Lane:
    if segments.all():
        return lane
    return Lane(lane.start_ns[segments], lane.end_ns[segments], lane.of[segments])


def _python(table: Table, numbers: _Numbers) -> tuple[Lane, Functions | None]:
    if not len(table):
        return Lane(), None
    calls, functions, of = named_functions(table)
    first = len(numbers.name)
    for at, number in zip(functions.function.tolist(), functions.calls.tolist(), strict=True):
        numbers.new(PYTHON, function_name(functions.frames[at]), number)
    return Lane(calls.start_ns, calls.end_ns, first + of[calls.stack]), functions


def _beta(lanes: _Lanes, has_device: bool, functions: int, span: Span) -> Floats:
    """Equation 2: the share of the window in which each function is on the critical path."""
    host = [lanes.collectives, lanes.operators]
    host = [*(host if has_device else host[::-1]), lanes.waiting]
    order = [lanes.kernels, lanes.copies, *host, lanes.python]
    classes = tuple(
        (
            np.ascontiguousarray(lane.start_ns).tobytes(),
            np.ascontiguousarray(lane.end_ns).tobytes(),
            lane.of.astype(np.int32).tobytes(),
        )
        for lane in order
    )
    times = np.frombuffer(critical_ns(classes, functions, span.start_ns, span.end_ns), np.int64)
    return np.asarray(times / max(span.length_ns, 1))


def _measured(lanes: _Lanes, numbers: _Numbers, use: Sequence[Series]) -> dict[str, Use]:
    """The use of each resource, by the functions that depend on it."""
    functions, found = len(numbers.name), dict[str, Use]()
    of_cpu = [one for one in use if one.resource == CPU]
    if of_cpu:
        found[CPU] = own_use((lanes.own_operators, lanes.python), functions, of_cpu)
    device = joined_lanes([lanes.kernels, lanes.copies, lanes.collectives])
    for one in use:
        if one.resource not in found and device.start_ns.size:
            found[one.resource] = critical_use(device, functions, one)
    return found


class _Callers:
    """The function of the user's code that most often runs what has no caller of its own."""

    def __init__(self, lanes: _Lanes, beta: Floats) -> None:
        self._of: dict[int, str] = {}
        functions, python, lane = lanes.functions, lanes.python, lanes.own_operators
        if functions is None or not lane.start_ns.size or not python.start_ns.size:
            return
        shown = np.flatnonzero((beta >= LEAST_BETA)[lane.of])
        at = np.searchsorted(python.start_ns, lane.start_ns[shown], side="right") - 1
        inside = (at >= 0) & (lane.start_ns[shown] < python.end_ns[np.maximum(at, 0)])
        shown, at = shown[inside], at[inside]
        by = python.of[at] - lanes.first_function
        own = np.array([frame.is_own for frame in functions.frames], np.bool_)
        itself = functions.function[by]
        caller = np.where(own[itself], itself, functions.caller[by])
        length = lane.end_ns[shown] - lane.start_ns[shown]
        for number in np.unique(lane.of[shown]).tolist():
            mine = (lane.of[shown] == number) & (caller >= 0)
            if mine.any():
                most = int(np.argmax(np.bincount(caller[mine], length[mine])))
                self._of[number] = functions.frames[most].as_caller

    def of(self, number: int) -> str | None:
        return self._of.get(number)


def _pattern(
    number: int, numbers: _Numbers, beta: float, lanes: _Lanes, measured: dict[str, Use],
    callers: _Callers,
) -> Pattern:  # fmt: skip
    kind, name = numbers.kind[number], numbers.name[number]
    location, caller, phase = None, callers.of(number), None
    if kind == PYTHON and lanes.functions is not None:
        at = number - lanes.first_function
        location, caller = _place(lanes.functions, at)
        phase = DATA_LOAD if lanes.functions.loads[at] else None
    resource, mu, sigma = _use_of(number, kind, name, measured)
    return Pattern(
        name, kind, beta, mu, sigma, location, caller, None, phase, resource, numbers.calls[number]
    )


def _place(functions: Functions, at: int) -> tuple[str | None, str | None]:
    """Where a Python function is defined, and its caller in the user's code."""
    caller = int(functions.caller[at])
    location = functions.frames[int(functions.function[at])].location
    return location, functions.frames[caller].as_caller if caller >= 0 else None


def _use_of(
    number: int, kind: str, name: str, measured: dict[str, Use]
) -> tuple[str | None, float | None, float | None]:
    for series in _resources(kind, name):
        use = measured.get(series)
        if use is not None and np.isfinite(use.mu[number]):
            return series.partition("_")[0], float(use.mu[number]), float(use.sigma[number])
    return None, None, None


def _resources(kind: str, name: str) -> Iterator[str]:
    """The resources that a function's speed depends on, the most telling first."""
    if kind in (PYTHON, OPERATOR):
        yield CPU
    elif kind == KERNEL:
        yield "sm"
    elif kind == COLLECTIVE:
        yield from ("nvlink", "pcie_tx", "nic")
    elif "HtoD" in name:
        yield "pcie_rx"
    elif "DtoH" in name:
        yield "pcie_tx"

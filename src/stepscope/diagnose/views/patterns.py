"""Runtime behaviour patterns as a grid: one row per function, one column per rank.

A function is a name, a kind, and where it is defined; calls from several places are added up. A
rank with any pattern in a window was profiled, so a function of which it has none took it no time.
Lossy: stepscope's own functions are left out, and those below one percent of the window on all
ranks; what ranks do themselves and what they wait for are summed before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.finding import Span
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.rounds import place_among
from stepscope.diagnose.views.frames import LOADER, TIMED, collects, compiles, is_ours, waits
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import ALLOCATION, DATA_LOAD
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window, numbered, rows_by

LEAST_BETA = 0.01
"""A function with less of the window matters to nobody; the paper's limit (section 4.3)."""
MOST_BETA = 1.001
"""Rounding of a writer; larger shares are impossible."""
ENGINE = "run_backward"
"""Part of names: the main thread stands here while autograd's threads work, and wait for others."""
SLEEP = "<built-in function sleep>"
COMMUNICATES = ("c10d", "gloo:", "nccl:", "record_param_comms", "Synchronize", "WaitEvent")
"""Parts of the names of operators that communicate, or wait for a device."""
PINS = "pin memory"
LOADS = (PINS, "loader worker")
"""Beginnings of the names of threads and processes that load data."""
TORCHS_MARKS = ("Optimizer.", "enumerate(DataLoader)#")
"""Beginnings of the names of PyTorch's own annotations that contain one kind of work."""
TORCHS_PASSES = ("DistributedDataParallel.", "FullyShardedDataParallel.", "FSDP::")
"""Beginnings of the names of PyTorch's annotations of whole passes."""
TORCHS_IN_C = ("torch", "Tensor", "Parameter", "pybind11", "autograd", "linear", "Generator")
"""Parts of the names of PyTorch's functions in C, whose module Python does not tell."""


@dataclass(frozen=True)
class Function:
    """One function of the job, as its ranks' profilers call it."""

    name: str
    kind: str
    location: str = ""
    """`file.py:123`, where it is defined."""
    caller: str = ""
    """The nearest caller in code of the user, where most of its time is spent."""
    thread: str = ""
    """Empty: the training thread."""
    resource: str = ""
    """What `mu` and `sigma` are shares of."""
    phase: str = ""
    """`data-load`, if it was called to load the next batch; empty otherwise, or unknown."""

    @property
    def trains(self) -> bool:
        """Whether the training thread runs it: what others do is beside the critical path."""
        return not self.thread

    @property
    def in_users_code(self) -> str:
        """The user's function that a person would look at, as call stacks name it.

        A function in C (reads a file, sorts) has no line, so its caller is what to look at.
        """
        theirs = any(word in self.name for word in TORCHS_IN_C)
        if self.kind != "python" or self.location or theirs:
            return self.frame
        where, _, name = self.caller.rpartition(" ")
        return f"{name} ({where})" if where else self.frame

    @property
    def frame(self) -> str:
        """The frame as call stacks name it: `recv_into (socket.py:707)`."""
        return f"{self.name} ({self.location})" if self.location else self.name

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks or for a device, so that it is no work of its own."""
        if self.kind == "collective":
            return True
        if self.kind == "operator":
            return any(word in self.name for word in COMMUNICATES)
        return self.kind == "python" and (ENGINE in self.name or waits(self.frame))

    @property
    def is_label(self) -> bool:
        """Whether it is no function but a label of the user's (`record_function`), which may
        contain anything, also waiting."""
        placed = self.location or self.caller or self.name.startswith("<")
        return self.kind == "python" and not placed and not self.name.startswith(TORCHS_MARKS)

    @property
    def is_pass(self) -> bool:
        """Whether it is PyTorch's label of a whole pass: who looks for a function is not helped."""
        return self.is_label and self.name.startswith(TORCHS_PASSES)

    @property
    def loads(self) -> bool:
        """Whether it is part of data loading."""
        if self.phase == DATA_LOAD:
            return True
        where = (self.name, self.location, self.caller)
        return self.thread.startswith(LOADS) or any(LOADER in one.lower() for one in where)

    @property
    def allocates(self) -> bool:
        """Whether it is the runtime's work on memory, which PyTorch asks for once and keeps."""
        return self.kind == "operator" and self.name == ALLOCATION

    @property
    def collects(self) -> bool:
        return self.kind == "python" and collects(self.frame)

    @property
    def compiles(self) -> bool:
        if self.kind == "operator":  # of Triton's kernels, which have its name, it is the launch
            return self.name.endswith(TIMED)
        return self.kind == "python" and compiles(self.frame)


@dataclass(frozen=True)
class Patterns:
    """The patterns of one window of profiling; a rank that was not profiled is NaN everywhere."""

    functions: tuple[Function, ...]
    beta: Floats
    """`[function, rank]`, share of the window on the critical path."""
    mu: Floats
    """`[function, rank]`, use of its resource; NaN where unknown."""
    sigma: Floats
    calls: Floats
    """`[function, rank]`, how often it was called; NaN where unknown."""
    own: Floats
    """By rank, the share of the window in which its training thread works itself."""
    steps: Span | None
    """First and last step, where they are known."""
    time_ns: Span
    step_ns: float | None
    """The median length of a step of the window, where its steps are known."""
    has_devices: bool
    """Whether kernels were recorded, however short all of them are."""

    @cached_property
    def rows(self) -> Ints:
        """The rows of the ranks that were profiled."""
        return np.flatnonzero(np.isfinite(self.own))

    def on_device(self, function: Function) -> bool:
        """Whether it computes: with devices, an operator only launches what does."""
        return function.kind == "kernel" or (function.kind == "operator" and not self.has_devices)

    @cached_property
    def sleeps(self) -> Mask:
        """Functions that are a sleep of the code that trains: it stands in for a device."""
        trains = {_place(one.caller) for one in self.functions if one.caller and _computes(one)}
        found = [one.name == SLEEP and _place(one.caller) in trains for one in self.functions]
        return np.array(found, np.bool_)

    def at(self, *kinds: str) -> Ints:
        """The functions of some kinds, as rows of the grid."""
        kind = [one.kind in kinds for one in self.functions]
        return np.flatnonzero(np.array(kind, np.bool_))


def _computes(one: Function) -> bool:
    return one.kind == "operator" or (one.kind == "python" and ENGINE in one.name)


def _place(caller: str) -> tuple[str, str]:
    """File and function of `train.py:45 main`, without the line."""
    where, _, name = caller.rpartition(" ")
    return where.rpartition(":")[0], name


def read_patterns(window: Window, line: Timeline) -> tuple[Patterns, ...]:
    """The windows of profiling in order of time; none where nobody profiled."""
    table = window.table("patterns")
    if table is None:
        return ()
    beta, row = table.floats("beta"), line.rows(table.ints("rank"))
    known = (row >= 0) & (beta >= 0) & (beta <= MOST_BETA)
    known &= (table.strings("kind").codes >= 0) & (table.strings("function").codes >= 0)
    if not known.any():
        return ()
    table, row = table.take(known), row[known]
    which = _window_of(table, row)
    parts = [_patterns(table.take(at), row[at], len(line.ranks)) for at in rows_by(which)]
    return tuple(sorted(parts, key=lambda one: one.time_ns))


def _window_of(table: Table, row: Ints) -> Ints:
    """The number of each row's window: by its first step, else the rank's first, second, ... one.

    Not by its last step: ranks that make more calls record fewer steps.
    """
    start = table.ints("window_start_ns")
    if table.has("first_step", "last_step"):
        first = table.ints("first_step")
        if (first != NULL).all():
            return numbered(first)
    return place_among(row, start)


def _patterns(table: Table, row: Ints, ranks: int) -> Patterns:
    number, first = _functions(table)
    names = [_function(table, int(at)) for at in first]
    cells, cell = len(first) * ranks, number * ranks + row
    beta = stats.sums(cell, table.floats("beta"), cells).reshape(len(first), ranks)
    waits_for = np.array([one.waits for one in names], np.bool_)
    trains = np.array([not one.thread for one in names], np.bool_)
    own = beta[trains & ~waits_for].sum(axis=0)
    profiled: Mask = np.bincount(row, minlength=ranks) > 0
    ours = np.array([is_ours(one.location) for one in names], np.bool_)
    kept = np.flatnonzero((beta >= LEAST_BETA).any(axis=1) & ~ours)
    place = np.full(len(first), -1)
    place[kept] = np.arange(len(kept))
    at, chosen = place[number] * ranks + row, place[number] >= 0
    beta = np.where(profiled, np.minimum(beta[kept], 1.0), np.nan)
    begin, lasted = table.ints("window_start_ns"), table.ints("window_ns")
    mu, sigma = (_spread(table, name, at, chosen, beta.shape) for name in ("mu", "sigma"))
    steps, step_ns = _steps(table)
    return Patterns(
        tuple(_with_caller(table, number, names, kept)), beta, mu, sigma,
        _calls(table, at, chosen, beta.shape),
        np.where(profiled, own, np.nan), steps,
        (int(begin.min()), int((begin + lasted).max())), step_ns,
        any(one.kind == "kernel" for one in names),
    )  # fmt: skip


KEYS = ("kind", "function", "location", "thread", "phase")


def _functions(table: Table) -> tuple[Ints, Ints]:
    """The number of each row's function, and a row of each function."""
    codes = [table.strings(name).codes.astype(np.int64) for name in KEYS if table.has(name)]
    number = numbered(*codes)
    return number, np.unique(number, return_index=True)[1]


def _function(table: Table, at: int) -> Function:
    words = (_word(table, name, at) for name in ("function", "kind", "location", "caller",
                                                 "thread", "resource", "phase"))  # fmt: skip
    return Function(*words)


def _word(table: Table, name: str, at: int) -> str:
    return (table.strings(name)[at] or "") if table.has(name) else ""


def _with_caller(
    table: Table, number: Ints, names: list[Function], kept: Ints
) -> Iterator[Function]:  # fmt: skip
    """The functions that are kept, each with the caller under which it took most time."""
    if not table.has("caller"):
        yield from (names[at] for at in kept)
        return
    callers: Strings = table.strings("caller")
    size = len(callers.values)
    known = callers.codes >= 0
    spent = stats.sums(
        number[known] * size + callers.codes[known], table.floats("beta")[known],
        len(names) * max(size, 1),
    ).reshape(len(names), -1)  # fmt: skip
    for at in kept.tolist():
        one, most = names[at], int(np.argmax(spent[at])) if size else 0
        caller = callers.values[most] if size and spent[at, most] > 0 else ""
        yield replace(one, caller=caller)


def _spread(table: Table, name: str, at: Ints, chosen: Mask, shape: tuple[int, ...]) -> Floats:
    """A column by function and rank; of several rows of one function, the mean by their shares."""
    found = np.full(shape, np.nan)
    if not table.has(name):
        return found
    values = table.floats(name)
    chosen = chosen & np.isfinite(values)
    weight = np.maximum(table.floats("beta")[chosen], 1e-9)
    cells = shape[0] * shape[1]
    total = stats.sums(at[chosen], weight, cells)
    mean = stats.sums(at[chosen], weight * values[chosen], cells) / np.maximum(total, 1e-12)
    return np.where(total > 0, mean, np.nan).reshape(shape)


def _calls(table: Table, at: Ints, chosen: Mask, shape: tuple[int, ...]) -> Floats:
    """How often each function was called on each rank; NaN where unknown."""
    if not table.has("calls"):
        return np.full(shape, np.nan)
    calls, cells = table.ints("calls"), shape[0] * shape[1]
    chosen = chosen & (calls != NULL)
    total = stats.sums(at[chosen], calls[chosen], cells)
    known = np.bincount(at[chosen], minlength=cells) > 0
    return np.where(known, total, np.nan).reshape(shape)


def _steps(table: Table) -> tuple[Span | None, float | None]:
    """The first and the last step of the windows, and how long a step lasted in the median one."""
    if not table.has("first_step", "last_step"):
        return None, None
    first, last = table.ints("first_step"), table.ints("last_step")
    known = (first != NULL) & (last >= first)
    if not known.any():
        return None, None
    lasted = table.ints("window_ns")[known] / (last - first + 1)[known]
    return (int(first[known].min()), int(last[known].max())), stats.median(lasted)

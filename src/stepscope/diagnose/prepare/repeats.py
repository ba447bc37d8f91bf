"""Steps of a job that steps no optimizer: what repeats on all ranks equally often is counted.

Fault: an update written by hand, or inference: without an optimizer's step the recorder sees one
step that lasts for the whole job, in which nothing can be compared.
Ours: EROICA (section 4.1) knows iterations of loaders and optimizers only. Here a step begins with
each batch that is loaded; without a loader it ends with each backward pass, and without passes with
each round of calls (`rounds`). The k-th one of a rank is step k. Used only where no optimizer was
stepped and all rows carry one or two numbers of steps.
Cost: the phases of one name. Cannot see: how many batches make a step, so that an update after
several of them is counted as several steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.prepare.rounds import FEW_STEPS, LEAST_ROUNDS, MOST_UNLIKE, round_of_calls
from stepscope.trace.names import BACKWARD, DATA_LOAD, OPTIMIZER
from stepscope.window import NULL, Column, Ints, Strings, Table, Window, joined

OTHER_WORK = "between-operators"
"""The phase of ranks that train nothing, while they are in no operator: they act, score, read."""
DETAILED = ("kernels", "kernel_summaries", "host_ops")
"""Tables of traces: a trace of one or two steps is complete."""

Begins = Mapping[int, Ints]
"""When each rank began each step."""


def with_repeats(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window with steps, and a note on what was counted; the same window where steps are known,
    or nothing repeats."""
    phases = window.table("phases")
    if phases is None or not len(phases) or any(name in window.tables for name in DETAILED):
        return window, ()
    if _some_lack_steps(window) and _repeats(begins := _of_calls(window), window.ranks):
        note = Skipped("steps", "some ranks step no optimizer; rounds of calls are counted instead")
        return _numbered(_with_gaps(window, phases), begins), (note,)
    if not _lacks_steps(window, phases):
        return window, ()
    for what, begins in (
        ("batches", _begins(phases, DATA_LOAD)),
        ("backward passes", _begins(phases, BACKWARD)),
        ("rounds of calls", _of_calls(window)),
    ):
        if _repeats(begins, window.ranks):
            note = Skipped("steps", f"no optimizer was stepped; {what} are counted instead")
            return _numbered(window, begins), (note,)
    return window, ()


def _lacks_steps(window: Window, phases: Table) -> bool:
    """Whether the job steps no optimizer, and all rows carry one or two numbers of steps."""
    names = phases.strings("phase")
    if names.equals(OPTIMIZER).any() or bool((names.equals(DATA_LOAD, BACKWARD)).sum() < 1):
        return False
    known = [window.table(name) for name in ("steps", "phases", "comm_ops")]
    numbers = [np.unique(one.ints("step")) for one in known if one is not None and one.has("step")]
    return np.unique(np.concatenate(numbers)).size <= FEW_STEPS


def _some_lack_steps(window: Window) -> bool:
    """Whether some ranks that call operators have no steps, while others do, as actors."""
    steps, comm = window.table("steps"), window.table("comm_ops")
    if steps is None or comm is None or not comm.has("step"):
        return False
    without = comm.take(~np.isin(comm.ints("rank"), np.unique(steps.ints("rank"))))
    return bool(len(without)) and int(without.ints("step").max()) < FEW_STEPS


def _with_gaps(window: Window, phases: Table) -> Window:
    """The window in which ranks without any phase are in one wherever they are in no operator."""
    comm = window.tables["comm_ops"]
    begin, end = comm.ints("enqueue_ns"), np.maximum(comm.ints("end_ns"), comm.ints("enqueue_ns"))
    found: list[tuple[int, Ints, Ints]] = []
    for rank in sorted(set(window.ranks) - set(np.unique(phases.ints("rank")).tolist())):
        own = np.flatnonzero(comm.ints("rank") == rank)
        own = own[begin[own].argsort(kind="stable")]
        since = np.maximum.accumulate(end[own])[:-1]
        lasted = begin[own][1:] - since
        found.append((rank, since[lasted > 0], lasted[lasted > 0]))
    more = joined([phases, _gaps(phases, found)])
    return replace(window, tables={**window.tables, "phases": more})


def _gaps(phases: Table, found: Sequence[tuple[int, Ints, Ints]]) -> Table:
    """Rows like those of phases; what is not known of them is null."""
    rank = np.concatenate([np.full(since.size, rank) for rank, since, _ in found])
    rows: dict[str, Column] = {
        "rank": rank,
        "step": np.zeros_like(rank),
        "microbatch": np.full_like(rank, -1),
        "start_ns": np.concatenate([since for _, since, _ in found]),
        "duration_ns": np.concatenate([lasted for _, _, lasted in found]),
        "waits": np.zeros_like(rank),
        "wait_ns": np.zeros_like(rank),
        "phase": Strings.of([OTHER_WORK] * rank.size),
    }
    for name, column in phases.columns.items():
        words = isinstance(column, Strings)
        unknown = Strings.of([None] * rank.size) if words else np.full_like(rank, NULL)
        rows.setdefault(name, unknown)
    return Table({name: rows[name] for name in phases.columns})


def _begins(phases: Table, name: str) -> Begins:
    """A load begins a step, and a pass ends one."""
    own = phases.take(phases.strings("phase").equals(name))
    if name == DATA_LOAD:
        return {rank: np.sort(rows.ints("start_ns")) for rank, rows in own.per_rank()}
    first = {rank: int(rows.ints("start_ns").min()) for rank, rows in phases.per_rank()}
    return {rank: np.append(first[rank], np.sort(_ends(rows))[:-1])
            for rank, rows in own.per_rank()}  # fmt: skip


def _of_calls(window: Window) -> Begins:
    """Each rank's step begins when its last call of the step before has ended."""
    step, comm = round_of_calls(window), window.table("comm_ops")
    if step is None or comm is None or not comm.has("end_ns"):
        return {}
    counted = comm.with_column("step", step)
    return {rank: _after_calls(rows) for rank, rows in counted.per_rank()}


def _after_calls(calls: Table) -> Ints:
    step, end = calls.ints("step"), np.maximum(calls.ints("end_ns"), calls.ints("enqueue_ns"))
    last = np.full(int(step.max()) + 1, NULL)
    np.maximum.at(last, step, end)
    return np.append(int(calls.ints("enqueue_ns").min()), np.maximum.accumulate(last)[:-1])


def _repeats(begins: Begins, ranks: tuple[int, ...]) -> bool:
    """Whether all ranks have enough of them, and nearly equally many."""
    counts = [begins[rank].size if rank in begins else 0 for rank in ranks]
    most, least = max(counts, default=0), min(counts, default=0)
    return least >= LEAST_ROUNDS and most - least <= max(FEW_STEPS, MOST_UNLIKE * most)


def _numbered(window: Window, begins: Begins) -> Window:
    tables = dict(window.tables)
    for name, time in (("phases", "start_ns"), ("comm_ops", "enqueue_ns"), ("pauses", "start_ns")):
        table = window.table(name)
        if table is not None and table.has("step", time):
            at = _ends(table) - 1 if name == "phases" else table.ints(time)
            tables[name] = table.with_column("step", _step_of(table.ints("rank"), at, begins))
    tables["steps"] = _steps(window, begins)
    return Window(window.job, tables)


def _step_of(rank: Ints, time_ns: Ints, begins: Begins) -> Ints:
    step = np.zeros(rank.size, np.int64)
    for one, own in begins.items():
        rows = np.flatnonzero(rank == one)
        step[rows] = np.maximum(np.searchsorted(own, time_ns[rows], side="right") - 1, 0)
    return step


def _steps(window: Window, begins: Begins) -> Table:
    phases = window.tables["phases"]
    until = {rank: int(_ends(rows).max()) for rank, rows in phases.per_rank()}
    parts = [(rank, own, np.diff(np.append(own, max(until.get(rank, NULL), int(own[-1])))))
             for rank, own in begins.items()]  # fmt: skip
    return Table({
        "rank": np.concatenate([np.full(own.size, rank) for rank, own, _ in parts]),
        "step": np.concatenate([np.arange(own.size) for _, own, _ in parts]),
        "start_ns": np.concatenate([own for _, own, _ in parts]),
        "duration_ns": np.concatenate([lasted for _, _, lasted in parts]),
    })  # fmt: skip


def _ends(table: Table) -> Ints:
    return table.ints("start_ns") + table.ints("duration_ns")

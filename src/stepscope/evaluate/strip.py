"""Damages recordings on purpose: removes or coarsens what a diagnosis would like to have.

A strip is a pure function from a window to a window. It only removes rows, columns and tables, or
makes values coarser; it never adds information. A diagnosis of a stripped job may be less certain
or know nothing, but it must not accuse an innocent rank, nor call a job healthy that loses much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepscope.evaluate.columns import (
    of_ranks,
    only_tables,
    rounded,
    with_tables,
    without_columns,
    without_tables,
)
from stepscope.evaluate.excerpt import around
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.window import Ints, Mask, Strings, Table, Window

MILLISECOND_NS = 1_000_000
PARTS = ("self_attention", "mlp", "moe_experts")
"""Phases inside passes: loggers print the passes, so that their durations add up."""
FIVE_STEPS = "five-steps"
STEPS = 5
"""Steps that `five-steps` keeps: as many as a short profile has."""


@dataclass(frozen=True)
class Context:
    """What a strip may depend on besides the window."""

    seed: int = 0
    """Chooses names for `foreign-names`."""
    step: int | None = None
    """The first step with a fault, around which `five-steps` cuts; None: the job is healthy."""


Apply = Callable[[Window, Context], Window]


@dataclass(frozen=True)
class Strip:
    """One way to remove data: its name on the command line, and what it removes."""

    name: str
    help: str
    apply: Apply


def _no_wait_marks(window: Window, _: Context) -> Window:
    window = without_columns(window, "phases", "waits", "wait_ns")
    return without_columns(window, "comm_ops", "blocked_ns")


def _no_enqueue(window: Window, _: Context) -> Window:
    for table, column in (("comm_ops", "enqueue_ns"), ("kernels", "enqueue_ns"),
                          ("phases", "host_start_ns")):  # fmt: skip
        window = without_columns(window, table, column)
    return window


def _host_calls_only(window: Window, _: Context) -> Window:
    return without_columns(window, "comm_ops", "start_ns", "end_ns", "state", "blocked_ns")


def _calls(window: Window, context: Context) -> Window:
    return _host_calls_only(only_tables(window, "comm_ops", "transfers"), context)


def _durations_only(window: Window, _: Context) -> Window:
    window = only_tables(window, "steps", "phases")
    window = without_columns(window, "phases", "waits", "wait_ns", "cpu_ns", "host_start_ns")
    steps, phases = window.table("steps"), window.table("phases")
    if steps is None or phases is None:
        return window
    return with_tables(window, {"phases": _in_a_row(phases, steps)})


def _in_a_row(phases: Table, steps: Table) -> Table:
    """One row per rank, step and phase, with the sum of its durations, one after the other in
    alphabetical order: a logger prints sums, not the order in which things happened."""
    words = phases.strings("phase")
    names = tuple(sorted(words.values))
    place = np.array([names.index(value) for value in words.values], np.int64)
    phases = phases.take(~words.equals(*PARTS))
    key = (phases.ints("rank"), phases.ints("step"), place[phases.strings("phase").codes])
    order = np.lexsort(key[::-1])
    rank, step, code = (values[order] for values in key)
    first = np.flatnonzero(_changes(rank) | _changes(step) | _changes(code))
    lasted = np.add.reduceat(phases.ints("duration_ns")[order], first) if first.size else first
    rank, step, code = rank[first], step[first], code[first]
    row, begins = _step_rows(steps, rank, step)
    before = np.cumsum(lasted) - lasted
    new = np.flatnonzero(_changes(rank) | _changes(step))
    before -= np.repeat(before[new], np.diff(np.append(new, len(before))))
    table = Table({
        "rank": rank, "step": step, "phase": Strings(code.astype(np.int32), names),
        "microbatch": np.full(len(rank), -1), "start_ns": begins + before, "duration_ns": lasted,
    })  # fmt: skip
    return table.take(row >= 0)


def _changes(values: Ints) -> Mask:
    return np.concatenate((np.ones(min(values.size, 1), np.bool_), np.diff(values) != 0))


def _step_rows(steps: Table, rank: Ints, step: Ints) -> tuple[Ints, Ints]:
    """The row of `steps` for each rank and step, -1 if it never finished, and its start."""
    wide = int(max(steps.ints("step").max(), step.max(initial=0))) + 1
    known = steps.ints("rank") * wide + steps.ints("step")
    order = np.argsort(known, kind="stable")
    wanted = rank * wide + step
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    row = np.where(known[order][at] == wanted, order[at], -1)
    return row, np.where(row >= 0, steps.ints("start_ns")[row], 0)


def _no_kernels(window: Window, _: Context) -> Window:
    return without_tables(window, "kernels", "kernel_summaries")


def _no_stacks(window: Window, _: Context) -> Window:
    return without_tables(window, "stacks")


def _no_hardware(window: Window, _: Context) -> Window:
    return without_tables(window, "hardware")


def _no_groups(window: Window, _: Context) -> Window:
    job = replace(window.job, groups=(), parallelism={}, schedule=None)
    return Window(job, window.tables)


NAMES: Mapping[str, tuple[str, ...]] = {
    FORWARD: ("fwd", "forward", "model_forward"),
    BACKWARD: ("bwd", "backward", "loss_backward"),
    OPTIMIZER: ("opt_step", "optim", "update_params"),
    DATA_LOAD: ("loader_next", "get_batch", "fetch"),
    "self_attention": ("attn", "attention_block"),
    "mlp": ("ffn", "feed_forward"),
    "moe_experts": ("experts", "expert_ffn"),
}
"""What other programs call our phases."""
COMMUNICATION = ("grad_sync", "sync", "exchange", "comm")
"""What they call communication. Several of ours get one of these with a number."""


def _foreign_names(window: Window, context: Context) -> Window:
    phases = window.table("phases")
    if phases is None:
        return window
    words = phases.strings("phase")
    named = phases.with_column("phase", Strings(words.codes, foreign(words.values, context.seed)))
    return with_tables(window, {"phases": named})


def foreign(names: tuple[str, ...], seed: int) -> tuple[str, ...]:
    """Another name for each phase, chosen by seed; different phases keep different names."""
    draw = np.random.default_rng(seed)
    chosen = {ours: theirs[int(draw.integers(len(theirs)))] for ours, theirs in NAMES.items()}
    others = sorted(set(names) - set(chosen))
    stem = COMMUNICATION[int(draw.integers(len(COMMUNICATION)))]
    chosen |= {name: f"{stem}_{at}" if at else stem for at, name in enumerate(others)}
    return tuple(chosen[name] for name in names)


def _half_ranks(window: Window, _: Context) -> Window:
    kept = window.ranks[::2]
    is_kept = np.zeros(max(window.ranks, default=0) + 1, np.bool_)
    is_kept[list(kept)] = True
    tables = {name: table.take(of_ranks(table, is_kept)) if table.has("rank") else table
              for name, table in window.tables.items()}  # fmt: skip
    return Window(replace(window.job, recorded_ranks=kept), tables)


def _rounded(window: Window, _: Context) -> Window:
    tables = {name: rounded(table, MILLISECOND_NS) for name, table in window.tables.items()}
    return Window(window.job, tables)


def _five_steps(window: Window, context: Context) -> Window:
    return around(window, context.step, STEPS)


STRIPS: Mapping[str, Strip] = {
    one.name: one
    for one in (
        Strip("no-wait-marks", "nothing says how long a phase or an operator waited",
              _no_wait_marks),
        Strip("no-enqueue", "the host's calls are unknown; only device times remain", _no_enqueue),
        Strip("host-calls-only", "operators have no start and no end, only the host's call",
              _host_calls_only),
        Strip("calls", "call logs alone: the host's calls of operators, and network requests; no "
              "steps, no phases, no ends", _calls),
        Strip("durations-only", "only steps and the total duration of each phase in each step, as "
              "loggers print them; no operators", _durations_only),
        Strip("no-kernels", "no kernels and no summaries of kernels", _no_kernels),
        Strip("no-stacks", "no call stacks", _no_stacks),
        Strip("no-hardware", "no counters of GPUs, adapters, hosts and processes", _no_hardware),
        Strip("no-groups", "job.json has no groups, degrees of parallelism or schedule",
              _no_groups),
        Strip("foreign-names", "phases have names of another program, drawn by seed",
              _foreign_names),
        Strip("half-ranks", "every second rank was not recorded", _half_ranks),
        Strip("rounded-1ms", "all times are rounded to 1 ms", _rounded),
        Strip(FIVE_STEPS, "five steps: two before the fault begins and three with it, or the "
              "last five of a healthy job", _five_steps),
    )
}  # fmt: skip

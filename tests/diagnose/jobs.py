"""A tiny data-parallel job with ground truth known: collectives end together at the last arrival.

`a_job(faults=[...])` plays the job step by step and returns the Window a collector would write.
Times of a phase scatter log-normally; a part of the scatter stays with a rank for many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Column, Floats, Ints, Mask, Strings, Table, Window

MS = 1_000_000
START = 1_766_000_000_000_000_000
PHASES = ("data-load", "forward-compute", "backward-compute", "optimizer")
TYPICAL_MS = {
    "data-load": 1.0,
    "forward-compute": 30.0,
    "backward-compute": 50.0,
    "optimizer": 5.0,
}
WITHIN = {
    "data-load": "__next__ (dataloader.py:700)",
    "forward-compute": "forward (model.py:31)",
    "backward-compute": "_engine_run_backward (torch/autograd/graph.py:800)",
    "optimizer": "step (torch/optim/adam.py:220)",
}
MODULE = "<module> (train.py:9)"
LOOP = "train (train.py:44)"
"""As a fault's function: the training loop itself, which holds all others."""
BUCKETS = 3
TRANSFER_MS = 2.0
TEXT = ("phase", "kind", "group", "op", "metric", "host", "frames", "thread", "table", "state")


@dataclass(frozen=True)
class Fault:
    """Extra time on some ranks in one phase: `ms` per step, or `times` the phase."""

    ranks: tuple[int, ...]
    phase: str | None
    start: int
    stop: int = 10**9
    ms: float = 0.0
    times: float = 1.0
    every: int = 1
    computes: bool = True
    function: str | None = None
    gc: bool = False


@dataclass
class Play:
    """Rows of the tables as they happen."""

    steps: list[tuple[object, ...]] = field(default_factory=list)
    phases: list[tuple[object, ...]] = field(default_factory=list)
    comm: list[tuple[object, ...]] = field(default_factory=list)
    pauses: list[tuple[object, ...]] = field(default_factory=list)
    events: list[list[tuple[int, str]]] = field(default_factory=list)


def a_job(
    ranks: int = 4,
    steps: int = 200,
    noise: float = 0.05,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    stacks: bool = True,
    lasting: float = 0.2,
    typical: dict[str, float] = TYPICAL_MS,
    edit: Callable[[Floats], Floats] = lambda own: own,
) -> Window:
    """Plays the job. `lasting` is the part of the noise that stays with a rank for ten steps."""
    random = np.random.default_rng(seed)
    own = np.stack([np.full((ranks, steps), typical[name]) for name in PHASES]) * MS
    own *= scatter(random, own.shape, noise, lasting)
    own[:, :, :3] *= 3.0  # the first steps compile and load
    own = edit(own)
    cpu = own * 0.95
    extras = [_apply(fault, own, cpu) for fault in faults]
    play = Play(events=[[] for _ in range(ranks)])
    clock: Ints = np.full(ranks, START, np.int64)
    for step in range(steps):
        clock = _step(play, step, clock, own[:, :, step], cpu[:, :, step], faults, extras)
    return _window(play, ranks, random, stacks)


def scatter(
    random: np.random.Generator, shape: tuple[int, ...], noise: float, lasting: float
) -> Floats:
    """Log-normal factors, partly remembered over about ten steps (first-order autoregression)."""
    fresh = random.normal(size=shape)
    slow = random.normal(size=shape)
    for step in range(1, shape[-1]):
        slow[..., step] = 0.9 * slow[..., step - 1] + np.sqrt(1 - 0.81) * slow[..., step]
    factors: Floats = np.exp(noise * (np.sqrt(1 - lasting) * fresh + np.sqrt(lasting) * slow))
    return factors


def _apply(fault: Fault, own: Floats, cpu: Floats) -> Floats:
    """Adds a fault to own time, and processor time where it computes; returns what was added."""
    extra = np.zeros(own.shape)
    columns = np.arange(own.shape[2])
    active = (columns >= fault.start) & (columns < fault.stop) & (columns % fault.every == 0)
    chosen = [at for at, name in enumerate(PHASES) if fault.phase in (None, name)]
    for rank in fault.ranks:
        for at in chosen:
            more = own[at, rank] * (fault.times - 1) + fault.ms * MS
            extra[at, rank] = np.where(active, more, 0)
    own += extra
    cpu += extra * (0.95 if fault.computes else 0.0)
    return extra


def _step(
    play: Play, step: int, clock: Ints, own: Floats,
    cpu: Floats, faults: Sequence[Fault], extras: Sequence[Floats],
) -> Ints:  # fmt: skip
    ranks = len(clock)
    begin = clock.copy()
    for at, name in enumerate(PHASES):
        lasted = own[at].astype(np.int64)
        waited = np.zeros(ranks, np.int64)
        if name == "backward-compute":
            end = _buckets(play, step, clock, lasted)
            waited = np.maximum(end - (clock + lasted), 0)
        for rank in range(ranks):
            _record(play, rank, step, name, int(clock[rank]), int(lasted[rank]),
                    int(waited[rank]), int(cpu[at, rank]))  # fmt: skip
            for fault, extra in zip(faults, extras, strict=True):
                _explain(play, fault, rank, step, int(clock[rank]), int(extra[at, rank, step]))
        clock = clock + lasted + waited
    for rank in range(ranks):
        play.steps.append((rank, step, int(begin[rank]), int(clock[rank] - begin[rank])))
    return clock + MS // 5


def _buckets(play: Play, step: int, start: Ints, lasted: Ints) -> int:
    """Gradient buckets are handed over while backward runs; each ends everywhere at once."""
    end = 0
    for bucket in range(BUCKETS):
        arrive = start + lasted * (bucket + 1) // BUCKETS
        end = max(int(arrive.max()), end) + int(TRANSFER_MS * MS)
        for rank, time in enumerate(arrive):
            seq = step * BUCKETS + bucket
            play.comm.append((rank, step, seq, int(time), int(time), end))
    return end


def _record(
    play: Play, rank: int, step: int, name: str, start: int, own: int, wait: int, cpu: int
) -> None:
    play.phases.append((rank, step, name, start, own + wait, wait, cpu))
    root = f"{MODULE};train (train.py:40);{WITHIN[name]}"
    play.events[rank].append((start, root))
    if wait:
        play.events[rank].append((start + own, f"{root};wait (distributed.py:5)"))


def _explain(play: Play, fault: Fault, rank: int, step: int, start: int, extra: int) -> None:
    """Stacks and pauses of a fault: its time comes first in the phase."""
    if not extra:
        return
    if fault.gc:
        play.pauses.append((rank, step, "gc", start, extra))
    if fault.function is not None:
        start_, root = next(e for e in reversed(play.events[rank]) if e[0] == start)
        within = MODULE if fault.function == LOOP else f"{root};hook (train.py:77)"
        play.events[rank].append((start_ + 1, f"{within};{fault.function}"))
        play.events[rank].append((start + extra, root))


def _window(play: Play, ranks: int, random: np.random.Generator, stacks: bool) -> Window:
    members = tuple(range(ranks))
    job = Job("a-job", ranks, (Host("host-000", members),), {"dp": ranks},
              (ProcessGroup("dp-0", "dp", members),))  # fmt: skip
    comm = a_table("rank step seq enqueue_ns start_ns end_ns", play.comm)
    count = len(comm)
    comm = (
        comm.with_column("group", Strings.of(["dp-0"] * count))
        .with_column("op", Strings.of(["AllReduce"] * count))
        .with_column("peer", np.full(count, -1))
        .with_column("bytes", np.full(count, 25 << 20))
        .with_column("blocked_ns", np.full(count, NULL))
        .with_column("state", Strings.of(["done"] * count))
    )
    tables = {
        "steps": a_table("rank step start_ns duration_ns", play.steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns cpu_ns", play.phases),
        "comm_ops": comm,
        "pauses": a_table("rank step kind start_ns duration_ns", play.pauses),
        "hardware": _hardware(play, ranks, random),
    }
    if stacks:
        tables["stacks"] = _stacks(play)
    return Window(job, tables)


def a_table(names: str, rows: Sequence[Sequence[object]]) -> Table:
    """A table from rows; columns of strings are recognised by their first value, if
    there is one, else by name."""
    columns: dict[str, Column] = {}
    for at, name in enumerate(names.split()):
        values = [row[at] for row in rows]
        if name == "value":
            columns[name] = np.array(values, np.float64)
        elif _is_text(name, values):
            columns[name] = Strings.of(values)  # type: ignore[arg-type]
        else:
            columns[name] = np.array(values, np.int64)
    return Table(columns)


def _is_text(name: str, values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    return isinstance(known[0], str) if known else name in TEXT


def _hardware(play: Play, ranks: int, random: np.random.Generator) -> Table:
    end = max(start + length for _, _, start, length in play.steps)  # type: ignore[operator]
    rows: list[tuple[object, ...]] = []
    for time in range(START, int(end), 1000 * MS):
        for rank in range(ranks):
            rows.append((rank, "host-000", "cpu_util", time, 0.9 + random.normal() * 0.05))
            rows.append((rank, "host-000", "run_delay", time, 0.1 + random.uniform() * 0.1))
            rows.append((rank, "host-000", "proc_stopped", time, 0.0))
        rows.append((-1, "host-000", "cpu_util", time, 0.9))
    return a_table("rank host metric ts_ns value", rows)


def _stacks(play: Play) -> Table:
    """Samples ten times a second of what each rank was in."""
    rows: list[tuple[object, ...]] = []
    for rank, events in enumerate(play.events):
        begins = np.array([start for start, _ in events])
        order = np.argsort(begins, kind="stable")
        times = np.arange(begins.min(), begins.max(), 100 * MS)
        at = order[np.searchsorted(begins[order], times, side="right") - 1]
        rows += [(rank, "MainThread", int(time), 100 * MS, events[int(one)][1], 1)
                 for time, one in zip(times, at, strict=True)]  # fmt: skip
    return a_table("rank thread start_ns duration_ns frames active", rows)


def with_samples(window: Window, metric: str, value: Callable[[int, int], float]) -> Window:
    """The job with one hardware metric of its ranks replaced by a value per rank and time."""
    table = window.tables["hardware"]
    if not table.strings("metric").equals(metric).any():
        more = table.take(table.strings("metric").equals("run_delay"))
        named = Strings.of([metric] * len(more))
        table = both(table, more.with_column("metric", named))
    ranks = table.ints("rank")
    hit = table.strings("metric").equals(metric) & (ranks >= 0)
    times = table.ints("ts_ns")
    wanted = np.array([value(int(r), int(t)) for r, t in zip(ranks, times, strict=True)])
    values = np.where(hit, wanted, table.floats("value"))
    return put(window, hardware=table.with_column("value", values))


def both(one: Table, other: Table) -> Table:
    return Table({
        name: Strings.of([t.strings(name)[at] for t in (one, other) for at in range(len(t))])
        if isinstance(column, Strings)
        else np.concatenate([t.columns[name] for t in (one, other)])
        for name, column in one.columns.items()
    })  # fmt: skip


def put(window: Window, **tables: Table) -> Window:
    """The job with some tables replaced."""
    return replace(window, tables={**window.tables, **tables})


def without(window: Window, *names: str) -> Window:
    """The job with some tables never recorded."""
    return replace(window, tables={k: t for k, t in window.tables.items() if k not in names})


def until(window: Window, time_ns: int) -> Window:
    """The job as recorded up to a moment: later rows are gone, operators under way have no end."""
    tables = {name: _until(name, table, time_ns) for name, table in window.tables.items()}
    return replace(window, tables=tables)


def _until(name: str, table: Table, time_ns: int) -> Table:
    begin = table.ints({"comm_ops": "enqueue_ns", "hardware": "ts_ns"}.get(name, "start_ns"))
    keep = begin < time_ns
    if name in ("steps", "phases"):
        keep &= begin + table.ints("duration_ns") < time_ns
    kept = table.take(keep)
    return kept if name != "comm_ops" else opened(kept, kept.ints("end_ns") >= time_ns)


def opened(comm: Table, rows: Mask) -> Table:
    """The operators with some of them not ended."""
    state = Strings.of(["started" if one else "done" for one in rows])
    end = np.where(rows, NULL, comm.ints("end_ns"))
    return comm.with_column("end_ns", end).with_column("state", state)

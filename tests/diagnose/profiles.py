"""Windows of profiling with ground truth known, for tests of behaviour patterns.

A function is a share of the step on every rank; what is left of a window is waiting in a
collective, so that all ranks take equally long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Column, Floats, Strings, Table, Window

START = 1_766_000_000_000_000_000
WINDOW_NS = 10_000_000_000
TEXT = ("function", "kind", "location", "caller", "thread", "resource", "phase")


@dataclass(frozen=True)
class Share:
    """A function and what each rank spends in it."""

    function: str
    kind: str
    beta: Floats | float
    mu: Floats | float | None = None
    sigma: Floats | float | None = None
    location: str | None = None
    caller: str | None = None
    thread: str | None = None
    resource: str | None = None
    phase: str | None = None
    calls: Floats | int | None = None


@dataclass
class Rows:
    columns: dict[str, list[object]] = field(default_factory=dict)

    def add(self, **row: object) -> None:
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)

    def table(self) -> Table:
        return Table({name: _column(name, values) for name, values in self.columns.items()})


def _column(name: str, values: list[object]) -> Column:
    if name in TEXT:
        return Strings.of([None if one is None else str(one) for one in values])
    if name in ("beta", "mu", "sigma"):
        return np.array([np.nan if one is None else one for one in values], np.float64)
    return np.array(values, np.int64)


def each(value: Floats | float | None, rank: int) -> float | None:
    if value is None:
        return None
    return float(np.broadcast_to(value, (10**6,))[rank]) if np.ndim(value) == 0 else float(
        np.asarray(value)[rank])  # fmt: skip


def but(usual: float, ranks: int, **others: float) -> Floats:
    """`usual` on all ranks but those given as `r3=0.5`."""
    found = np.full(ranks, float(usual))
    for name, value in others.items():
        found[int(name.removeprefix("r"))] = value
    return found


def profile(
    ranks: int, shares: Sequence[Share], steps: tuple[int, int] = (20, 39), turn: int = 0,
    rows: Rows | None = None,
) -> Rows:  # fmt: skip
    """Rows of one window."""
    rows = Rows() if rows is None else rows
    for rank in range(ranks):
        for share in shares:
            rows.add(
                rank=rank, window_start_ns=START + turn * WINDOW_NS, window_ns=WINDOW_NS,
                function=share.function, kind=share.kind, beta=each(share.beta, rank),
                mu=each(share.mu, rank), sigma=each(share.sigma, rank), location=share.location,
                caller=share.caller, thread=share.thread, resource=share.resource,
                phase=share.phase,
                calls=-(2**63) if share.calls is None else int(each(share.calls, rank) or 0),
                first_step=steps[0], last_step=steps[1],
            )  # fmt: skip
    return rows


def a_window(ranks: int, rows: Rows, tables: Mapping[str, Table] | None = None) -> Window:
    """A data-parallel job of hosts with eight ranks each, of which only patterns were recorded."""
    hosts = tuple(
        Host(f"host-{at:03}", tuple(range(8 * at, min(8 * at + 8, ranks))),
             tuple(f"nic-{nic}" for nic in range(min(8, ranks - 8 * at))))
        for at in range(-(-ranks // 8))
    )  # fmt: skip
    groups = (ProcessGroup("dp-0", "dp", tuple(range(ranks))),)
    job = Job("profiled", ranks, hosts, groups=groups)
    return Window(job, {**(tables or {}), "patterns": rows.table()})


def usual(ranks: int, noise: float = 0.0, seed: int = 0) -> list[Share]:
    """A healthy window: kernels, a copy, Python, and a collective that takes what is left."""
    random = np.random.default_rng(seed)

    def around(value: float) -> Floats:
        return np.asarray(value * np.exp(noise * random.standard_normal(ranks)))

    gemm, flash = around(0.4), around(0.2)
    copy, python = around(0.02), around(0.005)
    rest = np.clip(0.95 - gemm - flash - copy - python, 0.0, 1.0)
    return [
        Share("gemm", "kernel", gemm, around(0.95), 0.01, resource="sm", calls=1000),
        Share("flash", "kernel", flash, around(0.95), 0.01, resource="sm", calls=500),
        Share("Memcpy HtoD", "copy", copy, around(0.5), 0.1, resource="pcie", calls=20),
        Share("forward", "python", python, around(0.9), 0.05, "model.py:31", "train.py:9 main",
              resource="cpu", calls=20),
        Share("AllReduce_RING", "collective", rest, np.minimum(around(0.8), 1.0), around(0.1),
              resource="nic", calls=20),
    ]  # fmt: skip

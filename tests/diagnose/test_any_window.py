"""Whatever well-formed window comes in, a diagnosis comes out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.trace import TABLES, Host, Job, ProcessGroup, TableSpec
from stepscope.window import NULL, Column, Strings, Table, Window

from .jobs import START

WORDS = {
    "phase": ["forward-compute", "backward-compute", "data-load", "mlp", "dp-allreduce", "mine"],
    "group": ["dp-0", "pp-0", "unheard-of"],
    "op": ["AllReduce", "Send", "Recv", "Barrier", "Broadcast"],
    "state": ["done", "started", "scheduled"],
    "metric": ["cpu_util", "run_delay", "proc_stopped", "nic_rx_bytes_per_s"],
    "kind": ["gc", "other"],
    "thread": ["MainThread", "Thread-1"],
    "frames": ["main (a.py:1);work (a.py:2)", "", "x;wait (b.py:9)"],
    "table": ["comm_ops", "stacks"],
    "host": ["host-000", "host-001"],
}
AWKWARD = [0, -1, NULL, 10**18 * 9, START]


def column(spec: TableSpec, name: str, rows: int) -> st.SearchStrategy[Column]:
    kind = spec.columns[name]
    if kind == "str":
        words: list[str | None] = [*WORDS.get(name, ["x"]), None]
        return st.lists(st.sampled_from(words), min_size=rows, max_size=rows).map(Strings.of)
    if kind == "double":
        numbers = st.floats(allow_nan=True, allow_infinity=True)
        return st.lists(numbers, min_size=rows, max_size=rows).map(np.array)
    if kind == "bool":
        return st.lists(st.booleans(), min_size=rows, max_size=rows).map(np.array)
    return st.lists(integers(name), min_size=rows, max_size=rows).map(
        lambda items: np.array(items, np.int64)
    )


def integers(name: str) -> st.SearchStrategy[int]:
    if name == "rank":
        return st.integers(-1, 4)
    if name in ("step", "seq", "match", "microbatch"):
        return st.integers(-1, 12)
    if name == "peer":
        return st.integers(-2, 4)
    if name.endswith("_ns") and ("start" in name or name[:2] in ("en", "ts")):
        return st.integers(START, START + 10**10) | st.sampled_from(AWKWARD)
    return st.integers(0, 10**9) | st.sampled_from(AWKWARD)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Table]:
    chosen = draw(st.lists(st.sampled_from(sorted(TABLES)), max_size=6, unique=True))
    return {name: draw(a_table_of(TABLES[name])) for name in chosen}


@st.composite
def a_table_of(draw: st.DrawFn, spec: TableSpec) -> Table:
    rows = draw(st.integers(0, 30))
    names = [n for n in spec.columns if n not in spec.optional or draw(st.booleans())]
    return Table({name: draw(column(spec, name, rows)) for name in names})


JOBS = st.sampled_from([
    Job("bare", 4),
    Job("one", 1, (Host("host-000", (0,)),)),
    Job("plain", 4, (Host("host-000", (0, 1)), Host("host-001", (2, 3)))),
    Job("grouped", 4, (Host("host-000", (0, 1, 2, 3)),), groups=(
        ProcessGroup("dp-0", "dp", (0, 1)), ProcessGroup("pp-0", "pp", (0, 2)),
        ProcessGroup("tp-0", "tp", (2, 3)))),
    Job("partly", 8, recorded_ranks=(0, 1), observed_until_ns=START + 10**11),
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(JOBS, tables())
def test_nothing_well_formed_is_too_odd(job: Job, found: dict[str, Table]) -> None:
    window = Window(job, found)
    assert isinstance(diagnose(window), Diagnosis)
    find_hang(window)

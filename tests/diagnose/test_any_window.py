"""Whatever well-formed window comes in, a diagnosis comes out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.trace import TABLES, Host, Job, ProcessGroup, TableSpec
from stepscope.window import NULL, Column, Ints, Strings, Table, Window

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
AWKWARD = np.array([0, -1, NULL, 10**18 * 9, START])
ODD = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e300, 5e-324, 1.0])


def column(spec: TableSpec, name: str, rows: int, random: np.random.Generator) -> Column:
    kind = spec.columns[name]
    if kind == "str":
        words: list[str | None] = [*WORDS.get(name, ["x"]), None]
        return Strings.of([words[at] for at in random.integers(len(words), size=rows)])
    if kind == "double":
        wide = random.normal(size=rows) * 10.0 ** random.integers(-12, 12, rows)
        return np.where(random.random(rows) < 0.5, wide, random.choice(ODD, rows))
    if kind == "bool":
        return random.random(rows) < 0.5
    return integers(name, rows, random)


def integers(name: str, rows: int, random: np.random.Generator) -> Ints:
    if name == "rank":
        return random.integers(-1, 4, rows, endpoint=True)
    if name in ("step", "seq", "match", "microbatch"):
        return random.integers(-1, 12, rows, endpoint=True)
    if name == "peer":
        return random.integers(-2, 4, rows, endpoint=True)
    is_time = name.endswith("_ns") and ("start" in name or name[:2] in ("en", "ts"))
    since, lasting = (START, 10**10) if is_time else (0, 10**9)
    usual = random.integers(since, since + lasting, rows, endpoint=True)
    return np.where(random.random(rows) < 0.5, usual, random.choice(AWKWARD, rows))


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Table]:
    """Their values come from a seed: drawn one by one, they take six times as long as diagnoses."""
    chosen = draw(st.lists(st.sampled_from(sorted(TABLES)), max_size=6, unique=True))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return {name: draw(a_table_of(TABLES[name], random)) for name in chosen}


@st.composite
def a_table_of(draw: st.DrawFn, spec: TableSpec, random: np.random.Generator) -> Table:
    rows = draw(st.integers(0, 30))
    names = [n for n in spec.columns if n not in spec.optional or draw(st.booleans())]
    return Table({name: column(spec, name, rows, random) for name in names})


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

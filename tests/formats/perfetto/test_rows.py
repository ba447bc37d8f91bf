"""Rows that are written are read, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.errors import SourceError
from stepscope.formats import perfetto
from stepscope.formats.perfetto.stacks import flattened
from stepscope.perfetto.lanes import drawing_order
from stepscope.perfetto.stacks import nested
from stepscope.trace import Host, Job
from stepscope.window import NULL, Ints, Strings, Table, Window
from tests.diagnose.jobs import START
from tests.diagnose.test_any_window import JOBS, tables

from .written import rows, timeline

JOB = Job("job", 4, (Host("host-000", (0, 1)), Host("host-001", (2, 3))))
WHOLE = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.perfetto-trace"


def read(path: Path, found: Mapping[str, Table], job: Job = JOB) -> Window:
    path.write_bytes(timeline(Window(job, found)))
    reading = perfetto.read(path)
    assert reading.problems == ()
    return reading.window


class Random:
    """Columns of a table from a seed."""

    def __init__(self, seed: int, count: int) -> None:
        self.numbers = np.random.default_rng(seed)
        self.count = count
        self.start = self.up_to(10**9) + START
        self.columns: dict[str, Ints | Strings] = {
            "rank": self.up_to(4), "start_ns": self.start, "duration_ns": self.up_to(10**7)
        }  # fmt: skip

    def up_to(self, most: int) -> Ints:
        return self.numbers.integers(0, most, self.count)

    def nullable(self, values: Ints) -> Ints:
        return np.where(self.numbers.random(self.count) < 0.2, NULL, values)

    def words(self, *words: str | None) -> Strings:
        return Strings.of([words[at] for at in self.up_to(len(words)).tolist()])

    def table(self, **columns: Ints | Strings) -> Table:
        return Table({**self.columns, **columns})


SEEDS = st.integers(0, 2**32 - 1)
COUNTS = st.sampled_from([1, 2, 7, 300])


@WHOLE
@given(SEEDS, COUNTS)
def test_intervals(path: Path, seed: int, count: int) -> None:
    one = Random(seed, count)
    step = one.nullable(one.up_to(2000) - 1)
    steps = one.table(step=step)
    phases = one.table(
        step=step, phase=one.words("forward-compute", "dp·all", None), microbatch=one.up_to(9) - 1,
        wait_ns=one.nullable(one.up_to(10**9)), waits=one.up_to(2), host_start_ns=one.start - 5,
    )  # fmt: skip
    pauses = one.table(step=step, kind=one.words("gc", "other"))
    work = one.table(step=step, name=one.words("aten::mm", None), thread=one.up_to(3) - 1)
    found = {"steps": steps, "phases": phases, "pauses": pauses, "host_ops": work}
    window = read(path, found)
    for name, table in found.items():
        assert rows(window.tables[name], *table.columns) == rows(table, *table.columns), name


@WHOLE
@given(SEEDS, COUNTS)
def test_kernels_and_counters(path: Path, seed: int, count: int) -> None:
    one = Random(seed, count)
    kernels = one.table(
        kernel=one.words("gemm", "flash", None), stream=one.nullable(one.up_to(3)),
        enqueue_ns=one.nullable(one.start - one.up_to(10**6)),
    )  # fmt: skip
    rank = one.up_to(5) - 1
    values = one.numbers.normal(size=count)
    hosts = Strings((np.maximum(rank, 0) // 2).astype(np.int32), ("host-000", "host-001"))
    hardware = Table({
        "rank": rank, "host": hosts, "metric": one.words("cpu_util", "gpu_c.0"),
        "ts_ns": one.start, "value": values,
    })  # fmt: skip
    window = read(path, {"kernels": kernels, "hardware": hardware})
    for name, table in (("kernels", kernels), ("hardware", hardware)):
        assert rows(window.tables[name], *table.columns) == rows(table, *table.columns), name


def test_runs_longer_than_a_piece_of_a_file(path: Path) -> None:
    one = Random(7, 100_000)
    kernels = one.table(
        kernel=one.words("gemm", "flash"), stream=np.full(one.count, 7),
        start_ns=START + np.arange(one.count) * 10, duration_ns=1 + one.up_to(9),
        enqueue_ns=START - one.up_to(10**6), rank=np.zeros(one.count, np.int64),
    )  # fmt: skip
    back = read(path, {"kernels": kernels}).tables["kernels"]
    assert path.stat().st_size > 10 << 20
    for name in ("start_ns", "duration_ns", "enqueue_ns", "stream"):
        assert (back.ints(name) == kernels.ints(name)).all()
    assert (back.strings("kernel").equals("gemm") == kernels.strings("kernel").equals("gemm")).all()


@WHOLE
@given(SEEDS, COUNTS, st.booleans())
def test_operators(path: Path, seed: int, count: int, bytes_known: bool) -> None:
    """All but the last of each group have ended; that one is open."""
    one = Random(seed, count)
    op = one.words("AllReduce", "Send", "Recv", "Barrier")
    p2p = op.equals("Send", "Recv")
    start = one.start + 1
    end = np.where(one.numbers.random(count) < 0.1, NULL, start + 1 + one.up_to(10**6))
    sizes = one.up_to(2**40)
    comm = Table({
        "rank": one.columns["rank"], "step": one.up_to(50), "group": one.words("dp-0", "pp-1"),
        "seq": np.arange(count), "op": op, "peer": np.where(p2p, one.up_to(9) - 2, -1),
        "bytes": sizes if bytes_known else one.nullable(sizes), "enqueue_ns": one.start,
        "start_ns": start, "end_ns": end, "blocked_ns": one.nullable(one.up_to(10**6)),
    })  # fmt: skip
    comm = comm.with_column("peer", np.where(comm.ints("peer") == -1, -2 + ~p2p, comm.ints("peer")))
    marks = Table({**comm.columns, "end_ns": np.where(end == NULL, start + 1, end)})
    written = marks if (end == NULL).all() else comm
    window = read(path, {"comm_ops": written})
    assert rows(window.tables["comm_ops"], *comm.columns) == rows(written, *comm.columns)


def operators(*found: tuple[int | str | None, ...]) -> Table:
    names = ("rank", "step", "group", "seq", "op", "peer", "bytes", "enqueue_ns", "start_ns",
             "end_ns")  # fmt: skip
    columns = zip(*found, strict=True)
    return Table({
        name: Strings.of(list(column)) if name in ("group", "op")
        else np.array([NULL if value is None else value for value in column], np.int64)
        for name, column in zip(names, columns, strict=True)
    })  # fmt: skip


def test_operators_that_did_not_end(path: Path) -> None:
    comm = operators(
        (0, 1, "dp-0", 0, "AllReduce", -1, 8, START, START + 1, START + 5),
        (0, 1, "dp-0", 1, "AllReduce", -1, 8, START + 6, START + 7, None),
        (0, 1, "dp-0", 2, "AllReduce", -1, 8, START + 8, START + 9, START + 11),
        (0, 2, "dp-0", 3, "AllGather", -1, None, START + 12, START + 13, None),
        (0, 2, "dp-0", 4, "AllGather", -1, 0, START + 14, None, None),
    )
    window = read(path, {"comm_ops": comm})
    assert rows(window.tables["comm_ops"], *comm.columns) == rows(comm, *comm.columns)
    assert rows(window.tables["comm_ops"], "seq", "state") == [
        (0, "done"), (1, "done"), (2, "done"), (3, "started"), (4, "started")
    ]  # fmt: skip
    [group] = window.job.groups
    assert (group.id, group.kind, group.ranks) == ("dp-0", "dp", (0,))


def test_starts_and_ends_that_were_not_recorded_are_left_out(path: Path) -> None:
    comm = operators(*((0, 1, "dp-0", n, "AllReduce", -1, 8, START + n, START + n, START + n + 1)
                       for n in range(3)))  # fmt: skip
    called = Table({name: one for name, one in comm.columns.items() if name != "start_ns"})
    assert not read(path, {"comm_ops": called}).tables["comm_ops"].has("start_ns")
    dumped = Table({name: one for name, one in called.columns.items() if name != "end_ns"})
    dumped = dumped.with_column("state", Strings.of(["done", "done", "scheduled"]))
    read_back = read(path, {"comm_ops": dumped}).tables["comm_ops"]
    assert not read_back.has("start_ns") and not read_back.has("end_ns")
    assert rows(read_back, "seq", "state") == [(0, "done"), (1, "done"), (2, "started")]


@WHOLE
@given(SEEDS, COUNTS)
def test_stacks_drawn_again_are_the_same_slices(seed: int, count: int) -> None:
    one = Random(seed, count)
    frames = one.words("main;a", "main;a;b", "main;b", "main", "other;a;b")
    times = START + np.cumsum((1 + one.up_to(3)) * 200_000_000)
    samples = Table({"start_ns": times, "duration_ns": np.full(count, 150_000_000),
                     "frames": frames})  # fmt: skip
    drawn = nested(samples)
    again = nested(flattened(0, "MainThread", _as_rows(drawn)))
    assert _spans(again) == _spans(drawn)


def _as_rows(slices: object) -> Table:
    from stepscope.perfetto.slices import Slices

    assert isinstance(slices, Slices)
    order = drawing_order(slices.start_ns, slices.end_ns)
    return Table({"begin_ns": slices.start_ns[order], "end_ns": slices.end_ns[order],
                  "name": slices.names.take(order)})  # fmt: skip


def _spans(slices: object) -> list[tuple[object, ...]]:
    table = _as_rows(slices)
    return [row for row in rows(table, "begin_ns", "end_ns", "name") if row[0] != row[1]]


@WHOLE
@given(JOBS, tables())
def test_any_window_is_read(path: Path, job: Job, found: dict[str, Table]) -> None:
    """Odd values may be lost, but nothing is said to be damaged."""
    window = Window(job, found)
    path.write_bytes(timeline(window))
    try:
        assert perfetto.read(path).problems == ()
    except SourceError as error:
        assert "no Perfetto trace of any rank" in str(error)

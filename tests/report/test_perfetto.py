"""The timeline of a job, as Perfetto's engine reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.operator_waits import with_operator_waits
from stepscope.diagnose.shown import ClockFit
from stepscope.perfetto.communication import MOST_OPEN
from stepscope.perfetto.tracks import MOST_COUNTERS, MOST_VALUES, counters
from stepscope.report.perfetto import Scene, draw, select, span_of
from stepscope.trace import Host, Job
from stepscope.window import NULL, Strings, Table, Window
from tests.diagnose.jobs import a_job, a_table
from tests.diagnose.test_any_window import JOBS, tables
from tests.perfetto.shown import brief, shown

if TYPE_CHECKING:
    from tests.perfetto.engine import TraceProcessor

T0 = 1_766_000_000_000_000_000
HOSTS = (Host("host-000", (0, 1)), Host("host-001", (2, 3)))
HEALTHY = Diagnosis("job", 4, "healthy")
Rows = Sequence[Sequence[object]]


def window(**found: Table) -> Window:
    return Window(Job("job", 4, HOSTS), found)


def trace_of(window: Window, diagnosis: Diagnosis = HEALTHY, whole: Window | None = None) -> bytes:
    pieces: list[bytes] = []
    scene = Scene(window, diagnosis, span_of(whole or window), window.ranks)
    draw(scene, pieces.append, lambda _: None)
    return b"".join(pieces)


def steps(*rows: Sequence[object]) -> Table:
    return a_table("rank step start_ns duration_ns", rows)


def operators(*rows: Sequence[object]) -> Table:
    return a_table("rank step group seq op peer bytes enqueue_ns start_ns end_ns", rows)


def test_a_rank_is_a_process_named_for_it_and_its_host(perfetto: TraceProcessor) -> None:
    perfetto.load(trace_of(window(steps=steps(*((rank, 0, T0, 5) for rank in (3, 0, 1))))))
    rows = perfetto.query("select pid, name from process order by upid")
    assert brief(rows, "pid", "name") == [
        (0, "rank 0 · host-000"), (1, "rank 1 · host-000"), (3, "rank 3 · host-001")
    ]  # fmt: skip


def test_steps_and_phases_lie_on_tracks_of_their_own(perfetto: TraceProcessor) -> None:
    phases = a_table("rank step phase start_ns duration_ns",
                     [(0, 7, "forward-compute", T0 + 1, 3), (0, 7, "mlp", T0 + 2, 1)])  # fmt: skip
    rows = shown(perfetto, trace_of(window(steps=steps((0, 7, T0, 9)), phases=phases)), T0)
    assert brief(rows, "track", "name", "at", "dur") == [
        ("Phases", "forward-compute", 1, 3), ("Phases", "mlp", 2, 1), ("Steps", "step 7", 0, 9)
    ]  # fmt: skip


def test_kernels_have_a_track_per_stream_and_overlapping_ones_lanes(
    perfetto: TraceProcessor,
) -> None:
    kernels = a_table("rank step kernel stream start_ns duration_ns",
                      [(0, 0, 0, 7, T0, 10), (0, 0, 0, 7, T0 + 5, 10),
                       (0, 0, 0, 7, T0 + 10, 5), (0, 0, 0, 20, T0, 4)])  # fmt: skip
    names = Strings.of(["gemm", "flash", "copy", "gemm"])
    kernels = kernels.with_column("kernel", names)
    rows = shown(perfetto, trace_of(window(kernels=kernels)), T0)
    assert brief(rows, "track", "name", "at", "dur", "depth") == [
        ("stream 20", "gemm", 0, 4, 0), ("stream 7", "gemm", 0, 10, 0),
        ("stream 7", "flash", 5, 10, 0), ("stream 7", "copy", 10, 5, 0),
    ]  # fmt: skip
    lanes = {row["name"]: row["lane"] for row in rows if row["track"] == "stream 7"}
    assert lanes["gemm"] == lanes["copy"] != lanes["flash"]


def test_an_operator_that_never_ended_is_drawn_to_the_end(perfetto: TraceProcessor) -> None:
    comm = operators(
        (0, 0, "dp-0", 0, "AllReduce", -1, 8, T0, T0, T0 + 5),
        (0, 0, "dp-0", 1, "AllReduce", -1, 8, T0 + 6, T0 + 7, NULL),
        (0, 0, "dp-0", 2, "AllGather", -1, NULL, T0 + 8, NULL, NULL),
    )
    rows = shown(perfetto, trace_of(window(comm_ops=comm, steps=steps((1, 0, T0, 100)))), T0)
    assert brief(rows, "track", "name", "at", "dur")[:3] == [
        ("collectives dp-0", "AllReduce", 0, 5),
        ("collectives dp-0", "AllReduce (never ended)", 7, 93),
        ("collectives dp-0", "AllGather (never started)", 8, 92),
    ]


def test_an_open_operator_without_times_is_drawn_while_it_hangs(
    perfetto: TraceProcessor,
) -> None:
    """Flight Recorder dumps have states in place of ends."""
    comm = a_table("rank step group seq op peer bytes enqueue_ns",
                   [(0, 0, "dp-0", n, "AllReduce", -1, 8, T0 + n) for n in range(3)])  # fmt: skip
    states = Strings.of(["done", "scheduled", None])
    dumps = window(comm_ops=comm.with_column("state", states))
    verdict = Verdict("hang", "unknown", "rank 1 hangs", "", ranks=(1,), time_ns=(T0 + 1, T0 + 90))
    scene = Scene(dumps, HEALTHY, span_of(dumps, [verdict]), (0,))
    pieces: list[bytes] = []
    draw(scene, pieces.append, lambda _: None)
    rows = shown(perfetto, b"".join(pieces), T0)
    assert brief(rows, "name", "at", "dur") == [
        ("AllReduce", 0, 0), ("AllReduce (never ended)", 1, 89), ("AllReduce", 2, 0)
    ]  # fmt: skip


def test_what_happened_stands_for_an_unknown_cause(perfetto: TraceProcessor) -> None:
    verdict = Verdict("hang", "unknown", "rank 1 hangs", "", ranks=(1,), time_ns=(T0, T0 + 9))
    diagnosis = Diagnosis("job", 4, "hang", verdicts=(verdict,))
    rows = shown(perfetto, trace_of(window(steps=steps((0, 0, T0, 9))), diagnosis), T0)
    assert brief(rows, "rank", "name")[0] == (None, "hang: rank 1 hangs")


def test_an_end_that_was_missed_is_a_mark(perfetto: TraceProcessor) -> None:
    comm = operators((0, 0, "dp-0", 0, "AllReduce", -1, 8, T0, T0, NULL),
                     (0, 0, "dp-0", 1, "AllReduce", -1, 8, T0 + 6, T0 + 7, T0 + 9))  # fmt: skip
    rows = shown(perfetto, trace_of(window(comm_ops=comm)), T0)
    assert brief(rows, "name", "dur") == [("AllReduce (end unknown)", 0), ("AllReduce", 2)]


def test_a_wall_of_open_operators_is_mostly_marks(perfetto: TraceProcessor) -> None:
    comm = operators(*((0, 0, "dp-0", n, "AllReduce", -1, 8, T0 + n, T0 + n, NULL)
                       for n in range(100)))  # fmt: skip
    rows = shown(perfetto, trace_of(window(comm_ops=comm, steps=steps((1, 0, T0, 500)))), T0)
    assert sum(row["dur"] > 0 for row in rows if row["rank"] == 0) == MOST_OPEN


def test_sends_and_receives_show_their_peer(perfetto: TraceProcessor) -> None:
    comm = operators((0, 0, "pp-0", 0, "Send", 2, 8, T0, T0, T0 + 5),
                     (2, 0, "pp-0", 0, "Recv", 0, 8, T0, T0, T0 + 5))  # fmt: skip
    rows = shown(perfetto, trace_of(window(comm_ops=comm)), T0)
    assert brief(rows, "rank", "track", "name") == [
        (0, "point-to-point pp-0", "Send to 2"), (2, "point-to-point pp-0", "Recv from 0")
    ]  # fmt: skip


def test_arrows_end_at_the_last_to_arrive_and_the_others_say_how_long_they_waited(
    perfetto: TraceProcessor,
) -> None:
    late = {0: 3, 1: 40, 2: 0}
    comm = operators(*((rank, 0, "dp-0", 0, "AllReduce", -1, 8, T0 + by, T0 + by, T0 + 50)
                       for rank, by in late.items()))  # fmt: skip
    perfetto.load(trace_of(with_operator_waits(window(comm_ops=comm))))
    arrows = perfetto.query(
        f"select a.ts - {T0} as source, b.ts - {T0} as target from flow "
        "join slice as a on a.id = slice_out join slice as b on b.id = slice_in order by 1"
    )
    assert brief(arrows, "source", "target") == [(0, 3), (3, 40)]
    waited = perfetto.query(
        "select extract_arg(slice.arg_set_id, 'debug.waited_ns') as ns from slice "
        "join process_track as t on t.id = track_id join process using (upid) order by pid"
    )
    assert brief(waited, "ns") == [(37,), (0,), (40,)]


def test_functions_last_while_they_stay_on_the_stack(perfetto: TraceProcessor) -> None:
    second = 10**9
    stacks = a_table("rank thread start_ns duration_ns frames", [
        (0, "MainThread", T0, second, "main;train;forward"),
        (0, "MainThread", T0 + second, second, "main;train;backward"),
        (0, "MainThread", T0 + 2 * second, second, "main;save"),
        (0, "MainThread", T0 + 9 * second, second, "main;save"),
        (0, "other", T0, second, "wait"),
    ])  # fmt: skip
    rows = shown(perfetto, trace_of(window(stacks=stacks)), T0)
    assert [(row["depth"], row["name"], row["at"] // second, row["dur"] // second)
            for row in rows] == [
        (0, "main", 0, 3), (1, "train", 0, 2), (2, "forward", 0, 1), (2, "backward", 1, 1),
        (1, "save", 2, 1), (0, "main", 9, 1), (1, "save", 9, 1),
    ]  # fmt: skip


def test_verdicts_are_drawn_over_their_time_and_mark_the_rank(perfetto: TraceProcessor) -> None:
    verdict = Verdict("slowdown", "compute", "rank 1 computes 1.9x slower", "drain host-000",
                      ranks=(1,), time_ns=(T0 + 10, T0 + 90), confidence=0.9)  # fmt: skip
    clock = ClockFit("host-001", 412_000, 0.0)
    diagnosis = Diagnosis("job", 4, "slow", verdicts=(verdict,), clocks=(clock,))
    rows = shown(
        perfetto, trace_of(window(steps=steps((1, 0, T0, 100), (2, 0, T0, 9))), diagnosis), T0
    )
    found = [row for row in rows if row["name"] == "compute: rank 1 computes 1.9x slower"]
    assert brief(found, "rank", "at", "dur") == [(None, 10, 80), (1, 10, 80)]
    labels = perfetto.query(
        "select pid, string_value as label from process join args using (arg_set_id) "
        "where flat_key glob '*label' order by pid"
    )
    assert brief(labels, "pid", "label") == [
        (1, "culprit: compute"), (2, "clock moved by -412 µs")
    ]  # fmt: skip


def test_counters_lie_with_their_rank_or_host(perfetto: TraceProcessor) -> None:
    hardware = a_table("rank host metric ts_ns value", [
        (2, "host-001", "cpu_util", T0, 0.5), (-1, "host-001", "load1", T0, 3.0)
    ])  # fmt: skip
    perfetto.load(trace_of(window(hardware=hardware)))
    rows = perfetto.query(
        "select pid, t.name as name, p.name as parent, value from counter "
        "join track as t on t.id = track_id left join process_counter_track as r on r.id = t.id "
        "left join process using (upid) left join track as p on p.id = t.parent_id order by t.name"
    )
    assert brief(rows, "pid", "name", "parent", "value") == [
        (2, "cpu_util", "counters", 0.5), (None, "load1", "counters", 3.0)
    ]  # fmt: skip


def test_counters_are_bounded_and_keep_their_peaks() -> None:
    values = np.zeros(10 * MOST_VALUES)
    values[123_456] = 7.0
    table = Table({
        "ts_ns": T0 + np.arange(values.size), "value": values,
        "metric": a_table("metric", [("gpu_temp_c",)] * values.size).strings("metric"),
    })  # fmt: skip
    [counter] = counters(table)
    assert counter.unit == "°C"
    assert counter.time_ns.size <= MOST_VALUES
    assert counter.value.max() == 7.0
    cores = [(f"cpu_util.core{n}", T0, 0.5) for n in range(256)]
    many = a_table("metric ts_ns value", [*cores, ("load1", T0, 1.0)])
    kept = [one.name for one in counters(many)]
    assert len(kept) == MOST_COUNTERS
    assert kept[0] == "load1"


def test_a_selection_keeps_what_belongs_to_it() -> None:
    whole = a_job(ranks=4, steps=50)
    part = select(whole, (1, 3), (10, 12))
    assert part.ranks == (1, 3)
    assert set(part.tables["steps"].ints("step")) == {10, 11, 12}
    first, last = span_of(Window(whole.job, {"steps": part.tables["steps"]}))
    stacks = part.tables["stacks"]
    assert len(stacks)
    assert (stacks.ints("start_ns") <= last).all()
    assert (stacks.ints("start_ns") + stacks.ints("duration_ns") >= first).all()
    assert select(whole, (1, 3), (900, 999)).tables == {}


def test_what_never_ended_lasts_beyond_the_selected_steps(perfetto: TraceProcessor) -> None:
    comm = operators((0, 3, "dp-0", 0, "AllReduce", -1, 8, T0, T0, NULL))
    whole = window(comm_ops=comm, steps=steps((0, 3, T0, 10), (1, 4, T0, 100)))
    rows = shown(perfetto, trace_of(select(whole, (0,), (3, 3)), whole=whole), T0)
    assert brief(rows, "name", "dur") == [("step 3", 10), ("AllReduce (never ended)", 100)]


def test_an_empty_window_is_an_empty_trace(perfetto: TraceProcessor) -> None:
    assert shown(perfetto, trace_of(window()), T0) == []


def raw(found: Window) -> Window:
    return found


def corrected(found: Window) -> Window:
    return with_operator_waits(align(clean(found)[0])[0])


def a_part(found: Window) -> Window:
    whole = corrected(found)
    return select(whole, whole.ranks, (2, 6))


@settings(max_examples=15, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(JOBS, tables(), st.sampled_from([raw, corrected, a_part]))
def test_any_window_can_be_drawn(
    perfetto: TraceProcessor, job: Job, found: dict[str, Table], made: Callable[[Window], Window]
) -> None:
    window = made(Window(job, found))
    pieces: list[bytes] = []
    scene = Scene(window, HEALTHY, span_of(window), window.ranks)
    slices = draw(scene, pieces.append, lambda _: None)
    assert len(shown(perfetto, b"".join(pieces), T0)) == slices

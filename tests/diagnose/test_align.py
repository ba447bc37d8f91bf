"""Clocks of hosts and processes, from collectives that all ranks leave together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.diagnose.numeric import compiled
from stepscope.diagnose.prepare.align import TIGHT, _Ahead, _quarter, align
from stepscope.diagnose.prepare.clocks import Line
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Ints, Table, Window

from .jobs import MS, START, Fault, a_job, put, without

TIMES = ("start_ns", "end_ns", "enqueue_ns", "ts_ns", "host_start_ns")
HOSTS = (Host("host-000", (0, 1)), Host("host-001", (2, 3)))


def two_hosts(job: Window) -> Window:
    return Window(replace(job.job, hosts=HOSTS), job.tables)


def shifted(job: Window, ranks: tuple[int, ...], by_ns: int, ppm: float = 0.0,
            since_ns: int = START) -> Window:  # fmt: skip
    """The job as recorded by clocks that are ahead and run fast on some ranks."""

    def move(table: Table) -> Table:
        theirs = np.isin(table.ints("rank"), ranks)
        for name in filter(table.has, TIMES):
            times = table.ints(name)
            known = theirs & (times != NULL) & (times >= since_ns)
            moved = times + by_ns + ((times - START) * ppm / 1e6).astype(np.int64)
            table = table.with_column(name, np.where(known, moved, times))
        return table

    return Window(job.job, {name: move(table) for name, table in job.tables.items()})


def test_one_host_needs_no_alignment() -> None:
    job = a_job(steps=40)
    window, clocks, skipped = align(job)
    assert (window, clocks, skipped) == (job, (), ())


def test_the_offset_of_a_host_is_found() -> None:
    job = shifted(two_hosts(a_job(steps=100)), (2, 3), -412_000)
    window, clocks, _ = align(job)
    assert [(clock.host, clock.offset_ns) for clock in clocks] == [
        ("host-000", 0), ("host-001", -412_000)
    ]  # fmt: skip
    ends = window.tables["comm_ops"].ints("end_ns").reshape(-1, 4)
    assert (ends == ends[:, :1]).all()


def few_shared(apart_ns: int) -> Window:
    """Two collectives, as in a trace of two steps; the second ends apart on the second host."""
    job = shifted(two_hosts(a_job(steps=2)), (2, 3), 300 * MS)
    comm = job.tables["comm_ops"]
    comm = comm.take(comm.ints("seq") < 2)
    late = (comm.ints("seq") == 1) & (comm.ints("rank") > 1)
    return put(job, comm_ops=comm.with_column("end_ns", comm.ints("end_ns") + late * apart_ns))


def test_when_hosts_began_phases_is_on_the_same_clock() -> None:
    job = two_hosts(a_job(steps=40))
    phases = job.tables["phases"]
    on_device = np.arange(len(phases)) % 2 == 0
    began = np.where(on_device, phases.ints("start_ns") - MS, NULL)
    job = put(job, phases=phases.with_column("host_start_ns", began))
    window, _, _ = align(shifted(job, (2, 3), 5 * MS, since_ns=START - MS))
    moved = window.tables["phases"]
    known = moved.ints("host_start_ns") != NULL
    ahead = (moved.ints("start_ns") - moved.ints("host_start_ns"))[known]
    assert known.any() and (ahead == MS).all()


def test_two_collectives_are_enough_if_they_agree() -> None:
    _, clocks, skipped = align(few_shared(apart_ns=MS // 10))
    assert clocks[1].offset_ns == pytest.approx(300 * MS, abs=MS)
    assert skipped == ()
    _, clocks, skipped = align(few_shared(apart_ns=5 * MS))
    assert [one.method for one in skipped] == ["clock of host-001"]


def test_a_drift_is_found_in_a_long_recording() -> None:
    job = shifted(two_hosts(a_job(steps=600)), (2, 3), 5 * MS, ppm=30.0)
    _, clocks, _ = align(job)
    assert clocks[1].drift_ppm == pytest.approx(30.0, abs=0.5)
    assert clocks[1].offset_ns == pytest.approx(5 * MS, abs=0.1 * MS)


def test_a_clock_that_was_set_is_aligned_piece_by_piece() -> None:
    job = two_hosts(a_job(steps=100))
    middle = int(job.tables["steps"].ints("start_ns").max() + START) // 2
    window, _, skipped = align(shifted(job, (2, 3), 80 * MS, since_ns=middle))
    ends = window.tables["comm_ops"].ints("end_ns").reshape(-1, 4)
    assert (np.ptp(ends, axis=1) > MS).mean() < 0.02
    assert [one.method for one in skipped] == ["clock of host-001"]


def test_unknown_hosts_mean_a_clock_per_rank() -> None:
    job = a_job(steps=60)
    job = shifted(Window(replace(job.job, hosts=()), job.tables), (3,), 300 * MS)
    _, clocks, _ = align(job)
    assert [(clock.rank, clock.offset_ns) for clock in clocks] == [
        (0, 0), (1, 0), (2, 0), (3, 300 * MS)
    ]  # fmt: skip


def test_impossible_times_on_one_host_mean_a_clock_per_rank() -> None:
    job = shifted(a_job(steps=60), (3,), 300 * MS)
    _, clocks, _ = align(job)
    assert clocks[3].offset_ns == 300 * MS


def test_ranks_of_a_host_that_leave_apart_by_a_constant_have_clocks_of_their_own() -> None:
    """Beside long waits for a slow rank nothing that a clock 30 ms ahead says is impossible."""
    slow = Fault((3,), "forward-compute", 0, ms=400.0)
    job = shifted(two_hosts(a_job(steps=40, faults=[slow])), (1, 3), 30 * MS)
    _, clocks, _ = align(job)
    ahead = [(clock.rank, clock.offset_ns) for clock in clocks]
    assert ahead == [(0, 0), (1, 30 * MS), (2, 0), (3, 30 * MS)]


def test_a_late_rank_is_not_mistaken_for_a_late_clock() -> None:
    """A culprit's operators start late and end with everyone's: only ends align clocks."""
    fault = Fault((3,), "forward-compute", 0, ms=60)
    job = a_job(steps=60, faults=[fault])
    _, clocks, _ = align(Window(replace(job.job, hosts=()), job.tables))
    assert all(clock.offset_ns == 0 for clock in clocks)


def test_hosts_that_share_no_collective_are_reported() -> None:
    job = two_hosts(a_job(steps=40))
    comm = job.tables["comm_ops"]
    first = comm.ints("rank") < 2
    apart = np.where(first, comm.ints("seq"), comm.ints("seq") + 10**6)
    _, clocks, skipped = align(put(job, comm_ops=comm.with_column("seq", apart)))
    assert [clock.host for clock in clocks] == ["host-000"]
    assert [one.method for one in skipped] == ["clock of host-001"]


def test_hosts_are_aligned_through_others() -> None:
    """Hosts 0 and 2 share no group; both share one with host 1."""
    hosts = tuple(Host(f"h{n}", (n,)) for n in range(3))
    groups = (ProcessGroup("a", "dp", (0, 1)), ProcessGroup("b", "dp", (1, 2)))
    ends = START + np.arange(50) * 10 * MS
    columns: dict[str, Ints] = {
        "rank": np.repeat([0, 1, 1, 2], 50),
        "seq": np.tile(np.arange(50), 4),
        "end_ns": np.concatenate([ends, ends + 2 * MS, ends + 2 * MS, ends + 5 * MS]),
    }
    columns["enqueue_ns"] = columns["end_ns"] - MS
    a = a_job(steps=1).tables["comm_ops"].take(np.zeros(200, np.int64))
    for name, column in columns.items():
        a = a.with_column(name, column)
    group = a.strings("group")
    codes = np.repeat(np.array([0, 0, 1, 1], np.int32), 50)
    a = a.with_column("group", type(group)(codes, ("a", "b")))
    _, clocks, _ = align(Window(Job("three", 3, hosts, groups=groups), {"comm_ops": a}))
    assert [clock.offset_ns for clock in clocks] == [0, 2 * MS, 5 * MS]


@pytest.mark.parametrize("by_ns", [0, -7 * MS, 2_000 * MS])
def test_shifted_clocks_change_no_verdict(by_ns: int) -> None:
    job = two_hosts(a_job(noise=0.1, faults=[Fault((2,), "backward-compute", 100, ms=60)]))
    here, there = diagnose(job), diagnose(shifted(job, (2, 3), by_ns))
    assert [(v.ranks, v.steps, v.cause) for v in there.verdicts] == [
        (v.ranks, v.steps, v.cause) for v in here.verdicts
    ]
    assert there.verdicts[0].lost_fraction == pytest.approx(here.verdicts[0].lost_fraction)


def test_without_collectives_nothing_is_aligned_and_that_is_reported() -> None:
    _, clocks, skipped = align(without(two_hosts(a_job(steps=20)), "comm_ops"))
    assert clocks == ()
    assert [one.method for one in skipped] == ["clocks"]


@given(st.lists(st.integers(-5, 10**9), min_size=2, max_size=60))
def test_the_shortest_quarter_is_the_one_below_the_quantile(moved: list[int]) -> None:
    times = np.array(moved, np.int64)
    below = times <= np.quantile(times, TIGHT)
    assert (times <= _quarter(times)).tolist() == below.tolist()


@pytest.mark.skipif(compiled.on_one_clock is None, reason="not compiled")
@pytest.mark.parametrize("apart_ns", [2.0, 1e3, 1e9, 3e15, 1e18])
def test_both_forms_put_times_on_one_clock(
    apart_ns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(int(apart_ns))
    offsets = np.round(random.normal(0, apart_ns, 9) * 2) / 2  # halves round to even
    lines = {at: Line(np.array([START]), offsets[at : at + 1], drift, START)
             for at, drift in enumerate(random.normal(0, 1e-6, 9) * (apart_ns > 2))}  # fmt: skip
    ahead = _Ahead.of(lines, len(lines))
    times = START + random.integers(0, 10**12, 5000)
    times[random.integers(0, 5000, 50)] = NULL
    clock = random.integers(-1, 9, 5000)
    at_once = ahead.taken_off(times, clock)
    assert (at_once != times).any()
    monkeypatch.setattr(compiled, "on_one_clock", None)
    assert (at_once == ahead.taken_off(times, clock)).all()

"""The tables say what the contract says they say, all of one timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.clean import clean
from stepscope.simulate import Noise, Scenario, Simulation, simulate
from stepscope.simulate.record.recorder import detail_of
from stepscope.simulate.world import World
from stepscope.trace import OPERATORS, TABLES
from stepscope.window import NULL, Ints, Strings, Table
from tests.simulate.jobs import a_scenario

WIDE = {"ranks": 16, "tp": 2, "pp": 2}


@pytest.fixture(scope="module")
def full() -> Simulation:
    """A job on two hosts whose clocks agree, with everything written."""
    noise = replace(Noise(), clock_offset_us=0, clock_drift_ppm=0, checkpoint_every=2)
    scenario = a_scenario("gc:rank=3,ms=250", ranks=16, tp=2, pp=2, steps=5)
    return simulate(replace(scenario, detail="full", noise=noise))


def of_rank(table: Table, rank: int) -> Table:
    return table.take(table.ints("rank") == rank)


def end_of(table: Table) -> Ints:
    return table.ints("start_ns") + table.ints("duration_ns")


def test_every_table_has_the_columns_of_the_contract(full: Simulation) -> None:
    assert {*full.window.tables} == {
        "steps", "phases", "kernels", "comm_ops", "transfers", "stacks", "pauses", "hardware",
    }  # fmt: skip
    for name, table in full.window.tables.items():
        spec = TABLES[name]
        assert spec.columns.keys() - spec.optional <= set(table.columns) <= spec.columns.keys()
        for column, kind in spec.columns.items():
            if table.has(column):
                assert isinstance(table.columns[column], Strings) == (kind == "str"), column


def test_a_column_knows_the_words_that_it_uses_and_no_others(full: Simulation) -> None:
    for name, table in full.window.tables.items():
        for column, values in table.columns.items():
            if isinstance(values, Strings):
                used = np.unique(values.codes)
                assert used.tolist() == list(range(len(values.values))), (name, column)


def test_nothing_in_it_needs_cleaning(full: Simulation) -> None:
    window, dropped = clean(full.window)
    assert not dropped
    for name, table in full.window.tables.items():
        assert len(window.tables[name]) == len(table), name


def test_the_job_describes_itself(full: Simulation) -> None:
    job = full.job
    assert job.schedule is not None and job.schedule.name == "1f1b"
    assert job.fabric is not None and job.fabric.switches[0].children[0] == "host-000/nic-0"
    assert {group.kind for group in job.groups} == {"tp", "pp", "dp", "embedding", "world"}
    assert job.group("pp-3").ranks == (3, 11)  # type: ignore[union-attr]
    assert sorted(rank for host in job.hosts for rank in host.ranks) == list(range(16))


def test_phases_lie_in_their_step_and_operators_in_their_phase(full: Simulation) -> None:
    steps, phases = (of_rank(full.window.tables[one], 5) for one in ("steps", "phases"))
    begin = dict(zip(steps.ints("step").tolist(), steps.ints("start_ns").tolist(), strict=True))
    end = dict(zip(steps.ints("step").tolist(), end_of(steps).tolist(), strict=True))
    for step, since, until in zip(
        phases.ints("step").tolist(), phases.ints("start_ns"), end_of(phases), strict=True
    ):
        assert begin[step] <= since <= until <= end[step]
    passes = phases.take(phases.strings("phase").equals("forward-compute"))
    inner = phases.take(phases.strings("phase").equals("self_attention", "mlp"))
    inside = sum(end_of(passes) - passes.ints("start_ns")) - passes.ints("wait_ns").sum()
    forward = inner.ints("start_ns")[:, None] - passes.ints("start_ns")
    within = (forward >= 0) & (inner.ints("start_ns")[:, None] < end_of(passes))
    computing = inner.take(np.asarray(within.any(axis=1))).ints("duration_ns").sum()
    assert computing <= inside  # the last stage has its head besides


def test_kernels_of_one_stream_do_not_overlap(full: Simulation) -> None:
    kernels = of_rank(full.window.tables["kernels"], 9)
    for stream in np.unique(kernels.ints("stream")):
        one = kernels.take(kernels.ints("stream") == stream)
        order = np.argsort(one.ints("start_ns"), kind="stable")
        assert (end_of(one)[order][:-1] <= one.ints("start_ns")[order][1:]).all()


def test_sequence_numbers_count_without_gaps(full: Simulation) -> None:
    comm = of_rank(full.window.tables["comm_ops"], 6)
    for group in comm.strings("group").values:
        seqs = np.sort(comm.take(comm.strings("group").equals(group)).ints("seq"))
        assert seqs.tolist() == list(range(len(seqs)))
    op = comm.strings("op")
    assert {op[row] for row in range(len(comm))} <= set(OPERATORS)


def test_a_send_ends_with_its_receive(full: Simulation) -> None:
    comm = full.window.tables["comm_ops"]
    comm = comm.take(comm.strings("op").equals("Send", "Recv"))
    sent = comm.take(comm.strings("op").equals("Send") & (comm.ints("rank") == 2))
    got = comm.take(comm.strings("op").equals("Recv") & (comm.ints("rank") == 10))
    assert set(sent.ints("peer").tolist()) == {10}
    assert sorted(sent.ints("end_ns").tolist()) == sorted(got.ints("end_ns").tolist())


def test_a_pause_shows_in_pauses_and_in_stacks(full: Simulation) -> None:
    pauses, stacks = full.window.tables["pauses"], full.window.tables["stacks"]
    assert set(pauses.ints("rank").tolist()) == {3}
    assert len(pauses) == 5
    frames = stacks.strings("frames")
    collecting = [row for row in range(len(stacks)) if "collect (gc.py:1)" in str(frames[row])]
    assert {int(stacks.ints("rank")[row]) for row in collecting} == {3}


def test_runs_of_one_stack_do_not_overlap(full: Simulation) -> None:
    for rank in (0, 3):
        one = of_rank(full.window.tables["stacks"], rank)
        order = np.argsort(one.ints("start_ns"), kind="stable")
        assert (end_of(one)[order][:-1] <= one.ints("start_ns")[order][1:]).all()


def test_what_leaves_a_host_is_counted_at_its_adapters(full: Simulation) -> None:
    transfers = full.window.tables["transfers"]
    hosts = full.job.hosts
    for rank, peer in zip(transfers.ints("rank"), transfers.ints("peer"), strict=True):
        assert not any(rank in host.ranks and peer in host.ranks for host in hosts)
    assert transfers.ints("posted").sum() == transfers.ints("completed").sum()
    moved = transfers.ints("completed") > 0
    assert ((transfers.ints("bytes") > 0) == moved).all()


def test_requests_are_counted_by_the_second(full: Simulation) -> None:
    transfers = full.window.tables["transfers"]
    start, end = transfers.ints("start_ns"), transfers.ints("end_ns")
    # clocks drift a little within it
    assert (end - start < 1_000_010_000).all()
    assert (start <= end).all()


def test_checkpoints_lie_between_steps(full: Simulation) -> None:
    steps = of_rank(full.window.tables["steps"], 0)
    gaps = steps.ints("start_ns")[1:] - end_of(steps)[:-1]
    assert (gaps > 1_000_000_000).tolist() == [False, True, False, True]


def test_evaluations_lie_between_steps_too() -> None:
    noise = replace(Noise(), checkpoint_every=0, evaluate_every=3)
    tables = simulate(replace(a_scenario(steps=5), noise=noise)).window.tables
    steps = of_rank(tables["steps"], 0)
    gaps = steps.ints("start_ns")[1:] - end_of(steps)[:-1]
    assert (gaps > 1_000_000_000).tolist() == [False, False, True, False]
    assert any(
        "evaluate (training.py:880)" in one for one in tables["stacks"].strings("frames").values
    )


def test_clocks_of_hosts_disagree_and_those_of_a_host_do_not() -> None:
    """Members leave together; what their hosts call that moment differs."""
    comm = simulate(a_scenario(ranks=16, steps=2)).window.tables["comm_ops"]
    world = comm.take(comm.strings("group").equals("world-0") & (comm.ints("seq") == 0))
    order = np.argsort(world.ints("rank"))
    ends = world.ints("end_ns")[order]
    assert len(set(ends[:8].tolist())) == len(set(ends[8:].tolist())) == 1
    assert ends[0] != ends[8]


def test_less_detail_is_less_of_the_same(full: Simulation) -> None:
    rows = {}
    for detail in ("full", "normal", "brief"):
        scenario: Scenario = replace(a_scenario(ranks=16, tp=2), detail=detail)
        tables = simulate(scenario).window.tables
        rows[detail] = {name: len(table) for name, table in tables.items()}
        assert ("kernels" in tables) == (detail == "full")
        assert ("kernel_summaries" in tables) == (detail != "full")
    assert rows["full"]["comm_ops"] == rows["normal"]["comm_ops"] > rows["brief"]["comm_ops"]
    assert rows["normal"]["phases"] > rows["brief"]["phases"]
    assert rows["full"]["steps"] == rows["brief"]["steps"]


def test_what_is_in_flight_is_known_whatever_is_kept() -> None:
    stuck = a_scenario("hang:rank=5,from=2", tp=2, pp=2)
    brief, normal = (simulate(replace(stuck, detail=detail)).window.tables["comm_ops"]
                     for detail in ("brief", "normal"))  # fmt: skip
    left = [table.take(table.ints("end_ns") == NULL) for table in (brief, normal)]
    assert sorted(map(str, _rows(left[0]))) == sorted(map(str, _rows(left[1])))
    within = [text.startswith("tp-") for text in brief.strings("group").values]
    ended = brief.take(brief.ints("end_ns") != NULL).strings("group")
    assert any(within) and not np.array(within)[ended.codes].any()


def _rows(table: Table) -> list[tuple[object, ...]]:
    names = ("rank", "group", "seq", "op", "peer", "enqueue_ns", "start_ns", "state")
    return list(zip(*([table.columns[name][at] for at in range(len(table))] for name in names),
                    strict=True))  # fmt: skip


def test_auto_writes_less_of_larger_jobs() -> None:
    sizes = [detail_of(World(a_scenario(ranks=ranks, steps=100))) for ranks in (8, 64, 4096)]
    assert sizes == ["full", "normal", "brief"]


def test_a_kernel_summary_counts_every_kernel() -> None:
    one = simulate(replace(a_scenario(), detail="normal")).window.tables["kernel_summaries"]
    each = simulate(replace(a_scenario(), detail="full")).window.tables["kernels"]
    assert one.ints("count").sum() == len(each)
    assert (one.ints("p50_ns") <= one.ints("p99_ns")).all()


def test_a_kernel_that_runs_at_two_lengths_has_two_modes() -> None:
    """As a processor would part them, and one where nothing differs."""
    scenario = a_scenario("gpu_slow:rank=3,factor=3,from=4", steps=8, quiet=True)
    kernels = simulate(replace(scenario, detail="normal")).window.tables["kernel_summaries"]
    one = kernels.take(kernels.strings("kernel").equals("sm90_xmma_gemm_bf16_mlp_fwd"))
    slow, other = (one.take(one.ints("rank") == rank) for rank in (3, 2))
    assert (slow.ints("cluster").tolist(), other.ints("cluster").tolist()) == ([0, 1], [0])
    assert slow.ints("count")[0] == slow.ints("count")[1] == other.ints("count")[0] / 2
    assert slow.ints("max_ns")[0] * 3 == slow.ints("p50_ns")[1]


def test_interleaved_operators_say_who_belongs_together() -> None:
    scenario = a_scenario(pp=2, chunks=2, steps=2)
    quiet = replace(scenario, noise=replace(Noise(), clock_offset_us=0, clock_drift_ppm=0))
    comm = simulate(quiet).window.tables["comm_ops"]
    sends, recvs = (comm.take(comm.strings("op").equals(op)) for op in ("Send", "Recv"))
    ends = {}
    for group, match, end in zip(
        sends.strings("group").codes, sends.ints("match"), sends.ints("end_ns"), strict=True
    ):
        ends[int(group), int(match)] = int(end)
    assert len(ends) == len(sends) == len(recvs)
    for group, match, end in zip(
        recvs.strings("group").codes, recvs.ints("match"), recvs.ints("end_ns"), strict=True
    ):
        assert ends[int(group), int(match)] == end != NULL

"""Data that moves slower in one group than in equal ones, and cases that only look like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.detect.links.slow_group import slow_transfers
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, ProcessGroup
from stepscope.window import NULL, Strings, Table, Window

from .jobs import MS, a_table, put
from .test_brief import own_times
from .traces import Piece, Transfer, a_trace

FOURS = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
WORK = (Piece("gemm", 20), Piece("softmax", 10))
USUAL_MS = 10.0


def slow_in(group: int, times: float = 3.0) -> Transfer:
    return lambda at, step: USUAL_MS * (times if at == group else 1.0)


def a_job(
    groups: Sequence[tuple[int, ...]], transfer_ms: Transfer, slow_rank: int | None = None,
    steps: int = 6, on_device: bool = True,
) -> Window:  # fmt: skip
    def work(rank: int, step: int) -> Sequence[Piece]:
        return [Piece("gemm", 45), *WORK[1:]] if rank == slow_rank else WORK

    return a_trace(work, sum(map(len, groups)), steps, on_device, groups=groups,
                   transfer_ms=transfer_ms)  # fmt: skip


def the_network(window: Window) -> list[Verdict]:
    return [one for one in diagnose(window).verdicts if one.cause == "network"]


def comm_changed(window: Window, change: Callable[[Table], Table]) -> Window:
    return put(window, comm_ops=change(window.tables["comm_ops"]))


def test_a_slow_group_of_three_accuses_the_network_and_none_of_its_ranks() -> None:
    found = diagnose(a_job(FOURS, slow_in(1)))
    (verdict,) = found.verdicts
    assert (verdict.cause, verdict.group, verdict.ranks) == ("network", "dp-1", ())
    assert verdict.slowdown == pytest.approx(3.0, rel=0.1)
    assert verdict.lost_fraction == pytest.approx(20 / 61, rel=0.1)
    assert verdict.summary.startswith("data moves 3.0x slower in dp-1 than in equal groups")
    assert found.state == "slow"


def test_an_equal_that_rarely_does_the_same_is_left_out_and_not_all_the_others() -> None:
    """What a member computes beside does not count: of one group nothing is left in most steps."""

    def without_most_of_the_last(comm: Table) -> Table:
        return comm.take(~comm.strings("group").equals("dp-3") | (comm.ints("step") == 5))

    fours = (*FOURS, (12, 13, 14, 15))
    window = comm_changed(a_job(fours, slow_in(1)), without_most_of_the_last)
    (slow,) = slow_transfers(Observed(window))
    assert (slow.group, slow.equals) == ("dp-1", 2)


def test_a_slow_group_costs_nothing_if_all_wait_longer_for_a_rank_of_another() -> None:
    """Its data moves 20 ms longer, but a rank computes 25 ms longer beside that."""
    window = a_job(FOURS, slow_in(1), slow_rank=8)
    (verdict,) = diagnose(window).verdicts
    assert (verdict.ranks, verdict.cause) == ((8,), "compute")
    (slow,) = slow_transfers(Observed(window))
    assert slow.group == "dp-1"


def test_operators_of_unknown_size_are_compared_by_their_places_in_the_step() -> None:
    """Torch before 2.2 records no sizes."""

    def unsized(comm: Table) -> Table:
        return comm.with_column("bytes", np.full(len(comm), NULL))

    (verdict,) = the_network(comm_changed(a_job(FOURS, slow_in(1)), unsized))
    assert (verdict.group, verdict.ranks) == ("dp-1", ())
    assert not the_network(comm_changed(a_job(FOURS, slow_in(-1)), unsized))


def in_one_step(window: Window) -> Window:
    """The same operators, all of them in a single step."""
    tables = {name: table.with_column("step", 0 * table.ints("step"))
              for name, table in window.tables.items()}  # fmt: skip
    comm = tables["comm_ops"].with_column("match", window.tables["comm_ops"].ints("step"))
    return replace(window, tables={**tables, "comm_ops": comm})


def test_operators_of_a_single_step_take_the_place_of_steps() -> None:
    (verdict,) = the_network(in_one_step(a_job(FOURS, slow_in(1))))
    assert verdict.group == "dp-1"
    assert verdict.lost_fraction == pytest.approx(20 / 61, rel=0.1)
    assert not the_network(in_one_step(a_job(FOURS, slow_in(1, 1.3))))


def exchanged(comm: Table, hot: int | None = None) -> Table:
    """All-to-alls of experts' tokens: the amounts differ, and one may get thrice as many, which it
    sends back in every second operator."""
    rank, step = comm.ints("rank"), comm.ints("step")
    back = 3 * (step % 2 == 1) * (rank == hot)
    size = np.maximum(back, 1) * comm.ints("bytes") * (10 + (rank + step) % 3) // 10
    moved = comm.with_column("op", Strings.of(["AllToAll"] * len(comm)))
    return moved.with_column("bytes", size)


def test_experts_exchange_unequal_amounts_and_are_compared_by_bytes() -> None:
    (verdict,) = the_network(comm_changed(a_job(FOURS, slow_in(1)), exchanged))
    assert (verdict.group, verdict.ranks) == ("dp-1", ())
    assert not the_network(comm_changed(a_job(FOURS, slow_in(-1)), exchanged))


def test_an_expert_that_gets_more_tokens_is_no_slow_network() -> None:
    """Whoever waits for its tokens waits as long when these come back."""
    window = comm_changed(a_job(FOURS, slow_in(1)), lambda comm: exchanged(comm, hot=5))
    assert not the_network(in_one_step(window))
    assert the_network(in_one_step(comm_changed(a_job(FOURS, slow_in(1)), exchanged)))


def test_of_a_pair_both_ends_of_the_link_are_named() -> None:
    (verdict,) = the_network(a_job(PAIRS, slow_in(2)))
    assert (verdict.group, verdict.ranks, verdict.victims) == ("dp-2", (4, 5), 6)


def test_two_groups_want_more() -> None:
    assert the_network(a_job(PAIRS[:2], slow_in(1)))
    assert not the_network(a_job(PAIRS[:2], slow_in(1, 1.8)))
    assert the_network(a_job(PAIRS, slow_in(1, 1.8)))


def test_waiting_for_a_late_member_is_no_slow_network() -> None:
    found = diagnose(a_job(FOURS, slow_in(-1), slow_rank=1))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("compute", (1,))]


def test_a_slow_device_that_also_moves_data_slowly_is_one_cause() -> None:
    found = diagnose(a_job(FOURS, slow_in(0), slow_rank=1))
    assert [one.cause for one in found.verdicts] == ["compute"]


def test_slow_groups_that_meet_in_one_rank_accuse_that_rank() -> None:
    rows, columns = ((0, 1, 2), (3, 4, 5), (6, 7, 8)), ((0, 3, 6), (1, 4, 7), (2, 5, 8))
    across = a_job(columns, slow_in(2))
    down = a_job(rows, slow_in(1))
    both = _merged(down, across)
    (verdict,) = the_network(both)
    assert verdict.ranks == (5,)


def _merged(down: Window, across: Window) -> Window:
    """The collectives of both jobs, those of the second as groups `tp`."""
    renamed = {"dp-0": "tp-0", "dp-1": "tp-1", "dp-2": "tp-2"}
    comm, other = down.tables["comm_ops"], across.tables["comm_ops"]
    columns = {name: np.concatenate((comm.ints(name), other.ints(name)))
               for name in comm.columns if name not in ("group", "op")}  # fmt: skip
    groups = [comm.strings("group")[at] for at in range(len(comm))]
    groups += [renamed.get(str(other.strings("group")[at]), "other") for at in range(len(other))]
    joined = Table({**columns, "group": Strings.of(groups),
                    "op": Strings.of(["AllReduce"] * len(groups))})  # fmt: skip
    tp = tuple(ProcessGroup(renamed[group.id], "tp", group.ranks)
               for group in across.job.groups if group.id in renamed)  # fmt: skip
    job = replace(down.job, groups=(*down.job.groups, *tp))
    return put(replace(down, job=job), comm_ops=joined)


def test_neighbours_in_a_pipeline_are_compared_with_those_of_other_pipelines() -> None:
    window = a_job(PAIRS, slow_in(2))
    pipelines = tuple(replace(one, kind="pp") for one in window.job.groups if one.kind == "dp")
    world = tuple(one for one in window.job.groups if one.kind == "world")
    job = replace(window.job, groups=(*pipelines, *world))
    (verdict,) = the_network(comm_changed(replace(window, job=job), _sent))
    assert verdict.ranks == (4, 5)


def test_groups_of_other_stages_are_not_compared() -> None:
    """They reduce at other times, beside other work."""
    groups = ((0, 2, 4, 6), (1, 3, 5, 7))
    window = a_job(groups, slow_in(1))
    assert the_network(window)
    pipelines = tuple(ProcessGroup(f"pp-{at}", "pp", (2 * at, 2 * at + 1)) for at in range(4))
    job = replace(window.job, groups=(*window.job.groups, *pipelines))
    assert not the_network(replace(window, job=job))


@pytest.mark.parametrize("at_once", [True, False])
def test_both_ways_of_a_link_cost_the_time_in_which_data_moves(at_once: bool) -> None:
    """Sends each way over all of each pair's transfer, or over its two halves."""
    window = a_job(PAIRS, slow_in(2))
    there = _sent(window.tables["comm_ops"])
    pipelines = tuple(replace(one, kind="pp") for one in window.job.groups if one.kind == "dp")
    job = replace(window.job, groups=pipelines)
    p2p = there.take(there.strings("op").equals("Send", "Recv"))
    middle = (p2p.ints("start_ns") + p2p.ints("end_ns")) // 2
    ways = (p2p, p2p) if at_once else (
        p2p.with_column("end_ns", middle), p2p.with_column("start_ns", middle))  # fmt: skip
    back = ways[1].with_column("op", _swapped(p2p)).with_column("seq", p2p.ints("seq") + 1000)
    both = Table({name: np.concatenate((ways[0].ints(name), back.ints(name)))
                  for name in p2p.columns if name not in ("group", "op")}
                 | {name: _strung(p2p, back, name) for name in ("group", "op")})  # fmt: skip
    one_way = slow_transfers(Observed(replace(put(window, comm_ops=p2p), job=job)))
    two_ways = slow_transfers(Observed(replace(put(window, comm_ops=both), job=job)))
    assert [sorted(one.culprits) for one in two_ways] == [[4, 5]]
    assert two_ways[0].own_ns == pytest.approx(one_way[0].own_ns, rel=0.05)


def test_edges_of_one_pipeline_are_compared_with_each_other() -> None:
    window = a_job([(0, 1, 2, 3)], slow_in(-1))
    comm = window.tables["comm_ops"]
    rows = [
        (rank, int(step), op, "pp-0", peer, 1 << 20, int(end) - 9 * MS,
         int(end) - (8 if edge == 1 else 1) * MS, int(end), edge)
        for first, step, end in zip(*map(comm.ints, ("rank", "step", "end_ns")), strict=True)
        if first == 0 for edge in range(3)
        for rank, op, peer in ((edge, "Send", edge + 1), (edge + 1, "Recv", edge))
    ]  # fmt: skip
    sends = a_table("rank step op group peer bytes enqueue_ns start_ns end_ns seq", rows)
    job = replace(window.job, groups=(ProcessGroup("pp-0", "pp", (0, 1, 2, 3)),))
    (found,) = slow_transfers(Observed(replace(put(window, comm_ops=sends), job=job)))
    assert (found.culprits, round(found.ratio)) == ((1, 2), 8)


def _swapped(p2p: Table) -> Strings:
    sends = p2p.strings("op").equals("Send")
    return Strings.of(["Recv" if one else "Send" for one in sends])


def _strung(one: Table, other: Table, name: str) -> Strings:
    return Strings.of([part.strings(name)[at] for part in (one, other) for at in range(len(part))])


def _sent(comm: Table) -> Table:
    """What even ranks give the next one, in place of reducing."""
    rank, world = comm.ints("rank"), comm.strings("group").equals("world-0")
    even = rank % 2 == 0
    ops = ["AllReduce" if all_ else "Send" if one else "Recv"
           for all_, one in zip(world, even, strict=True)]  # fmt: skip
    peer = np.where(world, -1, np.where(even, rank + 1, rank - 1))
    return comm.with_column("op", Strings.of([*ops])).with_column("peer", peer)


def test_half_of_the_groups_are_no_exception() -> None:
    assert not the_network(a_job(PAIRS, lambda at, step: 30.0 if at % 2 else 10.0))


def test_one_slow_step_is_no_slow_link() -> None:
    assert not the_network(a_job(FOURS, lambda at, step: 90.0 if (at, step) == (1, 3) else 10.0))


def test_a_group_over_two_hosts_is_compared_with_its_like() -> None:
    """dp-1 lies across the network, the others inside a host."""
    window = a_job(PAIRS[:3], slow_in(1))
    hosts = (Host("a", (0, 1, 2)), Host("b", (3, 4, 5)))
    assert the_network(window)
    assert not the_network(replace(window, job=replace(window.job, hosts=hosts)))


def test_other_shapes_and_sizes_are_not_compared() -> None:
    uneven = ((0, 1), (2, 4), (3, 5))
    assert not the_network(a_job(uneven, slow_in(0)))

    def sized(comm: Table) -> Table:
        slow = comm.strings("group").equals("dp-1")
        return comm.with_column("bytes", np.where(slow, 3 << 20, comm.ints("bytes")))

    assert not the_network(comm_changed(a_job(FOURS, slow_in(1)), sized))


def test_a_transfer_beside_computation_competes_with_it() -> None:
    window = a_job(FOURS, slow_in(1))
    kernels, comm = window.tables["kernels"], window.tables["comm_ops"]
    slow = comm.take(comm.strings("group").equals("dp-1"))
    count = len(kernels)
    beside = {
        "rank": slow.ints("rank"), "step": slow.ints("step"), "start_ns": slow.ints("start_ns"),
        "duration_ns": slow.ints("end_ns") - slow.ints("start_ns"),
        "enqueue_ns": slow.ints("enqueue_ns"), "stream": np.full(len(slow), 9),
    }  # fmt: skip
    columns = {name: np.concatenate((kernels.ints(name), more)) for name, more in beside.items()}
    names = kernels.strings("kernel")
    listed = [names[at] for at in range(count)] + ["gemm"] * len(slow)
    assert not the_network(put(window, kernels=Table({**columns, "kernel": Strings.of(listed)})))


def test_an_unrecorded_member_may_be_the_one_all_wait_for() -> None:
    def lost(comm: Table) -> Table:
        return comm.take(~(comm.strings("group").equals("dp-1") & (comm.ints("rank") == 6)))

    assert not the_network(comm_changed(a_job(FOURS, slow_in(1)), lost))


def test_gloo_moves_data_by_processors() -> None:
    """Its members end one after the other."""

    def in_turn(comm: Table) -> Table:
        start, end = comm.ints("start_ns"), comm.ints("end_ns")
        return comm.with_column("end_ns", end + (end - start) * (comm.ints("rank") % 4) // 25)

    assert not the_network(comm_changed(a_job(FOURS, slow_in(1), on_device=False), in_turn))


def test_what_costs_nothing_is_not_worth_a_word() -> None:
    assert not the_network(a_job(FOURS, lambda at, step: 0.3 if at == 1 else 0.1))


def test_clocks_do_not_matter() -> None:
    window = a_job(FOURS, slow_in(1))
    skewed = {name: _skewed(window.tables[name]) for name in ("comm_ops", "kernels")}
    assert [one.group for one in slow_transfers(Observed(put(window, **skewed)))] == ["dp-1"]


def _skewed(table: Table) -> Table:
    """Every rank's clock 40 ms ahead of the one before."""
    ahead = table.ints("rank") * 40 * MS
    for name in ("enqueue_ns", "start_ns", "end_ns"):
        if table.has(name):
            table = table.with_column(name, table.ints(name) + ahead)
    return table


def test_what_is_unknown_counts_for_nothing() -> None:
    window = a_job(FOURS, slow_in(1))
    for name in ("start_ns", "end_ns", "step"):
        unknown = comm_changed(window, lambda comm, name=name: comm.with_column(
            name, np.full(len(comm), NULL)))  # type: ignore[misc]  # fmt: skip
        assert not slow_transfers(Observed(unknown))


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_healthy_networks_are_silent(groups: int) -> None:
    """30 % noise, of which 13 % stay with a group for good."""
    pairs = tuple((2 * at, 2 * at + 1) for at in range(groups))
    for steps in (3, 6, 10):
        for seed in range(5):
            lasts = own_times(groups, steps, 0.3, seed, typical=USUAL_MS) / MS
            window = a_job(pairs, lambda at, step, lasts=lasts: lasts[at, step], steps=steps)  # type: ignore[misc]
            assert not slow_transfers(Observed(window))

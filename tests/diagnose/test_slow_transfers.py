"""Whose link is slow over TCP: by transfers of groups and pairs, and by who ends when in a ring."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from stepscope.diagnose.detect.links.slow_transfers import SlowTransfers
from stepscope.diagnose.detect.links.slow_transfers import _named as named
from stepscope.diagnose.finding import SlowLink
from stepscope.diagnose.method import SoFar
from stepscope.diagnose.network.slow_hosts import NOTHING, Suspects, suspects
from stepscope.diagnose.network.transfers import Transfers, transfers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.words.summary import summary
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Strings, Table, Window

MS = 1_000_000
STEPS, PERIOD = 100, 200 * MS
HOSTS = tuple(Host(f"host-{at}", (2 * at, 2 * at + 1), nics=("eth0",)) for at in range(4))
RANKS = tuple(range(8))
RING = ProcessGroup("dp-0", "dp", RANKS)
RINGS = tuple(ProcessGroup(f"half-{at}", "dp", RANKS[at::2]) for at in range(2))
PIPELINES = tuple(ProcessGroup(f"pp-{at}", "pp", RANKS[at::2]) for at in range(2))


@dataclass
class Rows:
    """Operators as a recorder writes them, and the clocks of the hosts."""

    random: np.random.Generator
    ahead_ms: tuple[float, ...] = (0.0,) * 4

    def __post_init__(self) -> None:
        self.rows: list[tuple[int, int, str, int, str, int, int, int]] = []

    def add(self, rank: int, step: int, group: str, seq: int, op: str, peer: int, begin: float,
            end: float) -> None:  # fmt: skip
        ahead = self.ahead_ms[rank // 2] * MS
        self.rows.append((rank, step, group, seq, op, peer, round(begin + ahead),
                          round(end + ahead)))  # fmt: skip

    def window(self, groups: tuple[ProcessGroup, ...], period: np.ndarray) -> Window:
        names = ("rank", "step", "group", "seq", "op", "peer", "start_ns", "end_ns")
        columns = dict(zip(names, map(list, zip(*self.rows, strict=True)), strict=True))
        comm = Table({
            name: Strings.of(columns[name]) if name in ("group", "op") else np.array(columns[name])
            for name in names
        } | {"enqueue_ns": np.array(columns["start_ns"])})  # fmt: skip
        start = np.concatenate(([0], np.cumsum(period)[:-1])).astype(np.int64)
        ahead = np.repeat([round(one * MS) for one in self.ahead_ms], 2)
        steps = Table({
            "rank": np.repeat(RANKS, STEPS), "step": np.tile(np.arange(STEPS), 8),
            "start_ns": (start + ahead[:, None]).ravel(),
            "duration_ns": np.tile(period.astype(np.int64), 8),
        })  # fmt: skip
        return Window(Job("job", 8, hosts=HOSTS, groups=groups), {"comm_ops": comm, "steps": steps})


def a_ring(slow: int | None, since: int, spread: float = 0.28) -> Window:
    """Three all-reduces in every step; from a step on one host's link is three times as slow."""
    rows = Rows(np.random.default_rng(1))
    period = np.full(STEPS, float(PERIOD)) * rows.random.normal(1, 0.01, STEPS)
    away = np.abs(np.arange(8) - (2 * (slow or 0)))
    late = -np.minimum(away, 8 - away)
    for step in range(STEPS):
        is_slow = slow is not None and step >= since
        period[step] += 3 * 60 * MS * is_slow
        begin = float(period[:step].sum())
        for seq in range(3):
            took = (90.0 if is_slow else 30.0) * rows.random.normal(1, 0.05)
            arrive = begin + rows.random.uniform(0, 5, 8) * MS
            for rank in RANKS:
                end = took + rows.random.normal(0, 0.5) + is_slow * spread * took * late[rank] / 4
                rows.add(rank, step, "dp-0", 3 * step + seq, "AllReduce", -1, arrive[rank],
                         arrive.max() + end * MS)  # fmt: skip
            begin = arrive.max() + 1.2 * took * MS
    return rows.window((RING,), period)


def late_in_a_ring(rank: int, often: float) -> Window:
    """Equal links; data goes round from who arrived last, and that is often the same rank."""
    rows = Rows(np.random.default_rng(4))
    period = np.full(STEPS, float(PERIOD))
    for step in range(STEPS):
        for seq in range(3):
            begin = step * PERIOD + seq * 60 * MS
            arrive = begin + rows.random.uniform(0, 5, 8) * MS
            arrive[rank] += 15 * MS * (rows.random.random() < often)
            away = np.abs(np.arange(8) - int(arrive.argmax()))
            for each in RANKS:
                end = 30 - min(away[each], 8 - away[each]) + rows.random.normal(0, 0.5)
                rows.add(each, step, "dp-0", 3 * step + seq, "AllReduce", -1, arrive[each],
                         arrive.max() + end * MS)  # fmt: skip
    return rows.window((RING,), period)


def two_rings(
    slow: int | None, gathers: int = 3, apart: float = 0.2, scatter_ms: float = 0.3
) -> Window:
    """Of one rank of each host: all-gathers at once, over a link that was slow all the time.

    Args:
        gathers: how many there are in a step.
        apart: the part of a transfer by which the ends spread.
        scatter_ms: by how much each end differs from operator to operator.
    """
    rows = Rows(np.random.default_rng(3))
    period = np.full(STEPS, float(PERIOD)) * rows.random.normal(1, 0.01, STEPS)
    away = np.abs(np.arange(4) - ((slow or 0) - 0.5))
    late = -np.minimum(away, 4 - away)
    for step in range(STEPS):
        begin = float(period[:step].sum())
        for seq in range(gathers):
            took = (40.0 if slow is not None else 8.0) * rows.random.normal(1, 0.05)
            for ring in RINGS:
                arrive = begin + rows.random.uniform(0, 2, 4) * MS
                for at, rank in enumerate(ring.ranks):
                    spread = apart * took * late[at] if slow is not None else 0.0
                    end = arrive.max() + (took + rows.random.normal(0, scatter_ms) + spread) * MS
                    number = gathers * step + seq
                    rows.add(rank, step, ring.id, number, "AllGather", -1, arrive[at], end)
            begin += 1.3 * took * MS
        for rank in RANKS:  # the loss, by which clocks are aligned
            rows.add(rank, step, RING.id, step, "AllReduce", -1, begin, begin + MS)
    return rows.window((*RINGS, RING), period)


def pipelines(
    slow: int | None, since: int = 50, ahead_ms: tuple[float, ...] = (0.0,) * 4, bucket: int = 0
) -> Window:
    """Two pipelines over four hosts without any collective; sends pass on 8 microbatches.

    Args:
        bucket: so many of them pass a slow link at full speed.
    """
    rows = Rows(np.random.default_rng(2), ahead_ms)
    period = np.full(STEPS, float(PERIOD)) * rows.random.normal(1, 0.01, STEPS)
    for step in range(STEPS):
        is_slow = slow is not None and step >= since
        period[step] += 8 * 15 * MS * is_slow
        begin = float(period[:step].sum())
        for group in PIPELINES:
            for source, target in (*zip(group.ranks, group.ranks[1:], strict=False),
                                   *zip(group.ranks[1:], group.ranks, strict=False)):  # fmt: skip
                passes = slow in (source // 2, target // 2)
                for seq in range(8):
                    at = begin + 20.0 * seq * MS
                    took = (
                        18.0 if is_slow and passes and seq >= bucket else 1.0
                    ) * rows.random.normal(1, 0.05)
                    numbers = 16 * step + seq
                    rows.add(source, step, group.id, numbers, "Send", target, at, at + took * MS)
                    rows.add(target, step, group.id, numbers, "Recv", source,
                             at - 2 * MS, at + took * MS)  # fmt: skip
    return rows.window(PIPELINES, period)


def found_in(job: Window) -> list[SlowLink]:
    """What the detector says of a job in which no rank is slow for reasons of its own."""
    aligned, _, _ = align(job)
    return [one for one in SlowTransfers().detect(Observed(aligned), SoFar()) if one.score >= 0.5]


def moved(job: Window) -> tuple[Observed, Transfers]:
    seen = Observed(job)
    found = transfers(seen)
    assert found is not None
    return seen, found


def test_a_host_whose_link_gets_slow_is_named_by_the_ends_of_its_ring() -> None:
    (link,) = found_in(a_ring(slow=2, since=50))
    assert link.ranks == (4, 5)
    assert link.devices[0].name == "host-2/eth0"
    assert link.lost_fraction is not None
    assert abs(link.lost_fraction - 180 / 380) < 0.1


@pytest.mark.parametrize(("first", "stop", "named"), [(5, 40, True), (70, 90, True),
                                                      (50, 100, False)])  # fmt: skip
def test_a_rank_that_was_slow_at_other_times_does_not_explain_the_link_of_its_host(
    first: int, stop: int, named: bool
) -> None:
    slow = Suspect(4, "data-load", ("data-load",), first, stop, 1.0, 9.0, 5.0, 5.0 * MS, 2.0, 1)
    so_far = SoFar(culprits=(slow,))
    aligned, _, _ = align(a_ring(slow=2, since=50))
    found = [one.ranks for one in SlowTransfers().detect(Observed(aligned), so_far)]
    assert found == ([(4, 5)] if named else [])


def test_who_arrives_late_in_a_ring_makes_no_link_slow() -> None:
    """Its members end about the last arrival, which says nothing of where data is slow."""
    assert found_in(late_in_a_ring(rank=1, often=0.6)) == []


def test_a_link_that_was_always_slow_is_named_though_clocks_differ() -> None:
    (link,) = found_in(a_ring(slow=1, since=0))
    assert link.ranks == (2, 3)


def test_rings_that_all_pass_a_host_that_was_always_slow_are_not_each_others_measure() -> None:
    """None of them shows how fast they could be; their ends show that one hop is slower."""
    (link,) = found_in(two_rings(slow=1))
    assert link.ranks == (2, 3)
    assert link.lost_fraction is not None and link.lost_fraction > 0.2
    assert "data moves slower through host-1" in summary(link)


def test_a_hop_counts_for_what_it_adds_to_a_transfer_not_for_how_far_ends_spread() -> None:
    (link,) = found_in(two_rings(slow=2, gathers=1, apart=0.08))
    assert link.ranks == (4, 5)


def test_ends_that_differ_by_less_than_from_step_to_step_name_no_host() -> None:
    assert not found_in(two_rings(slow=2, gathers=1, apart=0.08, scatter_ms=3.0))


def test_ends_that_were_inferred_from_calls_show_no_transfers() -> None:
    """A healthy job of which only calls were recorded lost 100 % to two hosts: their clocks."""
    aligned, *_ = align(a_ring(slow=2, since=30))
    found = [[*SlowTransfers().detect(Observed(aligned, has_ends=known), SoFar())]
             for known in (True, False)]  # fmt: skip
    assert [len(one) for one in found] == [1, 0]


def test_a_link_that_lets_some_messages_through_at_full_speed_is_slow() -> None:
    (link,) = found_in(pipelines(slow=1, bucket=3))
    assert link.ranks == (2, 3)


def test_steps_that_another_culprit_makes_longer_are_no_measure_of_a_links_cost() -> None:
    """A rank is as slow before the link is: without what it costs steps were short then."""
    job = pipelines(slow=1)
    steps, cost = job.tables["steps"], np.where(np.arange(STEPS) < 50, 120.0 * MS, 0.0)
    start = np.concatenate(([0.0], np.cumsum(PERIOD + cost + (120.0 * MS - cost))[:-1]))
    long = Table({**steps.columns, "start_ns": np.tile(start.astype(np.int64), 8),
                  "duration_ns": np.full(8 * STEPS, PERIOD + 120 * MS)})  # fmt: skip
    aligned, _, _ = align(replace(job, tables={**job.tables, "steps": long}))
    (link,) = SlowTransfers().detect(Observed(aligned), SoFar(lost_ns=cost))
    assert link.lost_fraction == pytest.approx(120 / 320, abs=0.05)


def test_a_healthy_ring_accuses_nobody() -> None:
    assert found_in(a_ring(slow=None, since=0)) == []
    assert found_in(two_rings(slow=None)) == []


@pytest.mark.parametrize(
    ("more", "rest", "names"),
    [
        pytest.param([("host-1", "host-2")], 0.24, ("host-1", "host-2"), id="of a connection"),
        pytest.param([], 0.04, ("host-1", "host-2"), id="of one hop in a ring"),
        pytest.param([], 0.24, (), id="any two in a ring"),
    ],
)
def test_two_hosts_are_named_as_two_ends_alone(
    more: list[tuple[str, ...]], rest: float, names: tuple[str, ...]
) -> None:
    who = [("host-0",), ("host-1",), ("host-2",), ("host-3",), *more]
    chance = np.array([rest / 2, 0.55, 0.45 - rest, rest / 2, *[0.0] * len(more)])
    assert named(Suspects(who, chance, 9.0, NOTHING, ()))[0] == names


def test_how_much_slower_is_not_said_where_it_is_unknown() -> None:
    finding = SlowLink("slow-transfers", "network", "", where="through a than elsewhere")
    assert summary(finding).startswith("data moves slower through a than elsewhere")


def test_in_pipelines_the_host_all_of_whose_connections_are_slow_is_named() -> None:
    (link,) = found_in(pipelines(slow=1))
    assert link.ranks == (2, 3)
    assert found_in(pipelines(slow=None)) == []


def test_a_pipeline_that_was_always_slow_is_compared_with_its_equals() -> None:
    (link,) = found_in(pipelines(slow=3, since=0))
    assert link.ranks == (6, 7)


def test_all_transfers_a_little_slower_are_a_busy_machine() -> None:
    seen, found = moved(a_ring(slow=None, since=0))
    late = np.arange(STEPS) >= 50
    busy = replace(found, took_ns=found.took_ns * np.where(late[found.column], 1.12, 1.0))
    judged = np.arange(STEPS) >= seen.line.warm_up
    assert suspects(busy, judged & late, judged & ~late, 0.02 * PERIOD).bits < 1


def test_clocks_without_collectives_are_aligned_by_sends_in_both_directions() -> None:
    ahead = (0.0, 15.0, -8.0, 120.0)
    _, clocks, skipped = align(pipelines(slow=None, ahead_ms=ahead))
    assert skipped == ()
    assert [round(one.offset_ns / MS) for one in clocks] == [0, 15, -8, 120]

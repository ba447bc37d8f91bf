"""From slow steps to requests to ranks: packets in, instructions out, with a clock of our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from stepscope.processor.instructions import (
    Instruction,
    LookClosely,
    NotProfiled,
    ProfileRanks,
    WriteOrder,
)
from stepscope.processor.state.host_state import HostState
from stepscope.processor.state.orders import Timing
from stepscope.processor.state.windows import (
    GONE,
    HELD_UP,
    NEAR_SECONDS,
    NO_REPLY,
    REPLY_SECONDS,
    TOO_LATE,
    WRITING_SECONDS,
    Windows,
)
from stepscope.wire.frames import PacketKind, pack
from stepscope.wire.profiling import (
    Profiled,
    ProfileOrder,
    RankProfile,
    decode_profile,
    encode_profiled,
)

from .producers import MS, OFFSET_NS, Producer

FOLDER = Path("/traces")


@dataclass
class Store:
    """Orders in the folder of the job, and when they are visible."""

    orders: list[ProfileOrder] = field(default_factory=list)


class HereOnly:
    def __init__(self) -> None:
        self.without_time: frozenset[int] = frozenset()

    def timing(self, _job: str, world_size: int) -> Timing:
        return Timing.of(is_local=True, world_size=world_size)

    def folder(self, _job: str) -> Path | None:
        return FOLDER

    def held_up(self) -> frozenset[int]:
        return self.without_time


class Host:
    """A processor's state, its ranks, and its look at the store, once a second."""

    def __init__(
        self, store: Store, name: str, *ranks: int, automatic: bool = True, world_size: int = 4
    ) -> None:
        self.store, self.name = store, name
        self.now_s = 0.0
        self.places = HereOnly()
        self.state = HostState(
            windows=Windows(name, self.places, lambda: self.now_s, automatic=automatic)
        )
        self.ranks = [
            Producer(rank, world_size=world_size, host=name, pid=4711 + rank) for rank in ranks
        ]
        self.asked: list[tuple[int, RankProfile]] = []
        self.begun: list[int] = []
        """Steps that ranks had finished when they were asked."""
        self.missing: list[NotProfiled] = []
        self.looks: list[tuple[float, LookClosely]] = []
        """When ranks began to be sampled closely."""
        for at, rank in enumerate(self.ranks):
            self.state.packet(at, rank.hello(), OFFSET_NS)
            names = ("loader", "optimizer", "dp-0", "AllReduce")
            self.state.packet(at, rank.tell(*names), OFFSET_NS)

    def train(self, step_s: float, waits_s: Mapping[int, float] | None = None) -> None:
        """One step, and what the processor does meanwhile.

        Args:
            step_s: how long it takes.
            waits_s: how long of that the rank at each place waits in a collective.
        """
        for at, rank in enumerate(self.ranks):
            records = rank.iteration(compute_ns=round(step_s * 1e9) - 10 * MS)
            if waits_s is not None:
                ended_ns, waited_ns = rank.now_ns - 5 * MS, round(waits_s[at] * 1e9)
                rank.now_ns -= 5 * MS + waited_ns
                records.insert(1, rank.comm("AllReduce", rank.ordinal, end_ns=ended_ns))
                rank.now_ns = ended_ns + 5 * MS
            self._do(self.state.packet(at, rank.packet(*records), self.now_ns))
        self.wait(step_s)

    def wait(self, seconds: float) -> None:
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s = min(self.now_s + 0.25, until)
            if self.now_s % 1.0 < 0.25:
                self.state.orders_listed("job-1", list(self.store.orders), self.now_s)
            self._do(self.state.tick(self.now_ns))

    @property
    def now_ns(self) -> int:
        return OFFSET_NS + round(self.now_s * 1e9)

    def reply(self, at: int, trouble: str | None = None) -> None:
        ((_, request),) = [one for one in self.asked if one[0] == at]
        said = Profiled(request.window, request.path, request.first_ordinal,
                        request.last_ordinal, self.now_ns, self.now_ns, trouble)  # fmt: skip
        packet = pack(PacketKind.CONTROL, encode_profiled(said), 1, 0)
        self._do(self.state.packet(at, packet, self.now_ns))

    def _do(self, instructions: list[Instruction]) -> None:
        for it in instructions:
            if isinstance(it, WriteOrder):
                self.store.orders.append(it.order)
            if isinstance(it, NotProfiled):
                self.missing.append(it)
            if isinstance(it, LookClosely):
                self.looks.append((self.now_s, it))
            if isinstance(it, ProfileRanks):
                for at, payload in it.requests:
                    request = decode_profile(memoryview(payload))
                    assert request is not None
                    self.asked.append((at, request))
                    self.begun.append(self.ranks[at].ordinal)


def two_hosts(automatic: bool = True) -> Iterator[Host]:
    store = Store()
    yield Host(store, "host-0", 0, 1, automatic=automatic)
    yield Host(store, "host-1", 2, 3, automatic=automatic)


def train(hosts: list[Host], steps: int, step_s: float = 1.0) -> None:
    for _ in range(steps):
        for host in hosts:
            host.train(step_s)


def slowed_down() -> list[Host]:
    """Two hosts whose job has just become slower, and has asked for a window."""
    hosts = list(two_hosts())
    train(hosts, 100)
    assert hosts[0].store.orders == []
    train(hosts, 14, 1.5)
    return hosts


def test_all_ranks_of_two_hosts_are_asked_for_the_same_steps() -> None:
    hosts = slowed_down()
    train(hosts, 20, 1.5)
    (order,) = hosts[0].store.orders
    assert (order.why, order.ranks) == ("degradation", ())
    asked = [one for host in hosts for _, one in host.asked]
    assert {one.first_ordinal for one in asked} == {order.first_step}
    assert {one.last_ordinal for one in asked} == {order.last_step}
    assert sorted(one.path for one in asked) == [
        f"/traces/{order.window}/rank{rank}.json.gz" for rank in range(4)
    ]


def test_every_rank_is_asked_before_the_first_step_begins() -> None:
    hosts = slowed_down()
    train(hosts, 10, 1.5)
    (order,) = hosts[0].store.orders
    begun = [ordinal for host in hosts for ordinal in host.begun]
    assert len(begun) == 4 and max(begun) < order.first_step


def a_large_job() -> list[Host]:
    """Two of its hosts; neither has rank 0, and host-1 orders later than host-0."""
    store = Store()
    names = sorted(("host-0", "host-1"), key=lambda name: crc32(name.encode()))
    return [Host(store, name, 500 + 2 * at, 501 + 2 * at, world_size=4_096)
            for at, name in enumerate(names)]  # fmt: skip


def trained(hosts: list[Host], steps: int, step_s: float, *waits_s: Mapping[int, float]) -> None:
    for _ in range(steps):
        for host, waits in zip(hosts, waits_s, strict=True):
            host.train(step_s, waits)


def test_in_a_large_job_another_host_adds_the_rank_that_it_suspects() -> None:
    hosts = a_large_job()
    trained(hosts, 100, 1.0, {0: 0.1, 1: 0.1}, {0: 0.1, 1: 0.1})
    trained(hosts, 30, 1.5, {0: 0.6, 1: 0.6}, {0: 0.6, 1: 0.05})
    (order,) = hosts[0].store.orders
    assert order.suspects and {500, 501} <= set(order.ranks) < set(range(4_096))
    assert not {502, 503} & set(order.ranks), "or change the seed of this test"
    assert [(at, one.window) for at, one in hosts[1].asked] == [(1, order.window)]
    assert hosts[1].asked[0][1].first_ordinal == hosts[0].asked[0][1].first_ordinal


def test_nobody_is_added_where_the_whole_host_that_ordered_became_slower_itself() -> None:
    """Then it is this host, or what all ranks do: not ten thousand suspects."""
    hosts = a_large_job()
    trained(hosts, 100, 1.0, {0: 0.1, 1: 0.1}, {0: 0.1, 1: 0.1})
    trained(hosts, 30, 1.5, {0: 0.1, 1: 0.1}, {0: 0.1, 1: 0.1})
    (order,) = hosts[0].store.orders
    assert not order.suspects and hosts[1].asked == []


def test_of_a_large_job_that_stands_still_those_are_added_that_are_not_in_communication() -> None:
    hosts = a_large_job()
    trained(hosts, 50, 1.0, {0: 0.1, 1: 0.1}, {0: 0.1, 1: 0.1})
    for at, rank in ((0, hosts[0].ranks[0]), (1, hosts[0].ranks[1]), (0, hosts[1].ranks[0])):
        host = hosts[1] if rank is hosts[1].ranks[0] else hosts[0]
        host.state.packet(at, rank.packet(rank.comm("AllReduce", 1_000)), host.now_ns)
    for _ in range(12):
        for host in hosts:
            host.wait(5.0)
    (order,) = hosts[0].store.orders
    assert (order.why, order.suspects) == ("stall", True)
    assert [at for at, _ in hosts[1].asked] == [1]


def test_what_is_still_slow_is_profiled_once_in_a_while() -> None:
    hosts = slowed_down()
    train(hosts, 300, 1.5)
    assert len(hosts[0].store.orders) == 1
    train(hosts, 100, 2.5)
    later = [one for one in hosts[0].store.orders if one.first_step > 400]
    assert later, "it became slower again, and the cool-down is over"
    assert len({request.window for host in hosts for _, request in host.asked}) == 2


def test_switched_off_nothing_is_detected_but_orders_are_obeyed() -> None:
    hosts = list(two_hosts(automatic=False))
    train(hosts, 100)
    train(hosts, 50, 1.5)
    assert hosts[0].store.orders == []
    by_hand = ProfileOrder("w", 200, 219, (1, 2), 20.0, "user", hosts[0].now_ns)
    hosts[0].store.orders.append(by_hand)
    train(hosts, 5)
    assert [len(host.asked) for host in hosts] == [1, 1]
    assert [at for host in hosts for at, _ in host.asked] == [1, 0], "only the ranks it names"


def test_ranks_are_sampled_closely_while_their_window_is_near_or_under_way() -> None:
    """Not from the order on, which may come hours before."""
    (host,) = list(two_hosts())[:1]
    train([host], 60)
    host.store.orders.append(ProfileOrder("w", 200, 219, (), 30.0, "user", host.now_ns))
    train([host], 100)
    assert len(host.asked) == 2 and host.looks == []
    train([host], 65)
    begun_s, last_s = host.looks[0][0], max(at_s + it.seconds for at_s, it in host.looks)
    assert 200 - NEAR_SECONDS - 2 <= begun_s <= 200 - NEAR_SECONDS / 2
    assert all(len(it.pids) == 2 for _, it in host.looks)
    assert last_s > host.now_s, "the window is late, and they are sampled still"
    host.reply(0)
    looks = len(host.looks)
    train([host], 30)
    assert all(it.pids == (host.ranks[1].pid,) for _, it in host.looks[looks:])
    host.reply(1)
    looks = len(host.looks)
    train([host], 60)
    assert len(host.looks) == looks


def test_a_job_that_stands_still_is_profiled_at_once() -> None:
    hosts = list(two_hosts())
    train(hosts, 50)
    for host in hosts:
        host.wait(29.0)
    assert hosts[0].store.orders == []
    for host in hosts:
        host.wait(10.0)
    for host in hosts:
        host.wait(10.0)
    (order,) = hosts[0].store.orders
    assert (order.why, order.first_step) == ("blockage", -1)
    assert [one.first_ordinal for host in hosts for _, one in host.asked] == [-1] * 4
    for host in hosts:
        host.wait(3_000.0)
    assert len(hosts[0].store.orders) == 1, "one blockage, one window"


def test_ranks_that_do_not_reply_are_noted() -> None:
    hosts = slowed_down()
    train(hosts, 10, 1.5)
    hosts[0].reply(0)
    hosts[0].reply(1, "another profiler is active")
    hosts[1].state.disconnected(1)
    for host in hosts:
        host.wait(REPLY_SECONDS + 60)
    assert hosts[0].missing == [], "a reply that says why is one"
    assert [(it.rank, it.trouble) for it in hosts[1].missing] == [(2, NO_REPLY), (3, GONE)]


def test_ranks_that_a_quota_holds_up_are_profiled_by_hand_alone() -> None:
    (host,) = list(two_hosts())[:1]
    host.places.without_time = frozenset({host.ranks[1].pid})
    train([host], 60)
    host.store.orders.append(ProfileOrder("w", 80, 89, (), 30.0, "degradation", host.now_ns))
    train([host], 30)
    assert [at for at, _ in host.asked] == [0]
    assert [(it.rank, it.trouble) for it in host.missing] == [(1, HELD_UP)]
    host.store.orders.append(ProfileOrder("x", 120, 129, (), 30.0, "user", host.now_ns))
    train([host], 30)
    assert [at for at, _ in host.asked] == [0, 0, 1]


def test_ranks_of_a_job_that_has_ended_are_noted_too() -> None:
    hosts = slowed_down()
    train(hosts, 10, 1.5)
    for at in (0, 1):
        hosts[0].state.disconnected(at)
    hosts[0].wait(REPLY_SECONDS + 60)
    assert [it.trouble for it in hosts[0].missing] == [GONE, GONE]


def test_an_order_that_comes_too_late_is_noted() -> None:
    hosts = list(two_hosts())
    train(hosts, 60)
    late = ProfileOrder("w", 55, 74, (), 20.0, "degradation", hosts[0].now_ns)
    hosts[0].store.orders.append(late)
    train(hosts[:1], 5)
    assert hosts[0].asked == []
    hosts[0].wait(REPLY_SECONDS + 60)
    missing = [it.trouble for it in hosts[0].missing if it.order.window == "w"]
    assert missing == [TOO_LATE] * 2


def test_a_processor_that_was_restarted_ignores_what_is_over() -> None:
    hosts = slowed_down()
    train(hosts, 40, 1.5)
    again = Host(hosts[0].store, "host-0", 0, 1)
    again.now_s = hosts[0].now_s + 700.0
    for rank, before in zip(again.ranks, hosts[0].ranks, strict=True):
        rank.ordinal, rank.now_ns = before.ordinal, before.now_ns + 700_000 * MS
    train([again], 30)
    assert (again.asked, again.missing) == ([], [])


def test_an_order_that_cannot_be_written_is_tried_again() -> None:
    hosts = list(two_hosts())
    hosts[0].store = Store()  # host-0 writes somewhere else, and reads it nowhere
    train(hosts, 100)
    lost = hosts[0].store.orders
    hosts[0].store.orders = lost
    for _ in range(60):
        hosts[0].train(1.5)
        del lost[:-1]
    assert lost and hosts[0].now_s > WRITING_SECONDS


def test_a_job_that_has_ended_is_forgotten() -> None:
    hosts = slowed_down()
    for host in hosts:
        host.state.forget("job-1")
        train([host], 5)
    assert len(hosts[0].store.orders) == 1

"""Two processors, two hosts, one store: ranks of both are asked for the same steps."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack, unpack
from stepscope.wire.profiling import (
    Profiled,
    ProfileOrder,
    RankProfile,
    decode_profile,
    encode_order,
    encode_profiled,
    order_name,
)
from tests.formats.kineto.traces import BASE_NS, gpu_events, trace, write

from .daemons import Daemon, ints, strings, wait_for
from .producers import MS, Producer

SLOW_STEPS = 14
STEP_NS = 1_000 * MS


class Rank:
    """A rank whose steps are told, and not waited for: its clock runs faster than ours."""

    def __init__(self, daemon: Daemon, store: Path, rank: int, host: str) -> None:
        self.producer = Producer(rank, job="job", store=str(store), host=host, world_size=4)
        self.line = self._line(daemon)

    def _line(self, daemon: Daemon) -> socket.socket:
        wall_ns = time.time_ns() - 114 * STEP_NS - SLOW_STEPS * STEP_NS // 2
        return daemon.connect(
            self.producer.hello(wall_ns=wall_ns), self.producer.tell("loader", "optimizer")
        )

    def train(self, steps: int, step_ns: int = STEP_NS) -> None:
        records = [
            record for _ in range(steps)
            for record in self.producer.iteration(compute_ns=step_ns - 10 * MS)
        ]  # fmt: skip
        self.line.send(self.producer.packet(*records))

    def asked(self) -> RankProfile:
        """The request to profile that it gets, whatever comes before."""
        while True:
            header, payload = unpack(self.line.recv(MAX_PACKET_BYTES))
            request = decode_profile(payload) if header.kind == PacketKind.CONTROL else None
            if request is not None:
                return request

    def reply(self, request: RankProfile, trouble: str | None = None) -> None:
        said = Profiled(
            request.window, request.path, request.first_ordinal, request.last_ordinal,
            BASE_NS, BASE_NS + 1_000_000, trouble,
        )  # fmt: skip
        self.line.send(pack(PacketKind.CONTROL, encode_profiled(said), 1, 0))


@pytest.fixture
def hosts(socket_path: Path) -> Iterator[list[Daemon]]:
    daemons = [
        Daemon(socket_path.with_name(f"{name}.sock"), STEPSCOPE_HOST=name)
        for name in ("host-0", "host-1")
    ]
    yield daemons
    for daemon in daemons:
        daemon.kill()


def ranks_of(hosts: list[Daemon], store: Path) -> list[Rank]:
    return [Rank(hosts[rank // 2], store, rank, f"host-{rank // 2}") for rank in range(4)]


def test_a_slower_job_is_profiled_on_all_ranks_and_summarized(
    hosts: list[Daemon], tmp_path: Path
) -> None:
    ranks = ranks_of(hosts, tmp_path)
    for rank in ranks:
        rank.train(100)
    for rank in ranks:
        rank.train(SLOW_STEPS, 3 * STEP_NS // 2)
    requests = [rank.asked() for rank in ranks]
    assert len({(r.window, r.first_ordinal, r.last_ordinal) for r in requests}) == 1
    assert requests[0].first_ordinal > 114
    folder = tmp_path / "job"
    for rank, request in list(zip(ranks, requests, strict=True))[:3]:
        write(Path(request.path), trace(gpu_events(), rank=rank.producer.rank))
        rank.reply(request)
    ranks[3].reply(requests[3], "another profiler is active")
    wait_for(lambda: len(ints(folder, "profiles", "rank")) == 4, "profiles")
    assert sorted(ints(folder, "profiles", "rank")) == [0, 1, 2, 3]
    assert set(strings(folder, "profiles", "trouble")) == {None, "another profiler is active"}
    assert set(strings(folder, "profiles", "why")) == {"degradation"}
    assert set(ints(folder, "profiles", "first_step")) == {requests[0].first_ordinal}
    wait_for(lambda: set(ints(folder, "patterns", "rank")) == {0, 1, 2}, "patterns")
    assert set(ints(folder, "patterns", "first_step")) == {requests[0].first_ordinal}
    assert all(Path(request.path).exists() for request in requests[:3])
    assert Path(requests[2].path).parts[-4:-2] == ("torch-traces", "host=host-1")


def test_garbage_and_a_killed_processor_do_not_stop_an_order(
    hosts: list[Daemon], tmp_path: Path
) -> None:
    ranks = ranks_of(hosts, tmp_path)
    for rank in ranks:
        rank.train(30)
    control = tmp_path / "job" / "control"
    control.mkdir(parents=True, exist_ok=True)
    (control / "profile-0.json").write_bytes(b"{}")
    hosts[0].kill()
    order = ProfileOrder("w", 60, 79, (), 20.0, "user", time.time_ns())
    (tmp_path / "job" / order_name("w")).write_bytes(encode_order(order))
    assert [rank.asked().first_ordinal for rank in ranks[2:]] == [60, 60]
    hosts[0].start()
    for at, rank in enumerate(ranks[:2]):
        rank.line.close()
        ranks[at] = again = Rank(hosts[0], tmp_path, at, "host-0")
        again.producer.ordinal = 30
        again.train(20)
    requests = [rank.asked() for rank in ranks[:2]]
    assert {(r.first_ordinal, r.last_ordinal) for r in requests} == {(60, 79)}


def profiled(rank: Rank, store: Path, *, write_trace: bool = True) -> None:
    """A window by hand of one rank, which has just replied.

    Args:
        write_trace: otherwise its trace is one whose end never comes.
    """
    rank.train(30)
    control = store / "job" / "control"
    control.mkdir(parents=True, exist_ok=True)
    order = ProfileOrder("w", 60, 79, (rank.producer.rank,), 20.0, "user", time.time_ns())
    (store / "job" / order_name("w")).write_bytes(encode_order(order))
    request = rank.asked()
    if write_trace:
        write(Path(request.path), trace(gpu_events(), rank=rank.producer.rank))
    else:
        Path(request.path).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(request.path)
    rank.reply(request)


def test_a_processor_that_is_stopped_summarizes_what_waits(
    hosts: list[Daemon], tmp_path: Path
) -> None:
    rank = Rank(hosts[0], tmp_path, 0, "host-0")
    profiled(rank, tmp_path)
    assert hosts[0].terminate() == 0
    assert set(ints(tmp_path / "job", "patterns", "rank")) == {0}
    assert strings(tmp_path / "job", "profiles", "trouble") == [None]


def test_a_second_signal_ends_at_once(hosts: list[Daemon], tmp_path: Path) -> None:
    rank = Rank(hosts[0], tmp_path, 0, "host-0")
    profiled(rank, tmp_path, write_trace=False)
    wait_for(lambda: bool(hosts[0].log_of("has profiled steps")), "reply")
    hosts[0].process.send_signal(signal.SIGTERM)
    wait_for(lambda: bool(hosts[0].log_of("a second signal ends that")), "log")
    assert hosts[0].terminate() == 0
    (trouble,) = strings(tmp_path / "job", "profiles", "trouble")
    assert trouble is not None and "the processor stopped before" in trouble


def test_the_end_of_a_job_does_not_wait_for_samples(hosts: list[Daemon], tmp_path: Path) -> None:
    rank = Rank(hosts[0], tmp_path, 0, "host-0")
    profiled(rank, tmp_path)
    wait_for(lambda: bool(hosts[0].log_of("has profiled steps")), "reply")
    assert hosts[0].flush("job", finish=True)["trouble"] is None
    assert set(ints(tmp_path / "job", "patterns", "rank")) == {0}


def test_a_store_that_is_gone_stops_nothing_else(hosts: list[Daemon], tmp_path: Path) -> None:
    blocked = tmp_path / "store"
    blocked.write_text("a file where the store should be")
    ranks = ranks_of(hosts, blocked)
    for rank in ranks:
        rank.train(100)
    for rank in ranks:
        rank.train(SLOW_STEPS, 3 * STEP_NS // 2)
    wait_for(lambda: bool(hosts[0].log_of("no synchronized profile")), "warning")
    for daemon in hosts:
        assert daemon.flush("job")["trouble"]
    assert all(daemon.is_alive for daemon in hosts)

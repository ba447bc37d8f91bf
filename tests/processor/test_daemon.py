"""The processor as users run it: a process with a socket that serves connections."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from stepscope.processor.daemon import Processor
from stepscope.processor.settings import Settings
from stepscope.trace import Host, ProcessGroup
from stepscope.wire.control import decode_hurry, decode_losses_stored, encode_parent
from stepscope.wire.frames import MAX_PACKET_BYTES, AtRisk, GroupInfo, PacketKind, pack

from .daemons import Daemon, command, ints, read, strings, wait_for
from .producers import OFFSET_NS, Producer

_WORDS = ("loader", "optimizer", "forward-compute", "dp-0", "AllReduce")


def _rank(store: Path, job: str, rank: int = 0) -> tuple[Producer, list[bytes]]:
    """A rank that has said hello, and the packets that it took."""
    producer = Producer(rank, job=job, store=str(store))
    return producer, [producer.hello(), producer.tell(*_WORDS)]


def _trained(producer: Producer, iterations: int = 12) -> bytes:
    records = [r for _ in range(iterations) for r in producer.iteration()]
    return producer.packet(*records, producer.phase("forward-compute"))


def test_ranks_of_two_jobs_fill_two_folders(daemon: Daemon, tmp_path: Path) -> None:
    lines = []
    for job in ("one", "two"):
        for rank in (0, 1):
            producer, packets = _rank(tmp_path, job, rank)
            group = producer.groups(GroupInfo("dp-0", "dp", (0, 1)), dp=2)
            lines.append(daemon.connect(*packets, group, _trained(producer)))
    for job in ("one", "two"):
        folder = tmp_path / job
        wait_for(lambda at=folder: len(ints(at, "steps", "rank")) == 24, "steps")  # type: ignore[misc]
        assert sorted(ints(folder, "steps", "rank")) == [0] * 12 + [1] * 12
        wait_for(lambda at=folder: len(ints(at, "phases", "rank")) == 2, "phases")  # type: ignore[misc]
        assert ints(folder, "phases", "step") == [12, 12]
        known = read(folder).job
        assert (known.job_id, known.world_size, known.parallelism) == (job, 2, {"dp": 2})
        assert known.groups == (ProcessGroup("dp-0", "dp", (0, 1)),)
        (host,) = known.hosts
        assert isinstance(host, Host) and host.ranks == (0, 1)
    for line in lines:
        line.close()


def test_running_ranks_are_asked_to_report_immediately(daemon: Daemon, tmp_path: Path) -> None:
    """And a job that has nothing to do with it is not."""
    with subprocess.Popen(["sleep", "600"]) as rank:
        stopped = Producer(1, job="halts", store=str(tmp_path), pid=rank.pid)
        _, packets = _rank(tmp_path, "halts")
        _, elsewhere = _rank(tmp_path, "trains")
        with (
            daemon.connect(stopped.hello()), daemon.connect(*packets) as line,
            daemon.connect(*elsewhere) as other,
        ):  # fmt: skip
            daemon.flush("halts")
            rank.send_signal(signal.SIGSTOP)
            assert decode_hurry(line.recv(MAX_PACKET_BYTES)).seconds > 0
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(MAX_PACKET_BYTES)
        rank.kill()


def test_a_launcher_may_report_a_stopped_rank(daemon: Daemon, tmp_path: Path) -> None:
    def tells(stopped: int | None) -> bytes:
        return pack(PacketKind.CONTROL, encode_parent(os.getpid(), stopped), os.getpid(), 0)

    with subprocess.Popen(["sleep", "600"]) as rank:
        stopped = Producer(1, job="told", store=str(tmp_path), pid=rank.pid)
        _, packets = _rank(tmp_path, "told")
        with (
            daemon.connect(stopped.hello()), daemon.connect(*packets) as line,
            daemon.connect(tells(None)) as launcher,
        ):  # fmt: skip
            daemon.flush("told")
            rank.send_signal(signal.SIGSTOP)
            launcher.send(tells(rank.pid))
            assert decode_hurry(line.recv(MAX_PACKET_BYTES)).seconds > 0
        rank.kill()


def test_a_flush_is_answered_when_everything_is_stored(daemon: Daemon, tmp_path: Path) -> None:
    producer, packets = _rank(tmp_path, "flushed")
    with daemon.connect(*packets, _trained(producer)):
        wait_for((tmp_path / "flushed").exists, "folder")
        assert daemon.flush("flushed") == {"flushed": "flushed", "trouble": None}
        assert ints(tmp_path / "flushed", "steps", "step") == list(range(12))


def test_a_flush_of_an_unknown_job_is_answered_too(daemon: Daemon) -> None:
    answer = daemon.flush("no such job")
    assert answer["flushed"] == "no such job"
    assert answer["trouble"].startswith("nothing was recorded of no such job: no process that")


def test_losses_are_stored_at_once_and_that_is_confirmed(daemon: Daemon, tmp_path: Path) -> None:
    """A rank names them to every next processor until one has."""
    producer = Producer(job="lost", store=str(tmp_path))
    with daemon.connect(producer.hello(AtRisk(10, 20, {"phases": 3}))) as line:
        assert decode_losses_stored(line.recv(MAX_PACKET_BYTES))
        assert ints(tmp_path / "lost", "losses", "rows") == [3]


def test_losses_that_cannot_be_stored_are_not_confirmed(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "lost").write_text("a file where the job's folder should be")
    producer = Producer(job="lost", store=str(tmp_path))
    with daemon.connect(producer.hello(AtRisk(10, 20, {"phases": 3}))) as line:
        assert daemon.flush("lost")["trouble"]
        assert not select.select([line], [], [], 0)[0]
        (tmp_path / "lost").unlink()
        assert decode_losses_stored(line.recv(MAX_PACKET_BYTES)), "once the store is there"


def test_the_list_of_outstanding_operators_is_replaced_and_removed(
    daemon: Daemon, tmp_path: Path
) -> None:
    folder = tmp_path / "flight"
    producer, packets = _rank(tmp_path, "flight")
    with daemon.connect(*packets, _trained(producer)) as line:
        line.send(producer.packet(producer.comm("AllReduce", 7)))
        wait_for(lambda: strings(folder, "comm_ops", "state") == ["started"], "open operator")
        producer.now_ns += 10
        line.send(producer.packet(producer.comm("AllReduce", 8)))
        wait_for(lambda: ints(folder, "comm_ops", "seq") == [7, 8], "second open operator")
        ends = [producer.comm("AllReduce", seq, end_ns=producer.now_ns) for seq in (7, 8)]
        line.send(producer.packet(*ends))
        wait_for(lambda: strings(folder, "comm_ops", "state") == ["done"] * 2, "ends")


def test_two_jobs_of_one_name_one_after_the_other(daemon: Daemon, tmp_path: Path) -> None:
    """Whoever gives the name again with another store wants it there."""
    for store in (tmp_path / "a", tmp_path / "b"):
        producer, packets = _rank(store, "again")
        with daemon.connect(*packets, _trained(producer)):
            wait_for(lambda at=store: len(ints(at / "again", "steps", "step")) == 12, "steps")  # type: ignore[misc]


_GARBAGE = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another-protocol"),
    pytest.param(b"\0", id="too-short"),
    pytest.param(pack(PacketKind.HELLO, b"{}", 1, 0), id="empty-hello"),
    pytest.param(pack(PacketKind.HELLO, b"[" * 60_000, 1, 0), id="deep-hello"),
    pytest.param(pack(PacketKind.CONTROL, b"[" * 60_000, 1, 0), id="deep-request"),
    pytest.param(pack(PacketKind.CONTROL, b'{"no": 1}', 1, 0), id="unknown-request"),
    pytest.param(pack(PacketKind.RECORDS, b"", 1, 0), id="no-hello"),
]


@pytest.mark.parametrize("garbage", _GARBAGE)
def test_invalid_connections_are_closed_and_others_served(
    daemon: Daemon, tmp_path: Path, garbage: bytes
) -> None:
    producer, packets = _rank(tmp_path, "served")
    with daemon.connect(*packets) as line:
        with daemon.connect(garbage) as stranger:
            assert stranger.recv(1) == b""
        line.send(_trained(producer))
        wait_for(lambda: len(ints(tmp_path / "served", "steps", "step")) == 12, "steps")


def test_a_repeated_invalid_connection_is_logged_once(daemon: Daemon) -> None:
    for _ in range(5):
        with daemon.connect(b"the same again, and again, every second") as stranger:
            assert stranger.recv(1) == b""

    assert len(daemon.log_of("magic is 0x20656874")) == 1


def test_ranks_are_served_beside_500_silent_connections(daemon: Daemon, tmp_path: Path) -> None:
    producer, packets = _rank(tmp_path, "served")
    with contextlib.ExitStack() as held:
        for _ in range(500):
            held.enter_context(daemon.connect())
        with daemon.connect(*packets, _trained(producer)):
            wait_for(lambda: len(ints(tmp_path / "served", "steps", "step")) == 12, "steps")
    assert daemon.is_alive


def test_a_job_that_cannot_be_stored_is_one_line_and_harms_no_other(
    daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "blocked").write_text("a file where the job's folder should be")
    lines = []
    for job in ("blocked", "fine"):
        producer, packets = _rank(tmp_path, job)
        lines.append(daemon.connect(*packets, _trained(producer)))
    wait_for(lambda: len(ints(tmp_path / "fine", "steps", "step")) == 12, "steps")
    wait_for(lambda: daemon.log_of(f"cannot write {tmp_path}/blocked") != [], "complaint")
    for line in lines:
        line.close()

    assert len(daemon.log_of(f"cannot write {tmp_path}/blocked")) == 1


@pytest.mark.parametrize("store", ["gopher://x", "s3://", "/\0/nul"])
def test_a_store_that_makes_no_sense(daemon: Daemon, tmp_path: Path, store: str) -> None:
    producer = Producer(job="senseless", store=store)
    good, packets = _rank(tmp_path, "sensible")
    with daemon.connect(producer.hello(), producer.tell(*_WORDS), _trained(producer)):
        with daemon.connect(*packets, _trained(good)):
            wait_for(lambda: len(ints(tmp_path / "sensible", "steps", "step")) == 12, "steps")
        assert daemon.is_alive


def test_there_is_one_processor_per_socket(daemon: Daemon) -> None:
    second = subprocess.run(command(daemon.path), capture_output=True, text=True, check=False)

    assert second.returncode == 2
    assert second.stderr == f"stepscope: a processor already listens on {daemon.path}\n"
    assert daemon.is_alive


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (Path("/tmp") / ("x" * 120), "a socket's path has at most 100 bytes"),
        (Path("/proc/nowhere/p.sock"), "cannot listen on /proc/nowhere/p.sock"),
    ],
)
def test_a_socket_that_cannot_be(path: Path, says: str) -> None:
    done = subprocess.run(command(path), capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and says in done.stderr and "--socket" in done.stderr


def test_an_idle_processor_stops_if_asked_to(socket_path: Path, tmp_path: Path) -> None:
    """Not while a rank is connected."""
    settings = Settings(socket_path, exit_when_idle=True, idle_seconds=0.3, sample_stacks=False)
    processor = Processor(settings)
    thread = threading.Thread(target=processor.run)
    thread.start()
    daemon = Daemon.__new__(Daemon)
    daemon.path = socket_path
    producer, packets = _rank(tmp_path, "idle")
    with daemon.connect(*packets) as line:
        thread.join(0.6)
        assert thread.is_alive()
        line.send(_trained(producer))
    thread.join()

    assert ints(tmp_path / "idle", "steps", "start_ns")[0] == OFFSET_NS
    assert not socket_path.exists()

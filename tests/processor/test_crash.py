"""Processors that are killed or stopped while ranks train. The rank here is this test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collect import guard, identity, sender
from stepscope.collect.session import Session
from stepscope.wire.records import COMM_DONE, COMM_OPEN, UNKNOWN, RecordKind, pack_peer

from .daemons import PATIENCE_SECONDS, Daemon, ints, strings, wait_for
from .producers import Producer


@pytest.fixture
def session(
    own_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    monkeypatch.setenv(identity.OWNER_VARIABLE, str(os.getpid()))
    monkeypatch.setenv(guard.RAISE_VARIABLE, "1")
    monkeypatch.setattr(sender, "RECONNECT_SECONDS", 0.05)
    who = identity.Identity("job", str(tmp_path), "host-0", rank=1, world_size=2)
    session = Session(str(own_daemon.path), who)
    yield session
    session.close()
    session.disable()


def _train(session: Session, iterations: int) -> None:
    phases = session.phases
    for _ in range(iterations):
        start, end = session.now(), session.now()
        session.note(phases.loaded, session.shared.ordinal, "loader", start, end)
        session.note(phases.optimizer, session.shared.ordinal, "optimizer", end, session.now())
        session.shared.ordinal += 1


def _operator(session: Session, seq: int, done: bool) -> None:
    now = session.now()[0]
    flags, end = (COMM_DONE, now) if done else (COMM_OPEN, UNKNOWN)
    op = pack_peer(session.name("AllReduce"), -1)
    session.emit(
        RecordKind.COMM, flags, session.name("dp-0"), op, seq, 64, now - 1000, end, UNKNOWN
    )


def test_a_killed_processor_is_followed_by_another(
    own_daemon: Daemon, session: Session, tmp_path: Path
) -> None:
    """Training goes on; rows go on; what may be lost is written down."""
    folder = tmp_path / "job"
    _train(session, 12)
    _operator(session, 0, done=False)
    wait_for(lambda: len(ints(folder, "steps", "step")) == 12, "steps")
    wait_for(lambda: strings(folder, "comm_ops", "state") == ["started"], "open operator")

    own_daemon.kill()
    _train(session, 15)
    own_daemon.start()
    wait_for(lambda: len(ints(folder, "steps", "step")) > 20, "steps after the restart")
    wait_for(lambda: strings(folder, "comm_ops", "state") == [], "end of the stale operator")
    _operator(session, 0, done=True)
    wait_for(lambda: strings(folder, "comm_ops", "state") == ["done"], "operator")

    assert ints(folder, "steps", "step") == sorted(set(ints(folder, "steps", "step")))
    lost = dict(
        zip(strings(folder, "losses", "table"), ints(folder, "losses", "rows"), strict=True)
    )
    assert lost == {"steps": 12, "phases": 24, "comm_ops": 1}
    assert set(ints(folder, "losses", "rank")) == {1}
    starts, ends = ints(folder, "losses", "start_ns"), ints(folder, "losses", "end_ns")
    assert all(start <= end for start, end in zip(starts, ends, strict=True))


def test_ranks_that_still_wait_at_the_door_are_heard_before_it_closes(
    own_daemon: Daemon, tmp_path: Path
) -> None:
    """As when a busy host is shut down right after its job began."""
    wait_for(lambda: bool(own_daemon.log_of("listens on")), "processor that runs")
    own_daemon.process.send_signal(signal.SIGSTOP)
    for rank in range(20):
        one = Producer(rank, store=str(tmp_path), world_size=20)
        hello, names = one.hello(), one.tell("loader", "optimizer", "work")
        own_daemon.connect(hello, names, one.packet(one.phase("work"))).close()
    own_daemon.process.send_signal(signal.SIGTERM)
    own_daemon.process.send_signal(signal.SIGCONT)
    assert own_daemon.process.wait(PATIENCE_SECONDS) == 0
    assert ints(tmp_path / "job-1", "phases", "rank") == list(range(20))


def test_a_terminated_processor_stores_what_it_has(own_daemon: Daemon, tmp_path: Path) -> None:
    """Rows that wait for the step sequence, too, and packets that nobody has read yet."""
    producer = Producer(job="job", store=str(tmp_path))
    producer.tell("loader", "optimizer", "forward-compute")
    with own_daemon.connect(producer.hello(), producer.tell("forward-compute")) as line:
        for _ in range(100):
            line.send(producer.packet(producer.phase("forward-compute")))
        assert own_daemon.terminate() == 0

    assert len(ints(tmp_path / "job", "phases", "step")) == 100
    assert not own_daemon.path.exists()
    assert own_daemon.log.splitlines()[-1].endswith("stopped")


def test_a_socket_that_a_killed_processor_left_is_taken_over(own_daemon: Daemon) -> None:
    own_daemon.kill()
    assert own_daemon.path.exists()
    own_daemon.start()

    assert own_daemon.is_alive


def test_a_socket_that_somebody_deletes_is_there_again(own_daemon: Daemon, tmp_path: Path) -> None:
    """Cleaners of temporary folders do, and producers that start later would find none."""
    producer = Producer(job="job", store=str(tmp_path))
    own_daemon.path.unlink()
    wait_for(own_daemon.path.exists, "socket")
    own_daemon.path.unlink()
    own_daemon.path.with_suffix(".lock").unlink()
    wait_for(own_daemon.path.exists, "socket without a lock file")
    with own_daemon.connect(producer.hello(), producer.tell("forward-compute")) as line:
        line.send(producer.packet(producer.phase("forward-compute")))
        wait_for(lambda: list((tmp_path / "job").glob("topology/*")) != [], "job")
    assert own_daemon.terminate() == 0
    assert ints(tmp_path / "job", "phases", "rank") == [0]
    assert not own_daemon.path.exists()


def test_a_processor_that_ends_leaves_the_socket_of_the_next_one(own_daemon: Daemon) -> None:
    """The folder was deleted and a second processor was started before the first had ended."""
    first = own_daemon.process
    first.send_signal(signal.SIGSTOP)
    own_daemon.path.unlink()
    own_daemon.path.with_suffix(".lock").unlink()
    own_daemon.start()
    first.send_signal(signal.SIGCONT)
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_SECONDS) == 0
    with own_daemon.connect():
        assert own_daemon.is_alive

"""Processors that are slow, gone, or back: training notices none of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.collect import guard
from stepscope.collect.hooks.in_flight import (
    HURRIED_OPEN_AFTER_NS,
    OPEN_AFTER_NS,
    open_deadline_ns,
)
from stepscope.collect.sender import AT_RISK_NS
from stepscope.collect.session import Session
from stepscope.processor.operators.joiner import KERNEL_DELAY_NS, PLUGIN_DELAY_NS
from stepscope.processor.settings import Settings
from stepscope.processor.state.host_state import HOLD_NS, KERNELS_NS
from stepscope.wire.control import Hurry, encode_hurry, encode_losses_stored
from stepscope.wire.frames import GroupInfo, PacketKind, pack
from stepscope.wire.records import EventKind, RecordKind

from .listener import PATIENCE_SECONDS, Heard, Listener, Peer, rows


def _phases(session: Session, count: int, name: str = "work") -> None:
    for _ in range(count):
        session.phase(name, (0, 0, 0, 0, None), (1, 1, 0, 0, None))


def test_a_new_processor_is_told_everything_again(session: Session, listener: Listener) -> None:
    session.add_group(GroupInfo("tp-1", "tp", (2, 3)))
    session.add_parallelism({"tp": 2})
    _phases(session, 2)
    first = listener.accept()
    first.read_until(rows(2))
    first.close()
    _phases(session, 3, "later")
    heard = listener.accept().read_until(rows(3))

    assert heard.headers[0].packet == 0 and len(heard.hellos) == 1
    assert set(heard.names.values()) == {"work", "later"}
    assert heard.groups() == {"tp-1": ("tp", (2, 3))} and heard.parallelism == {"tp": 2}


def test_rows_that_may_have_died_with_a_processor_are_named(
    session: Session, listener: Listener
) -> None:
    """Everything that was sent is at risk; what could not be sent is sent to the next one."""
    _phases(session, 5)
    session.emit(RecordKind.COMM, 0, session.name("dp-0"))
    peer = listener.accept()
    before = peer.read_until(rows(6)).hellos[0]
    peer.close()
    listener.close()
    _phases(session, 7)
    heard = Listener(listener.path).accept().read_until(rows(7))

    (hello,) = heard.hellos
    assert hello.at_risk is not None
    assert dict(hello.at_risk.rows) == {"phases": 5, "comm_ops": 1}
    assert before.mono_ns <= hello.at_risk.start_ns <= hello.at_risk.end_ns
    assert (hello.wall_ns, hello.mono_ns) == (before.wall_ns, before.mono_ns)


@pytest.mark.parametrize(("loads", "optimizers", "steps"), [(8, 2, 2), (0, 3, 3), (4, 0, 4)])
def test_steps_at_risk_are_counted_by_their_ends(
    session: Session, listener: Listener, loads: int, optimizers: int, steps: int
) -> None:
    """Of a step with several batches; without a loader; without an optimizer."""
    for kind, count in ((EventKind.LOAD, loads), (EventKind.OPTIMIZER, optimizers)):
        for _ in range(count):
            session.emit(RecordKind.EVENT, kind, session.name("call"), 1, 1)
    peer = listener.accept()
    peer.read_until(rows(loads + optimizers))
    peer.close()
    (hello,) = listener.accept().read_until(lambda heard: bool(heard.hellos)).hellos
    assert hello.at_risk is not None and hello.at_risk.rows == {"steps": steps}


def test_rows_stay_at_risk_until_somebody_heard_of_it(session: Session, listener: Listener) -> None:
    """A processor that dies before it read the hello has not recorded the loss."""
    _phases(session, 4)
    peer = listener.accept()
    peer.read_until(rows(4))
    peer.close()
    full = _without_room(session)
    _phases(session, 1)
    listener.accept().close()
    full.set()
    hello = listener.accept().read_until(rows(1)).hellos[0]

    assert hello.at_risk is not None and hello.at_risk.rows == {"phases": 4}


def test_rows_are_named_again_to_who_follows_a_processor_that_died_at_once(
    session: Session, listener: Listener
) -> None:
    """It may have died before it wrote down what the hello said."""
    _phases(session, 4)
    peer = listener.accept()
    peer.read_until(rows(4))
    for _ in range(2):
        peer.close()
        peer = listener.accept()
        (hello,) = peer.read_until(lambda heard: bool(heard.hellos)).hellos
        assert hello.at_risk is not None and hello.at_risk.rows == {"phases": 4}


def test_rows_of_several_processors_that_died_at_once_are_summed_up(
    session: Session, listener: Listener
) -> None:
    """None of them had the time to write down what its predecessors had lost."""
    sent = 0
    for count in (4, 3, 2):
        _phases(session, count)
        peer = listener.accept()
        heard = peer.read_until(rows(count))
        assert (heard.hellos[0].at_risk is not None) == bool(sent)
        peer.close()
        sent += count
    (hello,) = listener.accept().read_until(lambda heard: bool(heard.hellos)).hellos
    assert hello.at_risk is not None and hello.at_risk.rows == {"phases": sent}


def test_what_a_processor_has_stored_as_lost_is_not_named_again(
    session: Session, listener: Listener
) -> None:
    _phases(session, 4)
    peer = listener.accept()
    peer.read_until(rows(4))
    peer.close()
    second = listener.accept()
    second.read_until(lambda heard: bool(heard.hellos))
    second.connection.send(pack(PacketKind.CONTROL, encode_losses_stored(), 1, 0))
    _phases(session, 1)
    second.read_until(rows(1))
    second.close()
    (hello,) = listener.accept().read_until(lambda heard: bool(heard.hellos)).hellos
    assert hello.at_risk is not None and hello.at_risk.rows == {"phases": 1}


def test_rows_are_at_risk_for_longer_than_a_processor_keeps_them() -> None:
    longest = max(HOLD_NS, KERNELS_NS, PLUGIN_DELAY_NS, KERNEL_DELAY_NS) / 1e9
    settings = Settings()
    longest += max(settings.flush_seconds, settings.remote_flush_seconds)
    assert longest * 1e9 < AT_RISK_NS


def _without_room(session: Session) -> threading.Event:
    """Sends nothing until the event: as with a socket that has no room."""
    sender = session._sender
    room, send = threading.Event(), sender._send

    def blocked(*args: object) -> None:
        if not room.is_set():
            raise BrokenPipeError
        send(*args)  # type: ignore[arg-type]

    sender._send = blocked  # type: ignore[method-assign,assignment]
    return room


def test_a_processor_that_never_reads_blocks_nothing_and_loses_nothing_unsaid(
    session: Session, listener: Listener
) -> None:
    sent: Counter[str] = Counter()
    lock = threading.Lock()

    def train(kind: RecordKind, table: str, count: int) -> None:
        name = session.name("x")
        for _ in range(count):
            session.emit(kind, 0, name)
        with lock:
            sent[table] += count

    peer = _stuck(session, listener)
    sent["phases"] += 1
    threads = [
        threading.Thread(target=train, args=arguments)
        for arguments in (
            (RecordKind.PHASE, "phases", 40_000),
            (RecordKind.COMM, "comm_ops", 30_000),
            (RecordKind.PHASE, "phases", 20_000),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def received(heard: Heard) -> Counter[str]:
        kinds = Counter(row[0] for row in heard.rows)
        return Counter(phases=kinds[RecordKind.PHASE], comm_ops=kinds[RecordKind.COMM])

    heard = peer.read_until(lambda heard: received(heard) + heard.dropped() == sent)
    assert heard.dropped().total() > 10_000, "the queue holds 65,536"


def _stuck(session: Session, listener: Listener) -> Peer:
    """A connection that is there, and not read from."""
    _phases(session, 1)
    return listener.accept()


def test_nobody_listens_ever(session: Session) -> None:
    _phases(session, 100_000)
    session.close()


def test_a_path_that_no_socket_can_have(session: Session) -> None:
    session._sender._path = "/tmp/" + "x" * 200
    _phases(session, 1)
    session.close()


def test_a_processor_asks_to_be_told_at_once(session: Session, listener: Listener) -> None:
    before = open_deadline_ns(session)
    _phases(session, 1)
    peer = listener.accept()
    peer.read_until(rows(1))
    assert not session.is_hurried
    peer.connection.send(pack(PacketKind.CONTROL, encode_hurry(Hurry(60.0)), 1, 0))
    _wait_for(lambda: session.is_hurried)
    assert open_deadline_ns(session) - before > OPEN_AFTER_NS - HURRIED_OPEN_AFTER_NS
    peer.connection.send(pack(PacketKind.CONTROL, encode_hurry(Hurry(0.0)), 1, 0))
    _wait_for(lambda: not session.is_hurried)
    _phases(session, 1)
    peer.read_until(rows(2))


def test_a_processor_that_goes_is_missed_before_there_is_anything_to_send(
    session: Session, listener: Listener
) -> None:
    _phases(session, 1)
    peer = listener.accept()
    peer.read_until(rows(1))
    peer.close()
    assert listener.accept().read_until(lambda heard: bool(heard.hellos))


def test_what_is_no_request_is_a_fault_of_ours_and_harms_nobody(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(guard.RAISE_VARIABLE)
    faults = guard.faults.value
    _phases(session, 1)
    peer = listener.accept()
    peer.connection.send(b"nonsense")
    _wait_for(lambda: guard.faults.value > faults)
    _phases(session, 1)
    peer.read_until(rows(2))


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


_CHILD = """
import signal, sys
from stepscope.collect.identity import Identity
from stepscope.collect.sender import AT_RISK_NS
from stepscope.collect.session import Session
from stepscope.processor.operators.joiner import KERNEL_DELAY_NS, PLUGIN_DELAY_NS
from stepscope.processor.settings import Settings
from stepscope.processor.state.host_state import HOLD_NS, KERNELS_NS

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as command-line scripts like to do
session = Session(sys.argv[1], Identity("job", "", "host"))

def work(count):
    for _ in range(count):
        session.phase("work", (0, 0, 0, 0, None), (1, 1, 0, 0, None))

work(1)
"""


_PATIENT = "from stepscope.collect import sender; sender.EXIT_SECONDS = 60\n"
"""On a busy machine a second is short."""


def _run_child(socket_path: Path, code: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _CHILD + code, str(socket_path)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


@pytest.mark.usefixtures("unowned")
def test_the_last_records_arrive_when_a_script_ends(socket_path: Path, listener: Listener) -> None:
    """More than a socket holds, and the script does not wait."""
    child = _run_child(socket_path, f"{_PATIENT}work(50_000)")
    heard = listener.accept().read_to_the_end()

    assert child.wait() == 0
    assert len(heard.records(RecordKind.PHASE)) == 50_001


@pytest.mark.usefixtures("unowned")
def test_a_processor_that_dies_does_not_take_the_script_along(
    socket_path: Path, listener: Listener
) -> None:
    """Not even a script that wants to die of a broken pipe."""
    child = _run_child(
        socket_path,
        "input()\nwork(1)\nwhile session._sender._socket is not None: pass\nprint('alive')",
    )
    peer = listener.accept()
    peer.read_until(rows(1))
    peer.close()
    listener.close()

    assert child.communicate("go\n")[0] == "alive\n"
    assert child.returncode == 0


@pytest.fixture
def unowned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_OWNER", raising=False)

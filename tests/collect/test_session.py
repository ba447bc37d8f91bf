"""What a training process tells the processor, and when."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

import stepscope
from stepscope.collect import guard, identity
from stepscope.collect import session as session_module
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session
from stepscope.wire.control import decode_leaving
from stepscope.wire.frames import GroupInfo, PacketKind
from stepscope.wire.records import EventKind, RecordKind

from .listener import Heard, Listener, rows


def _phase(session: Session, name: str = "work") -> None:
    session.phase(name, (0, 0, 0, 0, None), (10, 4, 3, 0, None))


def test_a_hello_comes_first_then_names_then_records(session: Session, listener: Listener) -> None:
    session.add_group(GroupInfo("dp-0", "dp", (0, 1)))
    session.add_parallelism({"dp": 2})
    _phase(session)
    heard = listener.accept().read_until(rows(1))

    kinds = [header.kind for header in heard.headers]
    assert kinds[:2] == [PacketKind.HELLO, PacketKind.NAMES]
    assert [header.packet for header in heard.headers] == list(range(len(kinds)))
    (hello,) = heard.hellos
    assert (hello.job, hello.store, hello.host) == ("job-1", "/store", "host-0")
    assert (hello.rank, hello.world_size, hello.local_rank) == (3, 8, 1)
    assert hello.pid == os.getpid() and hello.at_risk is None
    assert abs(hello.wall_ns - hello.mono_ns - time.time_ns() + time.monotonic_ns()) < 10**9
    assert heard.groups() == {"dp-0": ("dp", (0, 1))} and heard.parallelism == {"dp": 2}
    (record,) = heard.records()
    assert (record.kind, record.name, record.fields[1:6]) == (
        RecordKind.PHASE, "work", (0, 10, 3, 4, -1),
    )  # fmt: skip


def test_the_rank_that_torch_distributed_knows_counts(session: Session, listener: Listener) -> None:
    session.find_rank = lambda: (5, 6)
    _phase(session)
    (hello,) = listener.accept().read_until(rows(1)).hellos

    assert (hello.rank, hello.world_size) == (5, 6)


@pytest.mark.parametrize("kind", [RecordKind.EVENT, RecordKind.PHASE, RecordKind.COMM])
def test_nothing_is_said_before_a_sign_of_training(
    session: Session, listener: Listener, kind: RecordKind
) -> None:
    """Launchers and compilers import torch, too: they collect garbage, and never train."""
    session.name("gc")
    session.add_parallelism({"dp": 2})
    session.emit(RecordKind.PAUSE, 0, 0, 1, 2)
    session.count("a-counter", 1)
    assert not session.started and not listener.has_visitor()

    session.emit(kind, 0, session.name("x"))
    heard = listener.accept().read_until(rows(1))
    assert [record.kind for record in heard.records()] == [kind]


def test_a_child_that_inherits_the_environment_keeps_quiet(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is the worker; it has the same rank in its environment."""
    monkeypatch.setenv(identity.OWNER_VARIABLE, str(os.getppid()))
    _phase(session)
    session.close()

    assert not session.enabled and not listener.has_visitor()


def test_a_forked_child_is_silent_and_holds_nothing_open(
    session: Session, listener: Listener
) -> None:
    _phase(session)
    peer = listener.accept()
    peer.read_until(rows(1))
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        for _ in range(1000):
            _phase(session, "child")
        session.close()
        os.read(wait, 1)  # outlives its parent's session
        os._exit(int(session.enabled))
    _phase(session)
    session.close()
    heard = peer.read_to_the_end()
    os.close(go)
    os.close(wait)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {header.pid for header in heard.headers} == {os.getpid()}
    assert [record.name for record in heard.records()] == ["work", "work"]


@pytest.mark.parametrize("is_rank", [True, False])
def test_of_children_forked_before_training_only_ranks_record(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch, is_rank: bool
) -> None:
    """A launcher or a notebook imports torch and forks its ranks; a data loader forks workers."""
    monkeypatch.delenv(identity.OWNER_VARIABLE)
    child = os.fork()
    if child == 0:
        os.environ["LOCAL_RANK"] = "2"
        session.find_rank = lambda: (2, 4) if is_rank else None
        _phase(session, "child")
        session.close()
        os._exit(int(session.enabled))
    if is_rank:
        (hello,) = listener.accept().read_until(rows(1)).hellos
        assert (hello.pid, hello.rank, hello.world_size, hello.local_rank) == (child, 2, 4, 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(is_rank)
    assert not listener.has_visitor()


def _fails(session: Session, as_torch_does: bool) -> None:
    session.find_rank = lambda: (0, 2)
    _phase(session)
    try:
        raise ValueError("record 7 is corrupt")
    except ValueError:
        if as_torch_does:
            sys.exit(1)
        raise


@pytest.mark.parametrize("as_torch_does", [True, False])
def test_an_exception_that_ends_a_forked_rank_is_reported(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch, as_torch_does: bool
) -> None:
    """Without it, the ranks that fail because a peer has gone look no different from that peer."""
    monkeypatch.delenv(identity.OWNER_VARIABLE)
    child = multiprocessing.get_context("fork").Process(
        target=_fails, args=(session, as_torch_does)
    )
    child.start()
    heard = listener.accept().read_to_the_end()
    child.join()
    assert child.exitcode == 1 and len(heard.records()) == 1
    (leaving,) = [one for one in map(decode_leaving, heard.controls) if one is not None]
    assert leaving.error == "ValueError: record 7 is corrupt"
    assert "_fails" in leaving.frames[-1]


def test_a_rank_that_its_launcher_forked_names_its_own_main_thread(
    new_session: Callable[[], Session], listener: Listener
) -> None:
    """`threading` may still know the launcher's: the time it waited for a CPU would be missing."""
    child = os.fork()
    if child == 0:
        os.environ[identity.OWNER_VARIABLE] = str(os.getpid())
        _phase(new_session())
        while True:
            time.sleep(1)
    try:
        (hello,) = listener.accept().read_until(rows(1)).hellos
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (hello.pid, hello.thread_id) == (child, child)


def test_the_thread_that_steps_the_optimizer_is_the_one_that_is_measured(session: Session) -> None:
    def train() -> None:
        for _ in range(2):
            session.stepped()

    assert session.training_thread == threading.get_ident()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert session.training_thread == thread.ident


def test_two_threads_that_step_in_turns_change_nothing(session: Session) -> None:
    for _ in range(3):
        thread = threading.Thread(target=session.stepped)
        thread.start()
        thread.join()
        session.stepped()
    assert session.training_thread == threading.get_ident()


def test_phases_of_ones_own(installed: Session, listener: Listener) -> None:
    @stepscope.phase("decorated")
    def work(number: int) -> int:
        return number + 1

    with stepscope.phase("outer"), stepscope.phase("inner"):
        assert work(1) == 2
    with pytest.raises(KeyError, match="the user's"), stepscope.phase("failing"):
        raise KeyError("the user's")
    heard = listener.accept().read_until(rows(4))

    assert [r.name for r in heard.records()] == ["decorated", "inner", "outer", "failing"]
    spans = {r.name: (r.fields[1], r.fields[1] + r.fields[2]) for r in heard.records()}
    assert spans["outer"][0] <= spans["inner"][0] <= spans["inner"][1] <= spans["outer"][1]


def test_a_phase_without_a_session_does_nothing() -> None:
    with stepscope.phase("nothing"):
        assert stepscope.phase("no")(lambda: 7)() == 7


def test_forward_is_what_lies_between_a_batch_and_backward(
    session: Session, listener: Listener
) -> None:
    phases = session.phases
    session.note(phases.loaded, 0, "loader", _at(90), _at(100))
    session.note(phases.backward, 0, _at(150), _at(180, 20))
    session.note(phases.backward, 0, _at(190, 20), _at(200, 20))
    session.note(phases.optimizer, 0, "optimizer", _at(205, 20), _at(210, 20))
    session.note(phases.backward, 1, _at(230, 20), _at(240, 20))
    heard = listener.accept().read_until(lambda heard: len(_phases(heard, "compute")) == 6)

    assert _phases(heard, "forward-compute") == [
        (100, 50, 0, 0, 0), (180, 10, 0, 1, 0), (210, 20, 0, 0, 1)
    ]  # fmt: skip
    assert _phases(heard, "backward-compute") == [
        (150, 30, 20, 0, 0), (190, 10, 0, 1, 0), (230, 10, 0, 0, 1)
    ]  # fmt: skip


def _at(time_ns: int, blocked_ns: int = 0) -> Moment:
    return time_ns, 0, blocked_ns, 0, None


def _phases(heard: Heard, name: str) -> list[tuple[int, ...]]:
    """Start, duration, waiting, microbatch and ordinal of the phases whose name ends so."""
    records = heard.records(RecordKind.PHASE)
    return [
        (*r.fields[1:4], r.fields[5], r.ordinal) for r in records if (r.name or "").endswith(name)
    ]


def test_numbered_names_do_not_fill_the_memory(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MOST_NAMES", 3)
    for step in range(6):
        _phase(session, f"step {step}")
    heard = listener.accept().read_until(rows(6))

    assert [r.name for r in heard.records()] == ["step 0", "step 1", "step 2"] + ["(other)"] * 3
    assert len(heard.names) == 4


def test_an_endless_name_is_cut(session: Session, listener: Listener) -> None:
    assert session.name("x" * 100_000) == session.name("x" * 100_000)
    _phase(session, "x" * 100_000)
    (record,) = listener.accept().read_until(rows(1)).records()

    assert record.name == "x" * 199 + "…"


def test_a_garbage_collection_in_mid_name_may_name_something(session: Session) -> None:
    """Its callback runs on whatever thread allocates, also while that one is in `name`."""

    class Interrupting(str):
        __slots__ = ()

        def __hash__(self) -> int:
            session.name("gc")
            return str.__hash__(self)

    ids = [session.name(Interrupting("outer")), session.name("gc"), session.name("other")]

    assert len(set(ids)) == 3


def test_a_task_that_fails_keeps_no_record_from_its_way(
    session: Session,
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(guard.RAISE_VARIABLE)
    monkeypatch.setattr(guard, "_seen", set())

    def broken() -> None:
        raise RuntimeError("oh")

    session.before_flush.append(broken)
    session.before_hello.append(broken)
    session.find_rank = lambda: 1 // 0  # type: ignore[assignment,return-value]
    _phase(session)

    (hello,) = listener.accept().read_until(rows(1)).hellos
    assert hello.rank == 3
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2 and "broken" in told[0] and "lambda" in told[1]


def test_faults_and_our_own_cost_are_reported(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "faults", guard.Faults())
    session.before_flush.append(session_module.fault_counter(session))
    guard.faults.add("hook of this", times=2)
    guard.faults.add("hook of that")
    _phase(session)

    def told(heard: Heard) -> bool:
        return len(heard.records(RecordKind.COUNT)) >= 5

    counts = listener.accept().read_until(told).records(RecordKind.COUNT)
    values = {record.name: record.fields[1] for record in counts}
    assert values["stepscope_internal_faults"] == 3
    assert values["stepscope_internal_faults:hook of this"] == 2
    assert values["stepscope_sender_cpu_ns"] >= 0


def test_sessions_take_records_from_many_threads(
    new_session: Callable[[], Session], listener: Listener
) -> None:
    session = new_session()
    session.emit(RecordKind.EVENT, EventKind.LOAD, session.name("loader"), 1, 2)
    for thread in [
        threading.Thread(target=lambda n=n: _phase(session, f"thread {n}")) for n in range(8)
    ]:
        thread.start()
    heard = listener.accept().read_until(rows(9))

    assert {r.name for r in heard.records(RecordKind.PHASE)} == {f"thread {n}" for n in range(8)}

"""What native producers share: every record arrives or is counted, whatever happens meanwhile."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.collect import identity
from stepscope.wire.control import encode_losses_stored
from stepscope.wire.frames import Hello, PacketKind, pack
from stepscope.wire.records import RecordKind
from tests.collect.listener import Heard, Listener, rows
from tests.processor.impostor import as_root, impostor, received

from .conftest import Start
from .driver import environment

MANY, THREADS = 20_000, 8


def all_of(count: int) -> Callable[[Heard], bool]:
    """Enough once so many kernels came or were told of as dropped."""
    return lambda heard: kernels(heard) + heard.dropped()["kernels"] >= count


def kernels(heard: Heard) -> int:
    return len(heard.records(RecordKind.KERNEL))


def test_it_says_who_it_is_as_python_does(listener: Listener, start: Start, driver: Path) -> None:
    job = os.fsdecode(b'l\xc3\xa4ma "7b"\\ \xff\t')
    process = start(driver, STEPSCOPE_JOB=job, LOCAL_RANK="5", SLURM_RESTART_COUNT="3")
    assert process.ask("start", "cupti", 16) == "started"
    (pid,) = process.numbers("pid")

    (hello,) = listener.accept().read_until(lambda heard: bool(heard.hellos)).hellos

    env = environment(listener.path, STEPSCOPE_JOB=job, LOCAL_RANK="5", SLURM_RESTART_COUNT="3")
    who = dataclasses.asdict(identity.from_environment(env))
    clocks = (hello.wall_ns, hello.mono_ns)
    assert hello == Hello(
        **who, pid=pid, thread_id=pid, wall_ns=clocks[0], mono_ns=clocks[1], source="cupti"
    )
    assert hello.wall_ns > hello.mono_ns > 0
    process.end()


def test_a_rank_that_no_world_could_hold_is_none(
    listener: Listener, start: Start, driver: Path
) -> None:
    process = start(driver, RANK=str(2**31 - 1), SLURM_PROCID="3")
    process.ask("start", "cupti", 16)
    (hello,) = listener.accept().read_until(lambda heard: bool(heard.hellos)).hellos
    assert (hello.rank, hello.world_size) == (3, 4)
    process.end()


@pytest.mark.parametrize(
    "env", [{"STEPSCOPE_SOCKET": ""}, {"STEPSCOPE_OWNER": "1"}], ids=["nobody asked", "a child"]
)
def test_it_stays_away(start: Start, driver: Path, env: dict[str, str]) -> None:
    process = start(driver, **env)
    assert process.ask("start", "cupti", 16) == "none"
    process.end()


def test_records_from_many_threads_arrive_or_are_counted(
    listener: Listener, start: Start, racing_driver: Path
) -> None:
    process = start(racing_driver)
    process.ask("start", "cupti", 4096)
    put, dropped = process.numbers("kernels", THREADS, MANY)

    heard = listener.accept().read_until(all_of(THREADS * MANY))

    assert put + dropped == THREADS * MANY
    assert (kernels(heard), heard.dropped()["kernels"]) == (put, dropped)
    assert sum(header.dropped for header in heard.headers) == dropped
    assert [header.packet for header in heard.headers] == list(range(len(heard.headers)))
    of_thread = [
        [r.fields[3] for r in heard.records() if r.name == f"thread {at}"] for at in (0, 7)
    ]
    assert all(order == sorted(set(order)) for order in of_thread)
    process.end()


def test_a_reader_who_does_not_read_keeps_nobody_waiting(
    listener: Listener, start: Start, driver: Path
) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    put, dropped = process.numbers("kernels", 1, MANY)
    assert dropped > 0, "a socket holds some 200 KB"

    heard = listener.accept().read_until(all_of(MANY))

    assert (kernels(heard), heard.dropped()["kernels"]) == (put, dropped)
    process.end()


def test_a_forked_child_is_silent(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    process.ask("kernels", 1, 10)
    peer = listener.accept()
    peer.read_until(rows(10))

    assert process.numbers("fork") == [0]

    process.ask("kernels", 1, 10)
    process.end()
    heard = peer.read_to_the_end()
    assert kernels(heard) == 20 and "in the child" not in heard.names.values()
    assert not listener.has_visitor()


def test_a_script_that_closes_all_descriptors_keeps_its_own(
    listener: Listener, start: Start, driver: Path
) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    process.ask("kernels", 1, 10)
    listener.accept().read_until(rows(10))
    process.ask("take")
    process.ask("kernels", 1, 7)
    assert kernels(listener.accept().read_until(rows(7))) == 7
    assert process.numbers("fork") == [0]
    process.ask("stop")
    assert process.ask("taken") == "untouched"
    process.end()


def test_what_is_left_at_the_end_is_sent(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    process.ask("kernels", 1, 500)
    process.end()
    assert kernels(listener.accept().read_to_the_end()) == 500


def test_it_can_be_stopped_and_says_no_more(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    process.ask("kernels", 1, 5)
    process.ask("stop")
    assert kernels(listener.accept().read_to_the_end()) == 5
    assert process.numbers("kernels", 1, 5) == [0, 0]
    process.end()


def test_who_leaves_by_os_exit_loses_the_tail_only(
    listener: Listener, start: Start, driver: Path
) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    process.ask("kernels", 1, 10)
    peer = listener.accept()
    peer.read_until(rows(10))
    process.ask("kernels", 1, 7)
    process.end("_exit")
    assert kernels(peer.read_to_the_end()) in (10, 17)


def test_a_processor_that_died_is_told_what_may_be_lost(
    listener: Listener, start: Start, driver: Path
) -> None:
    process = start(driver)
    process.ask("start", "cupti", 1024)
    process.ask("kernels", 1, 12)
    first = listener.accept()
    first.read_until(rows(12))
    first.close()

    second = listener.accept()
    process.ask("kernels", 1, 3)
    heard = second.read_until(rows(3))

    (hello,) = heard.hellos
    assert hello.at_risk is not None and dict(hello.at_risk.rows) == {"kernels": 12}

    second.close()  # at once, so it may not have stored that
    third = listener.accept()
    (hello,) = third.read_until(lambda heard: bool(heard.hellos)).hellos
    assert hello.at_risk is not None and dict(hello.at_risk.rows) == {"kernels": 15}

    third.connection.send(pack(PacketKind.CONTROL, encode_losses_stored(), 1, 0))
    process.ask("kernels", 1, 1)
    third.read_until(rows(1))
    third.close()
    (hello,) = listener.accept().read_until(lambda heard: bool(heard.hellos)).hellos
    assert hello.at_risk is not None and dict(hello.at_risk.rows) == {"kernels": 1}
    assert "thread 0" in heard.names.values(), "names are told anew"
    process.end()


def test_names_of_any_kind_and_number(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    process.ask("start", "nccl", 64)
    (other,) = process.numbers("names", 12_000)
    process.ask("kernel", 5, 6, 'void gemm<"a\\b", µ>')
    process.ask("kernel", 5, 6, "x" * 3000)

    heard = listener.accept().read_until(rows(2))

    assert heard.names[other] == "(other)"
    assert len(heard.names) == len(set(heard.names.values())) == 10_001
    assert [record.name for record in heard.records()] == ["(other)", "(other)"]
    process.end()


def test_a_name_is_told_as_it_can_be(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    process.ask("start", "nccl", 64)
    process.ask("kernel", 5, 6, 'void gemm<"a\\b", µ>')
    process.ask("kernel", 5, 6, "x" * 3000)
    heard = listener.accept().read_until(rows(2))
    assert [record.name for record in heard.records()] == ['void gemm<"a\\b", ??>', "x" * 1000]
    process.end()


def test_it_hears_what_the_processor_asks(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    process.ask("start", "nccl", 64)
    peer = listener.accept()
    for said in ({"hurry_seconds": 2.0}, {"events": 5}):
        payload = json.dumps(said).encode()
        peer.connection.send(pack(PacketKind.CONTROL, payload, os.getpid(), 0))
    peer.connection.send(b"no packet")

    while (answer := process.ask("heard")) in ("|-1", '{"hurry_seconds": 2.0}|-1'):
        pass
    assert answer == '{"events": 5}|5'
    process.end()


@as_root
def test_a_native_producer_tells_another_users_process_nothing(
    socket_path: Path, start: Start, driver: Path
) -> None:
    process = start(driver)
    with impostor(socket_path) as listens:
        process.ask("start", "cupti", 16)
        process.ask("kernels", 1, 3)
        assert received(listens) == 0
    process.end()

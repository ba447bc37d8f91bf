"""The plugin for NCCL's profiler, called as NCCL calls it: by versions 4, 5 and 6 of its tables."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import time
from pathlib import Path

import pytest

import stepscope
from stepscope.wire.control import AS_USUAL, encode_events
from stepscope.wire.frames import GroupInfo, PacketKind, pack
from stepscope.wire.records import (
    ALGORITHM_SHIFT,
    ALGORITHMS,
    COMM_DONE,
    COMM_NATIVE,
    DTYPE_SHIFT,
    DTYPES,
    LAUNCH_SHIFT,
    PROTOCOL_SHIFT,
    PROTOCOLS,
    UNKNOWN,
    RecordKind,
    pack_peer,
    unpack_peer,
)
from tests.collect.listener import Heard, Listener, Record
from tests.processor.daemons import Daemon, ints, wait_for
from tests.processor.producers import Producer

from .conftest import Start
from .driver import Driver

VERSIONS = (4, 5, 6)
COLL, P2P, PROXIES, KERNELS = 2, 4, 8 + 16, 64
THREADS, EACH = 8, 500


def init(process: Driver, version: int, nodes: int = 2, hash: int = 0xAB, name: str = "") -> int:
    """A communicator of two ranks, of which this is the first."""
    (is_open,) = process.numbers("init", version, nodes, 2, 0, f"{hash:x}", name)
    return is_open


def told(listener: Listener, process: Driver) -> Heard:
    """All that it had to say when it left."""
    process.end()
    return listener.accept().read_to_the_end()


def watches(process: Driver, line: socket.socket, events: int) -> bool:
    """Whether it does; if not yet, a processor is asked once more to see to it."""
    line.send(pack(PacketKind.CONTROL, encode_events("job-1", events), 1, 0))
    return process.numbers("mask") == [events]


def comms(heard: Heard) -> list[Record]:
    return heard.records(RecordKind.COMM)


def requests(heard: Heard) -> tuple[int, int, int]:
    """Posted, completed, and bytes."""
    rows = [record.fields for record in heard.records(RecordKind.TRANSFER)]
    return sum(r[5] for r in rows), sum(r[6] for r in rows), sum(r[4] for r in rows)


def metric(heard: Heard, name: str) -> int | None:
    return next((r.fields[1] for r in heard.records(RecordKind.COUNT) if r.name == name), None)


@pytest.mark.parametrize("version", VERSIONS)
def test_collectives_and_what_they_send(
    listener: Listener, start: Start, driver: Path, version: int
) -> None:
    process = start(driver)
    assert init(process, version, name="my group") == 1
    process.ask("collectives", version, 3, 4)

    heard = told(listener, process)

    told_ns = time.monotonic_ns()
    assert [record.name for record in comms(heard)] == ["nccl-00000000000000ab 0/2 my group"] * 3
    for seq, record in enumerate(comms(heard)):
        _, op_peer, number, size, enqueue_ns, end_ns, start_ns = record.fields
        op, peer = unpack_peer(op_peer)
        assert (heard.names[op], peer, number, size) == ("AllReduce", -1, seq, 2048)
        assert enqueue_ns <= end_ns < told_ns and start_ns == end_ns - 3000
    assert requests(heard) == (12, 12, 12 * 512)
    (sent,) = heard.records(RecordKind.TRANSFER)
    assert heard.names[sent.flags] == comms(heard)[0].name
    assert sent.fields[:2] == (UNKNOWN, 1) and sent.fields[2] < sent.fields[3]
    assert not heard.dropped() and metric(heard, "stepscope_nccl_strangers") is None


def test_the_devices_clock_is_as_late_as_the_quickest_notice_of_a_second(
    start: Start, driver: Path
) -> None:
    process, second = start(driver), 10**9
    noticed = ((-40, 0), (-70, 10), (-50, 20), (-60, second), (-30, 3 * second), (-90, 0))
    words = [word for pair in noticed for word in pair]
    assert process.numbers("device-clock", *words) == [-40, -70, -70, -70, -30, -90]


def test_how_an_operator_ran(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    init(process, 6)
    process.ask("collectives", 6, 1, 0)
    process.ask("strange-words", 6)

    known, *strange = comms(told(listener, process))

    assert known.flags & COMM_NATIVE
    assert ALGORITHMS[known.flags >> ALGORITHM_SHIFT & 15] == "ring"
    assert PROTOCOLS[known.flags >> PROTOCOL_SHIFT & 3] == "simple"
    assert DTYPES[known.flags >> DTYPE_SHIFT & 15] == "bfloat16"
    assert [record.flags >> DTYPE_SHIFT & 15 for record in strange] == [0, 0]
    assert [record.fields[3] for record in strange] == [UNKNOWN, UNKNOWN], "of no known type"


@pytest.mark.parametrize("version", VERSIONS)
def test_which_operators_one_kernel_carries_out(
    listener: Listener, start: Start, driver: Path, version: int
) -> None:
    process = start(driver)
    init(process, version, hash=1)
    process.ask("collectives", version, 16, 0)
    init(process, version, hash=2)
    process.ask("point-to-points", version)

    rows = comms(told(listener, process))

    launches = [record.flags >> LAUNCH_SHIFT for record in rows]
    assert launches[:16] == [*range(1, 16), 1], "one kernel each"
    assert launches[16:] == [1, 1], "both by one"


@pytest.mark.parametrize("version", VERSIONS)
def test_sends_and_receives(listener: Listener, start: Start, driver: Path, version: int) -> None:
    process = start(driver)
    init(process, version)
    process.ask("point-to-points", version)
    heard = told(listener, process)
    ops = [unpack_peer(record.fields[1]) for record in comms(heard)]
    assert [(heard.names[op], peer) for op, peer in ops] == [("Send", 3), ("Recv", 3)]
    assert [record.fields[3] for record in comms(heard)] == [400, 400]
    assert [record.fields[5:] for record in comms(heard)] == [(UNKNOWN, UNKNOWN)] * 2


def test_requests_that_do_not_complete(listener: Listener, start: Start, driver: Path) -> None:
    """Who receives posts nothing: it waits for others."""
    process = start(driver)
    init(process, 5)
    process.ask("hang", 5)
    heard = told(listener, process)
    assert requests(heard) == (2, 1, 300)
    assert not comms(heard), "it has not finished"


@pytest.mark.parametrize("version", VERSIONS)
def test_pointers_of_another_process_are_not_followed(
    listener: Listener, start: Start, driver: Path, version: int
) -> None:
    process = start(driver)
    init(process, version)
    assert process.numbers("for-another", version) == [1]
    heard = told(listener, process)
    assert requests(heard) == (0, 0, 0) and not comms(heard)


@pytest.mark.parametrize("version", VERSIONS)
def test_late_and_unknown_handles(
    listener: Listener, start: Start, driver: Path, version: int
) -> None:
    process = start(driver)
    init(process, version)
    process.ask("wrongly", version)
    heard = told(listener, process)
    assert requests(heard) == (1, 1, 64) and len(comms(heard)) == 1
    assert metric(heard, "stepscope_nccl_strangers") == 10


def test_events_that_are_not_followed(start: Start, listener: Listener, driver: Path) -> None:
    process = start(driver)
    init(process, 6)
    assert process.numbers("unknown", 6) == [4]
    assert not comms(told(listener, process))


def test_without_room_operators_are_counted(listener: Listener, start: Start, driver: Path) -> None:
    process = start(driver)
    init(process, 4)
    assert process.numbers("exhaust", 4, (1 << 14) + 100) == [100]
    heard = listener.accept().read_until(lambda heard: heard.dropped()["comm_ops"] > 0)
    assert heard.dropped() == {"comm_ops": 100}
    process.kill()


def test_from_many_threads_at_once(listener: Listener, start: Start, racing_driver: Path) -> None:
    process = start(racing_driver)
    for hash in range(THREADS + 1):
        init(process, 6, hash=hash)
    process.ask("threads", 6, THREADS, EACH)

    every = THREADS * EACH + 1
    heard = listener.accept().read_until(lambda heard: len(comms(heard)) >= every)

    assert len(comms(heard)) == every and not heard.dropped()
    for hash in range(1, THREADS + 1):
        seqs = [r.fields[2] for r in comms(heard) if r.name == f"nccl-{hash:016x} 0/2 "]
        assert sorted(seqs) == list(range(EACH))
    assert requests(heard) == (2 * (every - 1), 2 * (every - 1), 2 * (every - 1) * 512)
    process.end()


def test_what_is_watched_changes_while_it_runs(
    listener: Listener, start: Start, driver: Path
) -> None:
    process = start(driver)
    init(process, 5, nodes=1)
    peer = listener.accept()
    (mask,) = process.numbers("mask")
    assert mask & ~KERNELS == COLL | P2P, "nothing of the network within a host"
    for events in (0, COLL | PROXIES | 0xFF00):
        request = json.dumps({"nccl_events": events}).encode()
        peer.connection.send(pack(PacketKind.CONTROL, request, os.getpid(), 0))
        while process.numbers("mask") != [events & 0xFF]:
            pass
    init(process, 5, nodes=2)
    assert process.numbers("mask") == [COLL | PROXIES], "who chose is not overruled"
    request = json.dumps({"nccl_events": AS_USUAL}).encode()
    peer.connection.send(pack(PacketKind.CONTROL, request, os.getpid(), 0))
    while process.numbers("mask")[0] & ~KERNELS != COLL | P2P | PROXIES:
        pass
    process.end()


def test_where_nobody_asked_nothing_is_watched(start: Start, driver: Path) -> None:
    process = start(driver, STEPSCOPE_SOCKET="")
    assert init(process, 5) == 0
    assert process.numbers("mask") == [0]
    process.ask("collectives", 5, 2, 2)
    process.ask("wrongly", 5)
    process.end()


def test_the_library_shows_its_tables_only() -> None:
    """As the package's build made it."""
    path = Path(stepscope.__file__).parent / "lib" / "libnccl-profiler-stepscope.so"
    if not path.exists():
        pytest.skip("it was not built")
    library = ctypes.CDLL(str(path))
    for version in VERSIONS:
        name = ctypes.c_char_p.in_dll(library, f"ncclProfiler_v{version}")
        assert name.value == b"stepscope"
    assert not hasattr(library, "_ZN9stepscope8table_ofEm")


def beside_python(start: Start, driver: Path, store: Path) -> tuple[Driver, Producer]:
    """A rank that stores its job there, and the Python producer of its process."""
    process = start(driver, STEPSCOPE_STORE=str(store))
    return process, Producer(1, store=str(store), pid=process.numbers("pid")[0])


def test_requests_in_the_job_folder(
    start: Start, driver: Path, daemon: Daemon, tmp_path: Path
) -> None:
    """Through a processor, beside the Python producer of the process."""
    process, python = beside_python(start, driver, tmp_path)
    group = GroupInfo("dp-0", "dp", (1, 0))
    with daemon.connect(python.hello(), python.groups(group)):
        init(process, 6)
        process.ask("collectives", 6, 3, 4)
        with daemon.connect() as line:
            wait_for(lambda: watches(process, line, COLL), "other mask")
        process.end()
        daemon.flush("job-1")
        job = tmp_path / "job-1"
        wait_for(lambda: sum(ints(job, "transfers", "completed")) == 12, "requests")
    assert set(ints(job, "transfers", "peer")) == {0}
    assert set(ints(job, "transfers", "rank")) == {1}


def test_one_row_per_operator_in_the_job_folder(
    start: Start, driver: Path, daemon: Daemon, tmp_path: Path
) -> None:
    """What hooks and the plugin tell of the same ones, through a processor."""
    process, python = beside_python(start, driver, tmp_path)
    group = python.groups(GroupInfo("dp-0", "dp", (1, 0)))
    names = python.tell("dp-0", "AllReduce")
    # by the true clocks: rows wait for their counterparts
    hello = python.hello(wall_ns=time.time_ns() - time.monotonic_ns())
    with daemon.connect(hello, group, names) as line:
        init(process, 6)
        with daemon.connect() as other:  # by then the plugin is known there
            wait_for(lambda: watches(process, other, COLL), "other mask")
        for seq in range(3):
            line.send(python.packet(launched(python, seq)))
            process.ask("collectives", 6, 1, 0)
        process.end()
    daemon.flush("job-1")
    job = tmp_path / "job-1"
    wait_for(lambda: len(ints(job, "comm_ops", "seq")) == 3, "operators")
    spans = zip(*(ints(job, "comm_ops", f"{end}_ns") for end in ("start", "end")), strict=True)
    assert [end_ns - start_ns for start_ns, end_ns in spans] == [3000] * 3
    assert sorted(ints(job, "comm_ops", "seq")) == [0, 1, 2]


def launched(python: Producer, seq: int) -> bytes:
    """A call that was handed to a device, just now."""
    op_peer = pack_peer(python.names["AllReduce"], -1)
    fields = (python.names["dp-0"], op_peer, seq, 2048, time.monotonic_ns(), UNKNOWN, UNKNOWN)
    return python.record(RecordKind.COMM, COMM_DONE, *fields)

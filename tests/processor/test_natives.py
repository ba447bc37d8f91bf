"""Native producers in the same process as a Python producer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.processor.instructions import Append, Instruction, JobKnown, Relay, Unwatch, Watch
from stepscope.processor.state.host_state import KERNELS_NS
from stepscope.processor.state.natives import MOST_STEPS, StepEnds
from stepscope.store.encode import arrow_table
from stepscope.trace import ProcessGroup
from stepscope.window import NULL
from stepscope.wire.control import encode_events
from stepscope.wire.frames import GroupInfo, PacketKind, pack
from stepscope.wire.records import (
    ALGORITHM_SHIFT,
    COMM_NATIVE,
    DTYPE_SHIFT,
    PROTOCOL_SHIFT,
    RECORD,
    UNKNOWN,
    UNKNOWN_ORDINAL,
    RecordKind,
    pack_peer,
)

from .producers import CUPTI_AT, MS, NCCL_AT, OFFSET_NS, PYTHON_AT, ThreeProducers


class Process(ThreeProducers):
    """One training process with three producers, of which only Python knows the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = OFFSET_NS

    def send(self, at: int, data: bytes) -> list[Instruction]:
        return self.state.packet(at, data, self.now_ns)

    def train(self, iterations: int) -> None:
        """Each loads and steps for 10 ms in all."""
        self.send(PYTHON_AT, self.python.hello())
        self.send(PYTHON_AT, self.python.tell("loader", "optimizer"))
        events = [event for _ in range(iterations) for event in self.python.iteration()]
        self.send(PYTHON_AT, self.python.packet(*events))

    def kernels(self, *starts_ns: int) -> None:
        self.send(CUPTI_AT, self.cupti.tell("gemm"))
        records = [
            RECORD.pack(RecordKind.KERNEL, 0, UNKNOWN_ORDINAL, 0, 7, at, MS, UNKNOWN, 0, 0)
            for at in starts_ns
        ]
        self.send(CUPTI_AT, self.cupti.packet(*records))

    def nccl_tells(self, *names: str) -> list[Instruction]:
        self.send(NCCL_AT, self.nccl.hello())
        return self.send(NCCL_AT, self.nccl.tell(*names))

    def request(self, peer: int, posted: int, completed: int) -> None:
        """Of the first communicator."""
        fields = (UNKNOWN, peer, 11 * MS, 20 * MS, 4096, posted, completed)
        record = RECORD.pack(RecordKind.TRANSFER, 0, UNKNOWN_ORDINAL, *fields)
        self.send(NCCL_AT, self.nccl.packet(record))

    def operator(
        self, op: str, peer: int = -1, start_ns: int = UNKNOWN, end_ns: int = UNKNOWN
    ) -> None:
        flags = COMM_NATIVE | 2 << ALGORITHM_SHIFT | 3 << PROTOCOL_SHIFT | 10 << DTYPE_SHIFT
        fields = (0, pack_peer(self.nccl.names[op], peer), 0, 64, 10, end_ns, start_ns)
        record = RECORD.pack(RecordKind.COMM, flags, UNKNOWN_ORDINAL, *fields)
        self.send(NCCL_AT, self.nccl.packet(record))

    def drop(self, table: str, rows: int) -> None:
        self.send(NCCL_AT, self.nccl.tell(f"dropped.{table}"))
        fields = (self.nccl.names[f"dropped.{table}"], rows, 20, 10, 0, 0, 0)
        record = RECORD.pack(RecordKind.COUNT, 0, UNKNOWN_ORDINAL, *fields)
        self.send(NCCL_AT, self.nccl.packet(record))

    def later(self) -> list[Instruction]:
        self.now_ns += KERNELS_NS + 1
        return self.state.tick(self.now_ns)


@pytest.fixture
def process() -> Process:
    return Process()


def rows_of(instructions: list[Instruction], table: str) -> Any:
    (it,) = [it for it in instructions if isinstance(it, Append) and it.table == table]
    return it.rows


def test_the_python_producer_knows_rank_and_steps(process: Process) -> None:
    process.send(CUPTI_AT, process.cupti.hello())
    process.kernels(0, 9 * MS, 11 * MS, 119 * MS, 125 * MS)
    process.train(12)

    rows = rows_of(process.later(), "kernels")

    assert rows["rank"].tolist() == [3] * 5
    assert rows["step"].tolist() == [0, 0, 1, 11, 12]
    assert rows["start_ns"].tolist()[:2] == [OFFSET_NS, OFFSET_NS + 9 * MS]


def test_its_clock_counts_for_all_of_the_process(process: Process) -> None:
    process.train(12)
    process.send(CUPTI_AT, process.cupti.hello(wall_ns=OFFSET_NS + 77))
    process.kernels(5)
    assert rows_of(process.later(), "kernels")["start_ns"].tolist() == [OFFSET_NS + 5]


def test_steps_are_known_even_if_the_python_producer_leaves_first(process: Process) -> None:
    process.send(CUPTI_AT, process.cupti.hello())
    process.train(12)
    process.kernels(35 * MS)
    process.state.disconnected(PYTHON_AT)
    rows = rows_of(process.state.disconnected(CUPTI_AT), "kernels")
    assert (rows["rank"].tolist(), rows["step"].tolist()) == ([3], [3])


def test_without_python_it_is_the_launchers_rank_and_no_step(process: Process) -> None:
    process.cupti.rank = 2
    process.send(CUPTI_AT, process.cupti.hello())
    process.kernels(5)
    rows = rows_of(process.later(), "kernels")
    assert (rows["rank"].tolist(), rows["step"].tolist()) == ([2], [NULL])


def test_a_process_of_another_host_is_another(process: Process) -> None:
    """A simulated one, or one in a container with the same number."""
    process.train(12)
    process.cupti.host, process.cupti.rank = "host-9", 6
    process.send(CUPTI_AT, process.cupti.hello())
    process.kernels(5)
    assert rows_of(process.later(), "kernels")["rank"].tolist() == [6]


def test_only_python_is_watched_and_none_replaces_another(process: Process) -> None:
    process.train(1)
    said = [
        *process.send(CUPTI_AT, process.cupti.hello()),
        *process.send(NCCL_AT, process.nccl.hello()),
    ]
    said += [*process.state.disconnected(NCCL_AT), *process.state.disconnected(CUPTI_AT)]
    assert not [it for it in said if isinstance(it, Watch | Unwatch)]
    assert process.state.connections("job-1") == [PYTHON_AT]
    assert [type(it) for it in process.state.disconnected(PYTHON_AT)][-1] is Unwatch


def test_the_job_is_as_the_python_producer_reports_it(process: Process) -> None:
    process.send(CUPTI_AT, process.cupti.hello())
    process.train(1)
    known = [it for it in process.send(NCCL_AT, process.nccl.hello()) if isinstance(it, JobKnown)]
    (fragment,) = [it.fragment for it in known]
    assert fragment.world_size == 8 and [host.ranks for host in fragment.hosts] == [(3,)]


def test_a_request_to_watch_other_events_goes_on_to_the_ranks(process: Process) -> None:
    process.train(1)
    process.send(NCCL_AT, process.nccl.hello())
    payload = encode_events("job-1", 2)
    asked = process.send(9, pack(PacketKind.CONTROL, payload, 1, 0))
    assert asked == [Relay((NCCL_AT,), payload, 9)]
    other = encode_events("another", 2)
    assert process.send(9, pack(PacketKind.CONTROL, other, 1, 0)) == [Relay((), other, 9)]


def test_network_requests(process: Process) -> None:
    """Peers are ranks of a communicator, whose members the Python producer knows."""
    process.train(12)
    process.send(PYTHON_AT, process.python.groups(GroupInfo("dp-0", "dp", (1, 3, 5, 7))))
    process.nccl_tells("nccl-00000000000000ab 1/4 ")
    process.request(peer=2, posted=5, completed=3)

    assert not process.state.tick(process.now_ns)
    rows = rows_of(process.later(), "transfers")
    assert {name: list(column) for name, column in rows.items()} == {
        "rank": [3], "nic": [None], "peer": [5], "start_ns": [OFFSET_NS + 11 * MS],
        "end_ns": [OFFSET_NS + 20 * MS], "bytes": [4096], "posted": [5], "completed": [3],
    }  # fmt: skip


def test_requests_with_an_unknown_peer_are_losses(process: Process) -> None:
    process.train(12)
    process.nccl_tells("nccl-00000000000000ab 1/4 ")
    process.request(peer=2, posted=5, completed=3)

    said = process.later()

    rows = rows_of(said, "losses")
    assert (rows["rank"], rows["table"], rows["rows"]) == ([3], ["transfers"], [1])
    assert not [it for it in said if isinstance(it, Append) and it.table == "transfers"]


def test_no_operator_stands_in_the_table_twice(process: Process) -> None:
    """Python's hooks tell of them, too."""
    process.train(12)
    process.nccl_tells("nccl-00000000000000ab 1/4 ", "AllReduce")
    process.operator("AllReduce")
    process.drop("comm_ops", 7)
    process.drop("transfers", 8)

    told = [it for it in process.later() if isinstance(it, Append)]

    assert not [it for it in told if it.table == "comm_ops"]
    losses = [it.rows for it in told if it.table == "losses"]
    assert [(rows["table"], rows["rows"]) for rows in losses] == [(["transfers"], [8])]


def test_operators_of_a_process_without_python(process: Process) -> None:
    process.nccl.rank, process.nccl.world_size = 1, 2
    said = process.nccl_tells("nccl-00000000000000ab 1/2 hello", "AllReduce", "Send")
    process.operator("AllReduce", start_ns=20, end_ns=50)
    process.operator("Send", peer=0)
    process.operator("Send", peer=7)

    rows = rows_of(process.later(), "comm_ops")

    (fragment,) = [it.fragment for it in said if isinstance(it, JobKnown)]
    assert fragment.groups == (ProcessGroup("nccl-00000000000000ab", "world", (0, 1)),)
    assert arrow_table("comm_ops", rows)["step"].to_pylist() == [None] * 3
    assert rows["group"] == ["nccl-00000000000000ab"] * 3
    assert rows["op"] == ["AllReduce", "Send", "Send"]
    assert rows["peer"] == [-1, 0, -2]
    assert rows["start_ns"] == [OFFSET_NS + 20, None, None]
    assert rows["end_ns"] == [OFFSET_NS + 50, None, None]
    assert [rows[name][0] for name in ("algorithm", "protocol", "dtype")] == [
        "ring", "simple", "bfloat16",
    ]  # fmt: skip


def test_so_many_rows_do_not_wait(process: Process) -> None:
    process.send(NCCL_AT, process.nccl.hello())
    record = RECORD.pack(RecordKind.TRANSFER, 0, UNKNOWN_ORDINAL, *(0,) * 7)
    told = 0
    for _ in range(80):
        said = process.send(NCCL_AT, process.nccl.packet(*[record] * 1000))
        told += sum(sum(it.rows["rows"]) for it in said if isinstance(it, Append))
    assert told >= 65_536


def test_a_process_that_begins_anew_counts_anew() -> None:
    ends = StepEnds()
    for ordinal in range(5000):
        ends.add(ordinal * 10, ordinal)
    assert ends.ordinals(np.array([49_985, 49_990, 60_000])).tolist() == [4999, 5000, 5000]
    ends.add(70_000, 0)
    assert ends.ordinals(np.array([60_000, 70_000])).tolist() == [0, 1]


def test_only_the_recent_steps_are_remembered_and_always_enough() -> None:
    ends = StepEnds()
    for ordinal in range(3 * MOST_STEPS):
        ends.add(ordinal * 10, ordinal)
        times = np.array([-1, ordinal * 10 - 1, ordinal * 10])
        oldest, before_it, itself = ends.ordinals(times).tolist()
        assert (before_it, itself) == (ordinal, ordinal + 1)
        assert ordinal - 2 * MOST_STEPS < oldest <= max(0, ordinal + 1 - MOST_STEPS)

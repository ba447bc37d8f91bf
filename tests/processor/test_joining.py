"""One row per operator that hooks, NCCL's plugin and CUPTI of a process all report."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.processor.instructions import Append, Instruction
from stepscope.processor.operators.joiner import KERNEL_DELAY_NS
from stepscope.store.encode import arrow_table
from stepscope.trace.modes import WINDOW_NS
from stepscope.wire.frames import GroupInfo
from stepscope.wire.records import (
    ALGORITHM_SHIFT,
    COMM_DONE,
    COMM_NATIVE,
    LAUNCH_SHIFT,
    RECORD,
    UNKNOWN,
    UNKNOWN_ORDINAL,
    RecordKind,
    pack_peer,
)

from .producers import CUPTI_AT, MS, NCCL_AT, OFFSET_NS, PYTHON_AT, Producer, ThreeProducers, plain

KERNELS = {
    "AllReduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "AllGather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "Send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
RING = 2
GROUPS = {
    "dp-0": "nccl-00000000000000ab 1/4 ", "tp-0": "nccl-00000000000000cd 1/8 ",
    "world-0": "nccl-00000000000000ef 3/8 ", "world-1": "nccl-0000000000000123 3/8 ",
}  # fmt: skip
"""Of their communicators, those of the last two have the same members, and no name."""

NO_ORDER = ("stepscope_cupti_graphs", "stepscope_cupti_parts")
"""Counts of an injector that does not report every kernel of NCCL."""


class Process(ThreeProducers):
    """Rank 3 of 8, which calls operators; all three producers tell of each."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.told: list[Append] = []
        self.seqs: dict[str, int] = {}
        self.kernels = 0
        self.send(PYTHON_AT, self.python.hello())
        self.send(PYTHON_AT, self.python.tell("loader", "optimizer", *GROUPS, *KERNELS))
        world = tuple(range(8))
        groups = [
            ("dp-0", "dp", (1, 3, 5, 7)), ("tp-0", "tp", (0, 3, *range(1, 3), *range(4, 8))),
            ("world-0", "world", world), ("world-1", "world", world),
        ]  # fmt: skip
        self.send(PYTHON_AT, self.python.groups(*(GroupInfo(*group) for group in groups)))
        self.attach(CUPTI_AT, self.cupti, *KERNELS.values(), *NO_ORDER, "gemm")
        self.attach(NCCL_AT, self.nccl, *GROUPS.values(), *KERNELS)

    def attach(self, at: int, producer: Producer, *names: str) -> None:
        self.send(at, producer.hello())
        self.send(at, producer.tell(*names))

    def send(self, at: int, data: bytes) -> None:
        self.take(self.state.packet(at, data, OFFSET_NS + self.now_ns))

    def take(self, said: list[Instruction]) -> None:
        self.told += [it for it in said if isinstance(it, Append)]

    def wait(self, ns: int = KERNEL_DELAY_NS + 3_000_000_000) -> None:
        for _ in range(4):
            self.now_ns += ns // 4
            self.take(self.state.tick(OFFSET_NS + self.now_ns))

    def called(self, op: str, group: str, size: int = 64) -> bytes:
        self.now_ns += MS
        seq = self.seqs[group] = self.seqs.get(group, -1) + 1
        fields = (self.python.names[group], pack_peer(self.python.names[op], -1), seq, size,
                  self.now_ns, UNKNOWN, UNKNOWN)  # fmt: skip
        return self.python.record(RecordKind.COMM, COMM_DONE, *fields)

    def enqueued(
        self, op: str, group: str, end_ns: int = UNKNOWN, start_ns: int = UNKNOWN
    ) -> bytes:
        """What the last call was for NCCL."""
        seq = self.seqs[group]
        flags = COMM_NATIVE | RING << ALGORITHM_SHIFT | (seq % 15 + 1) << LAUNCH_SHIFT
        fields = (self.nccl.names[GROUPS[group]], pack_peer(self.nccl.names[op], -1), seq, 64,
                  self.now_ns + 1000, end_ns, start_ns)  # fmt: skip
        return RECORD.pack(RecordKind.COMM, flags, UNKNOWN_ORDINAL, *fields)

    def ran(self, op: str, stream: int = 7) -> bytes:
        """Half a millisecond from 20 µs after the last call on."""
        self.kernels += 1
        fields = (self.cupti.names[KERNELS[op]], stream, self.now_ns + 20_000, MS // 2, UNKNOWN,
                  self.kernels, 0)  # fmt: skip
        return RECORD.pack(RecordKind.KERNEL, 0, UNKNOWN_ORDINAL, *fields)

    def count(self, metric: str, value: int) -> None:
        """Of CUPTI's injector."""
        fields = (self.cupti.names[metric], value, 5, 0, 0, 0, 0)
        count = RECORD.pack(RecordKind.COUNT, 0, UNKNOWN_ORDINAL, *fields)
        self.send(CUPTI_AT, self.cupti.packet(count))

    def operate(self, op: str, group: str, *, stream: int = 7, without: int = 0) -> None:
        """All producers tell of an operator but one."""
        packets = {
            PYTHON_AT: (self.python, self.called(op, group)),
            CUPTI_AT: (self.cupti, self.ran(op, stream)),
            NCCL_AT: (self.nccl, self.enqueued(op, group)),
        }
        for at, (producer, record) in packets.items():
            if at != without:
                self.send(at, producer.packet(record))

    def rows(self, table: str = "comm_ops") -> list[dict[str, Any]]:
        """All that were told of, by their time."""
        every = [
            dict(zip(it.rows, values, strict=True))
            for it in self.told
            if it.table == table
            for values in zip(*plain(it.rows).values(), strict=True)
        ]
        return sorted(every, key=lambda row: row.get("enqueue_ns", 0))

    def lone(self) -> dict[str, float]:
        """The newest counts of what was not joined."""
        return {row["metric"]: row["value"] for row in self.rows("hardware")}


@pytest.fixture
def process() -> Process:
    return Process()


def times(process: Process) -> list[tuple[int | None, int | None]]:
    return [(row["start_ns"], row["end_ns"]) for row in process.rows()]


def test_three_reports_of_an_operator_become_one_row(process: Process) -> None:
    process.operate("AllReduce", "dp-0")
    process.wait()

    (row,) = process.rows()
    start_ns = OFFSET_NS + MS + 20_000
    assert (row["rank"], row["group"], row["seq"], row["op"]) == (3, "dp-0", 0, "AllReduce")
    assert (row["bytes"], row["enqueue_ns"]) == (64, OFFSET_NS + MS)
    assert (row["start_ns"], row["end_ns"]) == (start_ns, start_ns + MS // 2)
    assert (row["algorithm"], row["state"]) == ("ring", "done")
    assert not process.lone()


def test_it_comes_when_all_have_had_their_time(process: Process) -> None:
    process.operate("AllReduce", "dp-0")
    process.wait(KERNEL_DELAY_NS // 2)
    assert not process.rows()
    process.wait(KERNEL_DELAY_NS)
    assert len(process.rows()) == 1


def test_interleaved_groups(process: Process) -> None:
    for _ in range(20):
        process.operate("AllReduce", "dp-0", stream=7)
        process.operate("AllGather", "tp-0", stream=9)
    process.wait()
    assert [row["group"] for row in process.rows()] == ["dp-0", "tp-0"] * 20
    for row in process.rows():
        assert row["start_ns"] == row["enqueue_ns"] + 20_000


def test_of_groups_with_the_same_members_the_calls_decide(process: Process) -> None:
    """DDP, and a group in which the script averages its losses."""
    for _ in range(5):
        process.operate("AllReduce", "world-0")
        process.operate("AllReduce", "world-0")
        process.operate("AllReduce", "world-1")
    process.wait()
    assert [row["group"] for row in process.rows()] == ["world-0", "world-0", "world-1"] * 5
    for row in process.rows():
        assert row["start_ns"] == row["enqueue_ns"] + 20_000
    assert not process.lone()


def test_calls_that_the_plugin_does_not_report_are_rows_as_they_are(process: Process) -> None:
    process.operate("AllReduce", "dp-0")
    process.operate("AllReduce", "dp-0", without=NCCL_AT)
    process.wait()
    assert len(process.rows()) == 2
    assert times(process)[1] == (None, None) and process.rows()[1]["algorithm"] is None
    told = [it.rows for it in process.told if it.table == "comm_ops"]
    stored = [end for rows in told for end in arrow_table("comm_ops", rows)["end_ns"].to_pylist()]
    assert stored.count(None) == 1, "and null as it is stored"


def test_operators_that_no_call_is_found_for_are_counted(process: Process) -> None:
    """One of the calls that were lost is theirs."""
    process.operate("AllReduce", "dp-0")
    process.operate("AllGather", "dp-0", without=PYTHON_AT)
    process.operate("AllReduce", "dp-0")
    process.wait()
    process.operate("AllReduce", "dp-0")
    process.wait()
    assert [row["op"] for row in process.rows()] == ["AllReduce"] * 3
    assert process.lone()["stepscope_lone_operators"] == 2, "and one more whose it might be"


def test_without_kernels_there_are_sampled_times(process: Process) -> None:
    """An end alone would count the time in which the device did what was launched before."""
    for start_ns in (UNKNOWN, 2 * MS):
        call = process.called("AllReduce", "dp-0")
        process.send(PYTHON_AT, process.python.packet(call))
        told = process.enqueued("AllReduce", "dp-0", process.now_ns + 3 * MS, start_ns)
        process.send(NCCL_AT, process.nccl.packet(told))
    process.wait()
    assert times(process) == [(None, None), (OFFSET_NS + 2 * MS, OFFSET_NS + 5 * MS)]
    assert [row["algorithm"] for row in process.rows()] == ["ring", "ring"]


def test_after_a_lost_kernel_nothing_is_guessed(process: Process) -> None:
    process.operate("AllReduce", "dp-0")
    process.wait()
    process.operate("AllReduce", "dp-0", without=CUPTI_AT)
    process.send(CUPTI_AT, process.cupti.tell("dropped.kernels"))
    lost = (process.cupti.names["dropped.kernels"], 1, process.now_ns, 0)
    count = RECORD.pack(RecordKind.COUNT, 0, UNKNOWN_ORDINAL, *lost, 0, 0, 0)
    process.send(CUPTI_AT, process.cupti.packet(count))
    process.operate("AllReduce", "dp-0")
    process.wait()
    process.wait()
    assert [start is None for start, _ in times(process)] == [False, True, True]
    assert process.lone()["stepscope_lone_kernels"] == 1


def test_an_injector_that_comes_again_may_have_missed_some(process: Process) -> None:
    process.operate("AllReduce", "dp-0")
    process.wait()
    process.state.disconnected(CUPTI_AT)
    process.attach(CUPTI_AT + 9, process.cupti, *KERNELS.values())
    process.operate("AllReduce", "dp-0")
    process.wait()
    assert [start is None for start, _ in times(process)] == [False, True]


@pytest.mark.parametrize("why", NO_ORDER)
def test_with_graphs_or_recorded_partly_kernels_are_not_matched_by_order(
    process: Process, why: str
) -> None:
    process.count(why, 2)
    process.operate("AllReduce", "dp-0")
    process.operate("AllReduce", "dp-0")
    process.wait()
    assert [end for _, end in times(process)][1:] == [None]


def test_kernels_recorded_in_a_part_of_the_time_stand_for_all(process: Process) -> None:
    """Those that came before the injector said so count as they are."""
    for parts in (1, 8):
        process.count("stepscope_cupti_parts", parts)
        process.send(CUPTI_AT, process.cupti.packet(*(process.ran("Send") for _ in range(6))))
    process.wait(2 * WINDOW_NS)
    assert [row["count"] for row in process.rows("kernel_summaries")] == [6 + 8 * 6]


def test_a_process_that_ends_does_not_wait(process: Process) -> None:
    """Whoever of its producers leaves first."""
    process.operate("AllReduce", "dp-0")
    for at in (PYTHON_AT, NCCL_AT, CUPTI_AT):
        process.take(process.state.disconnected(at))
    (row,) = process.rows()
    assert row["start_ns"] == OFFSET_NS + MS + 20_000


def test_a_process_that_comes_again_has_rows_of_both_lives(process: Process) -> None:
    process.operate("AllReduce", "dp-0")
    process.take(process.state.disconnected(PYTHON_AT))
    process.send(PYTHON_AT + 9, process.python.hello())
    names = process.python.tell("loader", "optimizer", *GROUPS, *KERNELS)
    process.send(PYTHON_AT + 9, names)
    groups = process.python.groups(GroupInfo("dp-0", "dp", (1, 3, 5, 7)))
    process.send(PYTHON_AT + 9, groups)
    call = process.called("AllReduce", "dp-0")
    process.send(PYTHON_AT + 9, process.python.packet(call))
    process.wait()
    process.wait()
    assert [row["seq"] for row in process.rows()] == [0, 1]


def test_calls_that_came_before_the_plugin_stand_there_once() -> None:
    """It connects while the first of them runs."""
    process = Process()
    process.state.disconnected(NCCL_AT)
    process.state.producers[PYTHON_AT].joiner = None
    process.send(PYTHON_AT, process.python.packet(process.called("AllReduce", "dp-0")))
    process.wait()
    process.attach(NCCL_AT, process.nccl, *GROUPS.values(), *KERNELS)
    process.send(NCCL_AT, process.nccl.packet(process.enqueued("AllReduce", "dp-0")))
    process.wait()
    assert len(process.rows()) == 1


def test_what_runs_on_the_host_does_not_wait(process: Process) -> None:
    """gloo's operators, whose ends are known."""
    process.send(PYTHON_AT, process.python.packet(process.python.comm("AllReduce", 0, end_ns=9)))
    process.wait(6_000_000_000)
    assert [row["end_ns"] for row in process.rows()] == [OFFSET_NS + 9]


def test_an_open_operator_is_never_missing(process: Process) -> None:
    """A receive of gloo's has no future: it was told of as open, and its end is not known."""
    process.send(PYTHON_AT, process.python.tell("Recv"))
    process.send(PYTHON_AT, process.python.packet(process.python.comm("Recv", 0, peer=1)))
    fields = (process.python.names["dp-0"], pack_peer(process.python.names["Recv"], 1), 0, 64, 0,
              UNKNOWN, UNKNOWN)  # fmt: skip
    done = process.python.record(RecordKind.COMM, COMM_DONE, *fields)
    process.send(PYTHON_AT, process.python.packet(done))
    assert not process.state.producers[PYTHON_AT].open_ops
    process.wait(6_000_000_000)
    assert len(process.rows()) == 1


def test_a_processor_that_was_started_again_counts_anew_and_waits_no_longer() -> None:
    process = Process()
    process.seqs["dp-0"], process.kernels = 41, 41
    for _ in range(3):
        process.operate("AllReduce", "dp-0")
    process.wait()
    assert [row["seq"] for row in process.rows()] == [42, 43, 44]
    assert times(process) == [(None, None)] * 3

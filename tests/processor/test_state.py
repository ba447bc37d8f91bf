"""Events in, instructions out: the processor's decisions without a socket, clock or disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.processor.instructions import (
    Append,
    Confirm,
    Instruction,
    JobKnown,
    OpenOps,
    Refuse,
    Unwatch,
    Watch,
)
from stepscope.processor.state.fragments import with_devices
from stepscope.processor.state.host_state import HOLD_NS, HostState
from stepscope.store.encode import arrow_table
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.wire.frames import AtRisk, GroupInfo, PacketKind, pack
from stepscope.wire.records import RECORD, RecordKind

from .producers import MS, OFFSET_NS, Producer, plain

A = TypeVar("A", bound=Instruction)
CONNECTION = 5


def only(kind: type[A], instructions: list[Instruction]) -> list[A]:
    return [it for it in instructions if isinstance(it, kind)]


def appended(instructions: list[Instruction], table: str) -> list[Any]:
    return [it.rows for it in only(Append, instructions) if it.table == table]


class Story:
    """One connection to a fresh state."""

    def __init__(self, rank: int = 0, state: HostState | None = None, at: int = CONNECTION) -> None:
        self.state = state or HostState()
        self.at = at
        self.rank = Producer(rank)
        self.now_ns = OFFSET_NS

    def begin(self, at_risk: AtRisk | None = None) -> list[Instruction]:
        return self.send(self.rank.hello(at_risk))

    def send(self, data: bytes) -> list[Instruction]:
        return self.state.packet(self.at, data, self.now_ns)

    def tell(self, *names: str) -> list[Instruction]:
        return self.send(self.rank.tell(*names))

    def records(self, *records: bytes) -> list[Instruction]:
        return self.send(self.rank.packet(*records))

    def train(self, iterations: int, loads: int = 1) -> list[Instruction]:
        records = [r for _ in range(iterations) for r in self.rank.iteration(loads)]
        return self.records(*records)

    def hang_up(self) -> list[Instruction]:
        return self.state.disconnected(self.at)


@pytest.fixture
def story() -> Story:
    story = Story()
    story.begin()
    story.tell("loader", "optimizer", "forward-compute", "dp-0", "AllReduce", "Send", "Recv", "x")
    return story


def test_a_rank_introduces_itself() -> None:
    story = Story(rank=1)
    known, watch = story.begin(), Watch("job-1", 1, story.rank.pid, story.rank.pid, "host-0")

    assert only(Watch, known) == [watch]
    (job,) = only(JobKnown, known)
    assert (job.job, job.store) == ("job-1", "/store")
    assert job.fragment == Job("job-1", 2, (Host("host-0", (1,)),))
    assert story.state.jobs() == {"job-1"}
    assert only(Unwatch, story.hang_up()) == [Unwatch("job-1", 1, story.rank.pid)]
    assert story.state.jobs() == set() and story.hang_up() == []


def test_ranks_groups_and_sizes_of_a_host_become_its_part_of_the_job() -> None:
    state = HostState()
    first, second = Story(0, state, 5), Story(1, state, 6)
    first.begin()
    first.send(first.rank.groups(GroupInfo("dp-0", "dp", (0, 1)), dp=2))
    second.begin()
    (job,) = only(JobKnown, second.send(second.rank.groups(GroupInfo("tp-1", "tp", (1,)), tp=1)))

    assert job.fragment == Job(
        "job-1", 2, (Host("host-0", (0, 1)),), {"dp": 2, "tp": 1},
        (ProcessGroup("dp-0", "dp", (0, 1)), ProcessGroup("tp-1", "tp", (1,))),
    )  # fmt: skip
    here, away = (Host(name, (), ("eth0",), ("gpu-0",), ("GPU-3f",)) for name in
                  ("host-0", "host-1"))  # fmt: skip
    assert with_devices(job.fragment, here).hosts == (
        Host("host-0", (0, 1), ("eth0",), ("gpu-0",), ("GPU-3f",)),
    )
    assert with_devices(job.fragment, away) == job.fragment


def test_rows_wait_for_the_sequence_and_then_have_true_steps(story: Story) -> None:
    """Two loads per optimizer step: the first rows came before anybody knew."""
    assert appended(story.records(story.rank.phase("forward-compute")), "phases") == []
    story.train(9, loads=2)
    story.records(story.rank.phase("forward-compute"))
    out = story.train(1, loads=2)

    first, second = appended(out, "phases")
    assert (first["step"], second["step"]) == ([0], [9])
    (steps,) = appended(out, "steps")
    assert steps["step"] == list(range(10))
    assert steps["start_ns"][1] == OFFSET_NS + 15 * MS
    assert steps["duration_ns"] == [15 * MS] * 10
    assert appended(story.records(story.rank.phase("forward-compute")), "phases") != []


def test_rows_do_not_wait_for_longer_than_five_seconds(story: Story) -> None:
    story.records(story.rank.phase("forward-compute"))
    assert story.state.tick(story.now_ns + HOLD_NS) == []
    assert len(appended(story.state.tick(story.now_ns + HOLD_NS + 1), "phases")) == 1
    assert story.state.tick(story.now_ns + 2 * HOLD_NS) == [], "once"


def test_rows_of_a_rank_that_leaves_early_are_kept(story: Story) -> None:
    story.records(story.rank.phase("forward-compute"))
    assert len(appended(story.hang_up(), "phases")) == 1


def _open_seqs(instructions: list[Instruction]) -> list[list[int]]:
    return [list(it.rows.get("seq", [])) for it in only(OpenOps, instructions)]


def test_outstanding_operators_are_one_list_that_is_replaced(story: Story) -> None:
    rank = story.rank
    assert _open_seqs(story.records(rank.comm("AllReduce", 7))) == [[7]]
    assert _open_seqs(story.records(rank.comm("Send", 7, peer=1))) == [[7, 7]]
    assert _open_seqs(story.records(rank.comm("AllReduce", 7))) == [], "nothing new"
    assert _open_seqs(story.records(rank.comm("AllReduce", 7, end_ns=9))) == [[7]]
    assert _open_seqs(story.records(rank.comm("Send", 7, peer=1, end_ns=9))) == [[]]


def test_an_open_operator_is_reported_immediately_as_started(story: Story) -> None:
    (told,) = only(OpenOps, story.records(story.rank.comm("Recv", 3, peer=-2)))
    row = {column: values[0] for column, values in plain(told.rows).items()}
    assert (row["op"], row["group"], row["peer"], row["state"]) == ("Recv", "dp-0", -2, "started")
    assert row["end_ns"] is None and row["start_ns"] == OFFSET_NS


def test_an_operator_that_began_and_ended_in_one_packet_was_never_open(story: Story) -> None:
    out = story.records(story.rank.comm("AllReduce", 1), story.rank.comm("AllReduce", 1, end_ns=5))
    assert _open_seqs(out) == []


OPERATORS = st.tuples(
    st.sampled_from(["AllReduce", "Send", "Recv"]), st.sampled_from(["dp-0", "x"]),
    st.integers(0, 3), st.booleans(),
)  # fmt: skip


@given(packets=st.lists(st.lists(OPERATORS, max_size=5), max_size=6))
def test_reading_record_by_record_finds_the_same_outstanding_operators(
    packets: list[list[tuple[str, str, int, bool]]],
) -> None:
    story = Story()
    story.begin()
    story.tell("AllReduce", "Send", "Recv", "dp-0", "x")
    in_flight: set[tuple[str, int, bool]] = set()
    for packet in packets:
        before = set(in_flight)
        for op, group, seq, begins in packet:
            key = (group, seq, op != "AllReduce")
            (in_flight.add if begins else in_flight.discard)(key)
        made = [story.rank.comm(op, seq, group=group, end_ns=None if begins else 9)
                for op, group, seq, begins in packet]  # fmt: skip
        told = [it.rows for it in only(OpenOps, story.records(*made))]
        assert len(told) == (in_flight != before)
        for rows in told:
            keys = zip(rows.get("group", ()), rows.get("seq", ()), rows.get("op", ()), strict=True)
            assert {(group, seq, op != "AllReduce") for group, seq, op in keys} == in_flight


def test_what_a_dead_rank_left_open_stays_until_it_is_back() -> None:
    state = HostState()
    dead, alive = Story(0, state, 5), Story(1, state, 6)
    for story in (dead, alive):
        story.begin()
        story.tell("dp-0", "AllReduce")
        story.records(story.rank.comm("AllReduce", 4))
    dead.hang_up()
    assert _open_seqs(alive.records(alive.rank.comm("AllReduce", 4, end_ns=9))) == [[4]]

    assert _open_seqs(Story(0, state, 7).begin()) == [[]]


def test_a_new_processor_clears_what_its_predecessor_wrote() -> None:
    """The operator may have finished while nobody listened."""
    assert _open_seqs(Story().begin()) == [[]]


def test_a_connection_that_dies_late_does_not_bring_its_operators_back() -> None:
    state = HostState()
    old = Story(0, state, 5)
    old.begin()
    old.tell("dp-0", "AllReduce")
    old.records(old.rank.comm("AllReduce", 4))
    new = Story(0, state, 6)
    new.begin()
    old.hang_up()
    new.tell("dp-0", "AllReduce")

    assert _open_seqs(new.records(new.rank.comm("AllReduce", 9))) == [[9]]


def test_outstanding_operators_are_counted_by_host() -> None:
    """A rank in a container may call its host otherwise than the processor does its own."""
    state = HostState()
    for number, host in enumerate(("pod-a", "pod-b", "pod-a")):
        one = Story(number, state, number)
        one.rank.host = host
        one.begin()
        one.tell("AllReduce", "dp-0")
        if host == "pod-a":
            one.records(one.rank.comm("AllReduce", 3))
    (stalled,) = state.stalled(OFFSET_NS + 10**12)
    rows = stalled.rows(9)
    assert dict(zip(rows["host"], rows["value"], strict=True)) == {"pod-a": 2.0, "pod-b": 0.0}
    assert set(rows["ts_ns"]) == {9}


def test_of_a_job_with_a_stopped_process_what_has_just_begun_counts() -> None:
    """Of another job only what has lasted for half a step."""
    state = HostState()
    for number, job in enumerate(("halts", "trains")):
        one = Story(number, state, number)
        one.rank.job = job
        one.begin()
        one.tell("loader", "optimizer", "AllReduce", "dp-0")
        one.records(*(record for _ in range(12) for record in one.rank.iteration()))
        one.records(one.rank.comm("AllReduce", 3))
        now_ns = OFFSET_NS + one.rank.now_ns
    assert [one.job for one in state.stalled(now_ns, {"halts"})] == ["halts"]
    assert state.stalled(now_ns) == []


def test_two_hellos_on_one_connection_are_two_lives(story: Story) -> None:
    out = story.begin()
    assert [type(it) for it in out] == [Unwatch, JobKnown, OpenOps, Watch]


def test_rows_at_risk_are_losses() -> None:
    out = Story(1).begin(AtRisk(10, 20, {"phases": 3, "comm_ops": 2}))
    assert appended(out, "losses") == [
        {
            "rank": [1, 1],
            "table": ["phases", "comm_ops"],
            "start_ns": [OFFSET_NS + 10] * 2,
            "end_ns": [OFFSET_NS + 20] * 2,
            "rows": [3, 2],
        }
    ]
    (confirm,) = only(Confirm, out)
    assert out.index(confirm) > [type(it) for it in out].index(Append), "once that is stored"


def test_counters_are_hardware_and_dropped_rows_are_losses(story: Story) -> None:
    story.state.tick(story.now_ns)
    story.train(10)
    story.tell("dropped.comm_ops", "stepscope_sender_cpu_ns")
    dropped, counter = (
        story.rank.names[n] for n in ("dropped.comm_ops", "stepscope_sender_cpu_ns")
    )
    out = story.records(
        story.rank.record(RecordKind.COUNT, 0, dropped, 41, 900, 300),
        story.rank.record(RecordKind.COUNT, 0, counter, 7, 1000),
    )

    (losses,) = appended(out, "losses")
    assert (losses["table"], losses["rows"]) == (["comm_ops"], [41])
    assert (losses["start_ns"], losses["end_ns"]) == ([OFFSET_NS + 300], [OFFSET_NS + 900])
    (hardware,) = appended(out, "hardware")
    assert hardware == {
        "rank": [0],
        "host": ["host-0"],
        "metric": ["stepscope_sender_cpu_ns"],
        "ts_ns": [OFFSET_NS + 1000],
        "value": [7.0],
    }


def _refusal(instructions: list[Instruction]) -> str:
    (refusal,) = instructions
    assert isinstance(refusal, Refuse) and refusal.connection == CONNECTION
    return refusal.why


def test_packets_before_a_hello_are_refused() -> None:
    assert _refusal(Story().records()) == "RECORDS packet before a hello"
    assert _refusal(Story().tell("x")) == "NAMES packet before a hello"


def test_an_unknown_request_is_refused(story: Story) -> None:
    assert "request" in _refusal(story.send(pack(PacketKind.CONTROL, b"{}", 1, 0)))


@pytest.mark.parametrize("value", [(1 << 63) - 1, -(1 << 63), (1 << 61) + 1])
def test_numbers_that_no_clock_gives_are_refused(story: Story, value: int) -> None:
    record = story.rank.record(RecordKind.EVENT, 0, 0, value, 5)
    assert "a record holds a number beyond" in _refusal(story.records(record))


_int64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 20)
_record = st.builds(
    RECORD.pack, st.integers(0, 7), st.integers(0, 2), st.integers(0, 0xFFFFFFFF), *[_int64] * 7
)


@given(st.lists(st.lists(_record, max_size=4), max_size=6))
def test_any_numbers_in_any_records(packets: list[list[bytes]]) -> None:
    """Nothing is raised, and every row fits its table."""
    story = Story()
    out = [*story.begin(), *story.tell("a", "Send", "dropped.phases")]
    for records in packets:
        out += story.records(*records)
    out += story.hang_up()
    for append in only(Append, out):
        arrow_table(append.table, append.rows)
    for told in only(OpenOps, out):
        if told.rows:
            arrow_table("comm_ops", told.rows)


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_any_bytes_are_refused(packets: list[bytes]) -> None:
    story = Story()
    for data in packets:
        assert _refusal(story.send(data)) != ""


def test_a_rank_that_another_live_process_claims_is_refused_and_counted() -> None:
    live = {5, 6, 7}
    state = HostState(live.__contains__)
    first, second = Story(0, state, 5), Story(0, state, 6)
    first.begin()
    second.rank.pid += 1
    out = second.begin()
    assert [type(it) for it in out] == [Append, Refuse]
    (row,) = appended(out, "hardware")
    assert row["metric"] == ["rank_claims_refused"] and row["value"] == [1.0]
    assert [type(it) for it in second.begin()] == [Refuse], "it retries every second"
    (note,) = state.claims.notes("job-1")
    assert "rank 0 was claimed by 2 live processes" in note and str(second.rank.pid) in note
    assert state.claims.notes("other") == ()
    assert list(state.producers) == [5]

    live.remove(5)
    assert [type(it) for it in second.begin()] == [JobKnown, OpenOps, Watch]


def test_native_producers_do_not_claim_ranks() -> None:
    state = HostState()
    Story(0, state, 5).begin()
    other = Story(0, state, 6)
    other.rank.pid, other.rank.source = other.rank.pid + 1, "cupti"
    assert not only(Refuse, other.begin())


def test_a_world_larger_than_any_is_refused() -> None:
    """NCCL's plugin would make a list of all its ranks."""
    story = Story()
    story.rank.world_size = 1 << 30
    assert only(Refuse, story.begin())


def test_a_connection_cannot_announce_more_members_than_fit_in_memory(story: Story) -> None:
    """A packet of 300 bytes could announce gigabytes; so could many of a few bytes."""
    half = [[0, 1 << 19, 1]]
    groups = [{"id": f"dp-{at}", "kind": "dp", "ranks": half} for at in range(3)]

    def announced(*some: Mapping[str, object]) -> list[Instruction]:
        payload = json.dumps({"groups": some}).encode()
        return story.send(pack(PacketKind.NAMES, payload, 1, 0))

    (refusal,) = announced(*groups)
    assert isinstance(refusal, Refuse) and "1048576" in refusal.why
    assert not only(Refuse, announced(groups[0]))
    assert not only(Refuse, announced(groups[1]))
    assert not only(Refuse, announced(groups[1])), "the same group again"
    assert only(Refuse, announced(groups[2]))

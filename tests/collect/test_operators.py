"""Every operator of a real job over gloo, as four ranks see it (`gloo_scenes`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.collect.hooks.operators import OPERATORS
from stepscope.trace.names import NO_PEER, UNKNOWN_PEER
from stepscope.wire.records import UNKNOWN, RecordKind

from .gloo_modes import LATE, LATE_SECONDS, MODES, WORLD
from .gloo_recording import Recording, record

RANKS = range(WORLD)
MISTAKES = ("a_mistake_of_the_script", "nobody_sends")
DDP = (
    "distributed_data_parallel", "a_late_bucket", "a_late_end_of_backward",
    "a_callback_after_ddps", "compressed_gradients", "buffers",
)  # fmt: skip
"""Where operators are waited for in C++, unseen."""


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        yield record(Path(folder))


@pytest.fixture(scope="module", params=["python", "native"])
def job(request: pytest.FixtureRequest, recording: Recording) -> Recording:
    """What was seen by kernels in Python and by those in C++: the same."""
    return replace(recording, mode=request.param)


def scenes(job: Recording) -> set[str]:
    return set(job.results["plain"][0])


def calls(job: Recording, name: str, rank: int) -> list[tuple[str, int]]:
    return [(op.op, op.size) for op in job.scene(name, rank) if op.done]


COLLECTIVES = {
    "all_reduce": [("AllReduce", 32)],
    "all_reduce_of_a_sparse_tensor": [("AllReduce", UNKNOWN)],
    "all_reduce_async": [("AllReduce", 32)],
    "all_reduce_without_gradients": [("AllReduce", 32)] * 2,
    "all_reduce_coalesced": [("AllReduce", 48)],
    "coalescing_manager": [("AllReduce", 48)],
    "broadcast": [("Broadcast", 32)],
    "reduce": [("Reduce", 32)],
    "all_gather": [("AllGather", 32)],
    "all_gather_into_tensor": [("AllGather", 32)],
    "all_gather_coalesced": [("AllGather", 32)],
    "reduce_scatter": [("ReduceScatter", 32)],
    "reduce_scatter_tensor": [("ReduceScatter", 32)],
    "all_to_all": [("AllToAll", 32)],
    "all_to_all_single": [("AllToAll", 32)],
    "gather": [("Gather", 32)],
    "scatter": [("Scatter", 8)],
    "barrier": [("Barrier", 0)],
    "functional_collectives": [
        ("AllReduce", 32), ("AllGather", 32), ("ReduceScatter", 32), ("AllToAll", 32),
    ],
    "first_fully_sharded": [("AllGather", 144), ("ReduceScatter", 576)] * 2,
    "second_fully_sharded": [("AllGather", 144), ("ReduceScatter", 576)] * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_seen_alike_by_every_rank(job: Recording, name: str) -> None:
    for rank in RANKS:
        assert calls(job, name, rank) == COLLECTIVES[name]
    assert {op.peer for rank in RANKS for op in job.scene(name, rank)} == {NO_PEER}
    seqs = [[op.seq for op in job.scene(name, rank) if op.done] for rank in RANKS]
    assert seqs == [seqs[0]] * WORLD


def test_objects_travel_as_two_operators(job: Recording) -> None:
    assert [op for op, _ in calls(job, "objects", 0)] == ["AllGather"] * 2 + ["Broadcast"] * 2


def test_the_reducer_of_ddp_is_seen_from_within_backward(job: Recording) -> None:
    """It calls from C++: one bucket of all gradients in each of two backwards."""
    for rank in RANKS:
        phases = job.of(rank).records(RecordKind.PHASE)
        spans = [p.fields[1:3] for p in phases if p.name == "backward-compute"][:2]
        reduced = [op for op in job.scene("distributed_data_parallel", rank) if op.size == 576]
        ours = [op for op in reduced if op.op == "AllReduce"]
        assert len(ours) == 2
        for op, (start, duration) in zip(ours, spans, strict=True):
            assert start <= op.enqueue_ns <= start + duration


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("send_and_receive", {0: [("Send", 3)], 3: [("Recv", 0)]}),
        (
            "ring_of_isend_and_irecv",
            {r: [("Send", (r + 1) % 4), ("Recv", (r - 1) % 4)] for r in RANKS},
        ),
        ("receive_from_anyone", {1: [("Send", 2)], 2: [("Recv", UNKNOWN_PEER)]}),
        (
            "subgroup",
            {
                1: [("AllReduce", NO_PEER), ("Send", 3)],
                3: [("AllReduce", NO_PEER), ("Recv", 1)],
            },
        ),
    ],
)
def test_peers_are_global_ranks(
    job: Recording, name: str, want: dict[int, list[tuple[str, int]]]
) -> None:
    for rank in RANKS:
        seen = [(op.op, op.peer) for op in job.scene(name, rank) if op.done]
        assert seen == want.get(rank, [])


def test_the_dimensions_of_a_mesh_are_groups_by_kind(job: Recording) -> None:
    for rank in RANKS:
        groups = job.of(rank).groups()
        first, across, both = job.scene("mesh", rank)
        column, row = (rank % 2, rank % 2 + 2), (rank // 2 * 2, rank // 2 * 2 + 1)
        assert groups[first.group] == ("tp", row) and first.op == "AllReduce"
        assert groups[across.group] == ("pp", column)
        assert across.peer == (rank + 2) % 4
        assert groups[both.group] == ("dp", column)
        sizes = job.of(rank).parallelism
        assert (sizes["pp"], sizes["tp"]) == (2, 2), "slices change nothing"


def test_groups_of_megatron_are_known_by_its_own_names(job: Recording) -> None:
    for rank in RANKS:
        groups = job.of(rank).groups()
        tensor, data = job.scene("megatron", rank)
        assert groups[tensor.group] == ("tp", (rank // 2 * 2, rank // 2 * 2 + 1))
        assert groups[data.group] == ("dp", (rank % 2, rank % 2 + 2))
        assert job.of(rank).parallelism["dp"] == 2


def test_groups_are_what_they_are_called(job: Recording) -> None:
    assert job.of(1).groups()["world-0"] == ("world", (0, 1, 2, 3))
    (first, *_) = job.scene("subgroup", 1)
    assert job.of(1).groups()[first.group] == ("dp", (1, 3))
    assert job.of(0).groups()[job.scene("nobody_sends", 0)[0].group] == ("other", (0, 1))


def test_members_number_the_operators_of_a_group_alike(job: Recording) -> None:
    def numbered(rank: int) -> dict[tuple[str, int], tuple[str, str]]:
        kinds = job.of(rank).groups()
        return {
            (op.group, op.seq): (op.op, kinds[op.group][0])
            for op in job.of(rank).operators()
            if op.peer == NO_PEER
        }

    world = [{k: v for k, v in numbered(rank).items() if k[0] == "world-0"} for rank in RANKS]
    assert world == [world[0]] * WORLD
    assert sorted(seq for _, seq in world[0]) == list(range(len(world[0])))


def test_an_operator_ends_after_it_began_and_is_told_once(job: Recording) -> None:
    for rank in RANKS:
        done = [op for op in job.of(rank).operators() if op.done]
        assert len({(op.group, op.seq, op.peer == NO_PEER) for op in done}) == len(done)
        mistakes = [op for name in MISTAKES for op in job.told(name, rank)]
        timed = [op for op in done if op not in mistakes and op.end_ns != UNKNOWN]
        assert all(op.end_ns > op.enqueue_ns for op in timed)
        unseen = [op for name in DDP for op in job.told(name, rank)]
        waited = [op for op in done if op not in unseen]
        assert len([op for op in waited if op in timed]) > 0.8 * len(waited)


def test_kernels_in_cpp_know_every_end_of_ddps_buckets(recording: Recording) -> None:
    """Those in Python follow futures in every eighth step only."""
    job = replace(recording, mode="native")
    for rank in RANKS:
        buckets = [op for op in job.scene("distributed_data_parallel", rank) if op.size == 576]
        assert [op.end_ns != UNKNOWN for op in buckets if op.op == "AllReduce"] == [True, True]


def test_ddps_wait_for_its_buckets_is_waiting(job: Recording) -> None:
    """The last rank to compute its gradients need not wait."""
    waited = []
    for rank in RANKS:
        phases = job.of(rank).records(RecordKind.PHASE)
        first, second, *_ = [p for p in phases if p.name == "backward-compute"]
        assert first.fields[3] < first.fields[2] and second.fields[3] < second.fields[2]
        waited += [first.fields[3], second.fields[3]]
    assert min(waited) >= 0 and max(waited) > 0


def backward(job: Recording, scene: str, rank: int) -> tuple[int, int]:
    """Own time and waiting of the one backward of a scene."""
    phases = job.of(rank).records(RecordKind.PHASE)
    (whole,) = [phase for phase in phases if phase.name == f"scene {scene}"]
    begin, end = whole.fields[1], whole.fields[1] + whole.fields[2]
    passes = [phase for phase in phases if phase.name == "backward-compute"]
    (found,) = [phase for phase in passes if begin <= phase.fields[1] <= end]
    _, _, duration, waited, *_ = found.fields
    return duration - waited, waited


def test_the_others_wait_for_the_rank_whose_bucket_is_late(job: Recording) -> None:
    late_ns = int(LATE_SECONDS * 1e9)
    assert backward(job, "a_late_bucket", LATE)[0] >= late_ns
    others = [backward(job, "a_late_bucket", rank) for rank in RANKS if rank != LATE]
    assert all(waited_ns > late_ns / 2 for _, waited_ns in others)


@pytest.mark.parametrize("scene", ["a_late_end_of_backward", "a_callback_after_ddps"])
def test_what_backward_does_after_the_last_bucket_is_no_waiting(job: Recording, scene: str) -> None:
    own_ns, _ = backward(job, scene, LATE)
    assert own_ns >= int(LATE_SECONDS * 1e9)


def test_ddps_broadcast_of_buffers_is_waited_for(job: Recording) -> None:
    for rank in RANKS:
        (forward,) = [p for p in job.of(rank).records(RecordKind.PHASE) if p.name == "forward"]
        if rank:
            assert forward.fields[3] > LATE_SECONDS * 1e9 / 2


def test_buckets_that_a_communication_hook_reduces_are_waited_for(job: Recording) -> None:
    for rank in RANKS:
        (scene,) = [phase for phase in job.of(rank).records(RecordKind.PHASE)
                    if phase.name == "scene compressed_gradients"]  # fmt: skip
        assert scene.fields[3] > 0


def test_a_collective_ends_after_its_last_member_arrived(job: Recording) -> None:
    for members in zip(*(job.scene("all_reduce", rank) for rank in RANKS), strict=True):
        last = max(op.enqueue_ns for op in members)
        assert all(op.end_ns > last for op in members)


def test_waits_of_functional_collectives_are_waiting(job: Recording) -> None:
    """They wait in C++: without our look at `wait_tensor` it would pass for work."""
    for rank in RANKS:
        phases = job.of(rank).records(RecordKind.PHASE)
        (scene,) = [p for p in phases if p.name == "scene functional_collectives"]
        _, _, duration, waited, *_ = scene.fields
        assert 0 < waited <= duration


def test_an_operator_that_finished_unseen_does_not_stay_open(job: Recording) -> None:
    for rank in RANKS:
        ops = job.scene("a_wait_that_nobody_sees", rank)
        assert [(op.op, op.done) for op in ops] == [("ReduceScatter", True)]


def test_an_operator_that_nobody_answers_stays_open_until_the_script_goes_on(
    job: Recording,
) -> None:
    """Its wait timed out: it has not finished, whatever became of the script."""
    open_receive, receive, *_barrier = job.told("nobody_sends", 0)
    assert (open_receive.op, open_receive.peer, open_receive.done) == ("Recv", 1, False)
    assert (receive.seq, receive.done, receive.end_ns) == (open_receive.seq, True, -1)
    for rank in (1, 2, 3):
        waiting = job.told("nobody_sends", rank)
        assert [(op.op, op.done) for op in waiting] == [("Barrier", False), ("Barrier", True)]


def test_an_operator_that_the_backend_refused_has_no_end(job: Recording) -> None:
    for rank in RANKS:
        *told_of, given_up = job.told("a_mistake_of_the_script", rank)
        assert (given_up.op, given_up.done, given_up.end_ns) == ("AllToAll", True, -1)
        assert [(op.seq, op.done) for op in told_of] in ([], [(given_up.seq, False)])


def test_results_are_the_same_bit_for_bit(recording: Recording) -> None:
    """Plain, recorded, and recorded with a fault in every call of ours; errors included."""
    for name in scenes(recording):
        plain, *others = ([ranks[name] for ranks in recording.results[mode]] for mode in MODES)
        assert others == [plain] * len(others), name


def test_the_scenes_cover_every_operator(job: Recording) -> None:
    seen = {op.op for rank in RANKS for op in job.of(rank).operators()}
    assert seen == set(OPERATORS.values())
    assert all("Error" in str(job.results["plain"][0][name]) for name in MISTAKES)
    others = scenes(job) - set(MISTAKES)
    assert not any("Error" in str(job.results["plain"][r][name]) for r in RANKS for name in others)


def test_nobody_hears_of_us_where_all_is_well(job: Recording) -> None:
    assert job.stderr["plain"] == [""] * WORLD
    assert job.stderr[job.mode] == [""] * WORLD


def test_a_fault_of_ours_is_told_once_per_place_and_counted(recording: Recording) -> None:
    for rank in RANKS:
        lines = recording.stderr["faulty"][rank].splitlines()
        assert len(lines) == len(set(lines)) == len(set(OPERATORS.values()))
        assert all("a fault of ours" in line for line in lines)
        heard = recording.heard["faulty", rank]
        assert heard.operators() == []
        counted = [r for r in heard.records(RecordKind.COUNT) if "faults" in r.name]
        assert counted[-1].fields[1] > len(lines)

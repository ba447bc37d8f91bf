"""Matching of the script's calls with NCCL's operators."""

from __future__ import annotations

from stepscope.processor.operators.calls import Call, batches, joined
from stepscope.processor.operators.launches import Operator
from stepscope.wire.records import UNKNOWN


def call(at: int, op: str = "AllReduce", size: int = 64, peer: int = -1) -> Call:
    return Call(b"", "dp-0", op, peer, size, at)


def operator(at: int, op: str = "AllReduce", size: int = 64, peer: int = -1) -> Operator:
    return Operator("nccl-0", op, peer, 0, size, at, UNKNOWN, UNKNOWN, 0)


def found(calls: list[Call], operators: list[Operator]) -> dict[int, list[int]]:
    """By times: each call's operators."""
    return {
        one.enqueue_ns: [op.enqueue_ns for op in those]
        for batch in batches(calls, operators)
        for one, those in joined(batch, [op.peer for op in batch.operators]).items()
    }


def test_each_call_and_what_follows_it() -> None:
    assert found([call(10), call(20)], [operator(12), operator(22)]) == {10: [12], 20: [22]}


def test_a_lost_operator_costs_its_neighbour_at_the_most() -> None:
    calls = [call(at) for at in (10, 20, 30, 40)]
    assert found(calls, [operator(12), operator(32), operator(42)]) == {10: [12], 40: [42]}


def test_a_lost_call_costs_its_neighbour_at_the_most() -> None:
    operators = [operator(at) for at in (12, 22, 32)]
    assert found([call(10), call(30)], operators) == {30: [32]}
    sizes = [operator(12, size=1), operator(22, size=2), operator(32)]
    assert found([call(10, size=1), call(30)], sizes) == {30: [32]}


def test_calls_of_a_group_are_matched_by_operator_peer_and_size() -> None:
    calls = [call(10, "Send", 8, 1), call(11, "Recv", 8, 1), call(12, "Send", 8, 2)]
    sorted_by_nccl = [
        operator(20, "Send", 8, 2), operator(21, "Send", 8, 1), operator(22, "Recv", 8, 1),
    ]  # fmt: skip
    assert found(calls, sorted_by_nccl) == {10: [21], 11: [22], 12: [20]}
    assert found(calls, sorted_by_nccl[1:]) == {}, "it does not come out even"


def test_calls_that_become_several_operators() -> None:
    sends = [operator(at, op, 16, at % 3) for at, op in ((11, "Send"), (12, "Recv"), (13, "Send"))]
    assert found([call(10, "AllToAll")], sends) == {10: [11, 12, 13]}
    assert found([call(10, "AllGather")], [operator(11, "Broadcast")]) == {10: [11]}
    assert found([call(10)], [operator(11, size=40), operator(12, size=24)]) == {10: [11, 12]}
    assert found([call(10, "Barrier", 0)], [operator(11, size=4)]) == {10: [11]}


def test_what_a_call_cannot_become() -> None:
    assert found([call(10)], [operator(11, "Broadcast")]) == {}
    assert found([call(10, size=64)], [operator(11, size=32)]) == {}
    assert found([call(10, "Send", peer=2)], [operator(11, "Send", peer=3)]) == {}
    assert found([call(10)], []) == {}


def test_nothing_is_done_of_no_size() -> None:
    assert found([call(10, size=0), call(20)], [operator(22)]) == {20: [22]}

"""The process groups of communicators that only the calls of their operators tell apart."""

from __future__ import annotations

import itertools

from stepscope.processor.operators.calls import Call
from stepscope.processor.operators.communicators import Members, Place
from stepscope.processor.operators.launches import Operator
from stepscope.processor.operators.places import Places
from stepscope.trace.names import NO_PEER
from stepscope.wire.frames import GroupInfo
from stepscope.wire.records import UNKNOWN

DP, CP = GroupInfo("dp-1", "dp", (1, 3, 5, 7)), GroupInfo("dp-cp-2", "dp", (1, 3, 5, 7))
PP = GroupInfo("pp-3", "pp", (2, 3, 11, 19))
FOUR, PAIR = "nccl-00000000000000ab 1/4 ", "nccl-00000000000000cd 0/2 "
NEXT_STAGE = 11


def call(group: GroupInfo, at_ns: int, op: str = "AllReduce", peer: int = NO_PEER) -> Call:
    return Call(b"", group.id, op, peer, 64, at_ns)


def operator(communicator: str, at_ns: int, op: str = "AllReduce", peer: int = NO_PEER) -> Operator:
    return Operator(communicator, op, peer, 0, 64, at_ns, UNKNOWN, UNKNOWN, 0)


def learned(operators: list[Operator], calls: list[Call]) -> Places:
    places = Places.unknown()
    members = Members({}, 3, 32, (DP, CP, PP), places.of)
    by_group = {
        group: list(some) for group, some in itertools.groupby(calls, lambda call: call.group)
    }
    places.learn(operators, by_group, members)
    return places


def test_an_operator_belongs_to_the_last_call_before_it() -> None:
    places = learned([operator(FOUR, 105)], [call(DP, 50), call(CP, 100)])
    assert places.of(FOUR) == Place("dp-cp-2", (1, 3, 5, 7))


def test_a_call_of_another_kind_is_not_meant() -> None:
    assert learned([operator(FOUR, 105)], [call(CP, 100, "AllGather")]).of(FOUR) is None


def test_divided_votes_decide_nothing() -> None:
    """Two threads, which call at the same moments."""
    calls = [call(DP, 100), call(DP, 300), call(CP, 200), call(CP, 400)]
    operators = [operator(FOUR, at) for at in (105, 205, 305, 405)]
    assert learned(operators, calls).of(FOUR) is None
    assert learned([*operators, *operators[:1] * 4], calls).of(FOUR) is not None


def test_a_pair_for_single_sends_within_a_pipeline() -> None:
    """It has both ranks in the order in which the pipeline has them."""
    sent = [operator(PAIR, 105, "Send", 1), operator(PAIR, 205, "Recv", 1)]
    calls = [call(PP, 100, "Send", NEXT_STAGE), call(PP, 200, "Recv", NEXT_STAGE)]
    places = learned(sent, calls)
    assert places.of(PAIR) == Place("pp-3", (3, NEXT_STAGE))
    members = Members({}, 3, 32, (DP, CP, PP), places.of)
    assert members.peer(PAIR, 1) == NEXT_STAGE


def test_of_calls_in_a_batch_the_one_that_fits_is_meant() -> None:
    calls = [call(PP, 100, "Send", NEXT_STAGE), call(PP, 101, "Recv", 2)]
    assert learned([operator(PAIR, 105, "Send", 1)], calls).of(PAIR) == Place("pp-3", (3, 11))

"""The members of NCCL's communicators: known, or unknown if ambiguous."""

from __future__ import annotations

import pytest

from stepscope.processor.operators.communicators import Communicator, Members, parse
from stepscope.wire.frames import GroupInfo

HASH = "nccl-00000000000000ab"
TP, DP = GroupInfo("tp-1", "tp", (2, 3, 4, 5)), GroupInfo("dp-22", "dp", (1, 3, 5, 7))
PAIR, WORLD = GroupInfo("pp-3", "pp", (3, 7)), GroupInfo("world-0", "world", tuple(range(8)))
ALL = (TP, DP, PAIR, WORLD)


def members(name: str, *groups: GroupInfo, rank: int = 3) -> tuple[int, ...] | None:
    return Members({4: f"{HASH} {name}"}, rank, 8, groups).ranks(4)


def test_a_name_of_the_plugin() -> None:
    assert parse(f"{HASH} 3/8 my group") == Communicator(HASH, 3, 8, "my group")
    assert parse(f"{HASH} 3/8 ") == Communicator(HASH, 3, 8, "")


@pytest.mark.parametrize("text", [None, "", "AllReduce", f"{HASH} 3/", f"{HASH} x/8 y"])
def test_other_names(text: str | None) -> None:
    assert parse(text) is None


def test_the_group_that_has_the_rank_at_its_place() -> None:
    assert members("3/8 ", *ALL) == WORLD.ranks
    assert members("1/4 ", WORLD, DP) == DP.ranks
    assert members("2/4 ", WORLD, DP) is None, "the rank is at another place"


def test_of_two_that_fit_the_name_decides() -> None:
    assert members("1/4 ", *ALL) is None
    assert members("1/4 22", *ALL) == DP.ranks
    assert members("1/4 1", *ALL) == TP.ranks


def test_torch_puts_a_description_before_the_name() -> None:
    assert members("1/4 undefined:22", *ALL) == DP.ranks


def test_pairs_are_made_for_single_sends() -> None:
    assert members("0/2 ", *ALL) is None
    assert members("0/2 3", *ALL) == PAIR.ranks


def test_without_python_only_the_whole_job_is_known() -> None:
    alone = Members({0: f"{HASH} 3/8 ", 1: f"{HASH} 2/8 ", 2: f"{HASH} 3/4 "}, 3, 8, None)
    assert [alone.ranks(id) for id in range(4)] == [WORLD.ranks, None, None, None]

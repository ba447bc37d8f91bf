"""Pipelines among groups without a name: who only sends and receives, and has ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stepscope.formats.kineto.calls import NOTHING, Group
from stepscope.formats.kineto.groups import Known, process_group
from stepscope.formats.kineto.pipelines import with_pipelines
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Strings, Table

Row = tuple[int, str, int]
"""A rank, an operator, and when its kernel began."""
BATCHED = [(0, "Send", 1), (0, "Send", 2), (0, "Recv", 2), (0, "Recv", 3),
           (1, "Recv", 1), (1, "Send", 2), (1, "Recv", 2), (1, "Send", 3)]  # fmt: skip


def kind(ranks: Sequence[int], rows: Sequence[Row], known: str = "other") -> str:
    group = ProcessGroup("other-1", known, tuple(ranks))
    comm = Table({
        "rank": np.array([row[0] for row in rows]), "op": Strings.of([row[1] for row in rows]),
        "start_ns": np.array([row[2] for row in rows]),
        "group": Strings.of(["other-1"] * len(rows)),
    })  # fmt: skip
    return with_pipelines(Job("job", world_size=len(ranks), groups=(group,)), comm).groups[0].kind


def chain(ranks: int, wraps: bool) -> list[Row]:
    """Each rank sends to the next one; the last one to the first, if it wraps."""
    pairs = [(at, (at + 1) % ranks) for at in range(ranks if wraps else ranks - 1)]
    return [row for a, b in pairs for row in ((a, "Send", 1), (b, "Recv", 1))]


def test_a_pipeline_has_ends_and_a_ring_has_none() -> None:
    assert kind(range(4), chain(4, wraps=False)) == "pp"
    assert kind(range(4), chain(4, wraps=True)) == "other"
    assert kind(range(4), chain(4, wraps=False), known="world") == "pp"  # of all ranks


def test_two_stages_fill_their_pipeline_before_they_exchange() -> None:
    assert kind((0, 1), BATCHED) == "pp"
    assert kind((0, 1), chain(2, wraps=True)) == "other"
    assert kind((0, 1), BATCHED, known="world") == "world"  # peers are worth more


@pytest.mark.parametrize("rows", [[*chain(3, False), (1, "AllReduce", 9)], chain(3, False)[:2]])
def test_nothing_else_is_a_pipeline(rows: list[Row]) -> None:
    """Members that also reduce, or of which one was not recorded."""
    assert kind(range(3), rows) == "other"


def test_in_a_group_of_two_the_other_rank_is_the_peer() -> None:
    known = Known(5, 8, ())
    group = process_group(Group("3", "", (1, 5)), 8)
    assert known.peer_of(NOTHING, group) == 1

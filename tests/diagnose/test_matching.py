"""Which rows of `comm_ops` are one operator."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from stepscope.diagnose.prepare.matching import Sent, match, match_among

from .jobs import a_table

Row = tuple[int, str, int, int]
ROWS = some.lists(
    some.tuples(some.integers(0, 2), some.sampled_from(["Send", "Recv", "AllReduce"]),
                some.integers(0, 2), some.integers(0, 5)),
    max_size=30, unique=True,
)  # fmt: skip


def pairs_by_hand(rows: list[Row]) -> set[frozenset[int]]:
    """The k-th Send of a direction and its k-th Recv, by their numbers."""
    ends: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
    for at, (rank, op, peer, seq) in enumerate(rows):
        source, target = (rank, peer) if op == "Send" else (peer, rank)
        ends[source, target, op].append((seq, at))
    found = set()
    for (source, target, op), sends in ends.items():
        receives = ends.get((source, target, "Recv"), []) if op == "Send" else []
        both = zip(sorted(sends), sorted(receives), strict=False)
        found |= {frozenset((send, receive)) for (_, send), (_, receive) in both}
    return found


@given(ROWS)
def test_sends_meet_their_receives_in_order(rows: list[Row]) -> None:
    table = a_table("rank op peer seq group", [(*row, "pp-0") for row in rows])
    matched = match(table)
    together = defaultdict(set)
    for at in np.flatnonzero(matched.p2p).tolist():
        together[int(matched.key[at])].add(at)
    found = {frozenset(pair) for pair in together.values() if len(pair) == 2}
    assert found == pairs_by_hand(rows)
    sends, receives = Sent.of(table).matched
    assert {*map(frozenset, zip(sends.tolist(), receives.tolist(), strict=True))} == found


@given(ROWS, some.randoms(use_true_random=False))
def test_rows_meet_the_same_rows_among_some_of_them(rows: list[Row], draw: Random) -> None:
    table = a_table("rank op peer seq group", [(*row, "pp-0") for row in rows])
    kept = np.array([draw.random() < 0.7 for _ in rows], np.bool_)
    key, among = match(table).key[kept], match_among(table, kept).key
    np.testing.assert_array_equal(among < 0, key < 0)
    np.testing.assert_array_equal(among[:, None] == among, key[:, None] == key)

"""Where a table may be cut to be sorted in parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.store import order
from stepscope.store.order import by_rank

RANKS = some.lists(some.integers(0, 6), max_size=40) | some.lists(some.integers(0, 40)).map(sorted)


@given(RANKS, some.integers(1, 8), some.integers(1, 8))
def test_parts_follow_one_another_and_their_ranks_do_not_mix(
    ranks: list[int], block: int, piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "BLOCK", block)
        patch.setattr(order, "PIECE", piece)
        parts = list(by_rank(np.array(ranks, np.int64)))
    assert [at for part in parts for at in range(part.start, part.stop)] == [*range(len(ranks))]
    for before, after in pairwise(parts):
        assert max(ranks[: before.stop]) < min(ranks[after.start :])


def test_sorted_ranks_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "BLOCK", 100)
    monkeypatch.setattr(order, "PIECE", 10)
    parts = list(by_rank(np.arange(1000) // 7))
    assert len(parts) >= 8, "most blocks end where a rank does"

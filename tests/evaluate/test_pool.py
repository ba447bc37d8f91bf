"""Several processes, of which one may die, and memory for not all of them."""

from __future__ import annotations

import os
from contextlib import closing
from multiprocessing import active_children

from stepscope.evaluate import pool

ROOM = 100


def squared(number: int) -> int:
    """Of what is negative its process dies."""
    if number < 0:
        os._exit(9)
    return number * number


def test_a_process_that_dies_takes_down_one_item_only() -> None:
    found = dict(pool.each(squared, [1, -2, 3], [1] * 3, ROOM, 1))
    assert found == {0: 1, 1: None, 2: 9}
    assert not active_children()


def test_who_stops_listening_leaves_no_process_behind() -> None:
    with closing(pool.each(squared, list(range(9)), [1] * 9, ROOM, 2)) as results:
        next(results)
        assert active_children()
    assert not active_children()


def test_items_wait_until_memory_has_room() -> None:
    needs = [60, 50, 40, 10]
    assert pool.next_item([0, 1, 2, 3], needs, ROOM, busy=[]) == 0
    assert pool.next_item([1, 2, 3], needs, ROOM, busy=[60]) == 2
    assert pool.next_item([1, 3], needs, ROOM, busy=[60, 40]) is None


def test_what_needs_more_than_there_is_has_it_all_for_itself() -> None:
    assert pool.next_item([0], [500], ROOM, busy=[10]) is None
    assert pool.next_item([0], [500], ROOM, busy=[]) == 0
    assert pool.next_item([], [500], ROOM, busy=[]) is None

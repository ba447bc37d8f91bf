"""How long an operator keeps its rank from computing, against a count of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.evaluate.exposed import exposed_ns

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=6)


def slowly(operators: list[tuple[int, int]], busy: list[tuple[int, int]]) -> list[int]:
    """Every nanosecond goes to the operator that began first, unless the rank computes in it."""
    taken = {ns for start, lasted in busy for ns in range(start, start + lasted)}
    found = [0] * len(operators)
    for at in sorted(range(len(operators)), key=lambda one: operators[one][0]):
        start, lasted = operators[at]
        here = set(range(start, start + lasted)) - taken
        found[at] = len(here)
        taken |= here
    return found


@given(operators=SPANS, busy=SPANS)
def test_exposed_time_is_what_a_count_finds(
    operators: list[tuple[int, int]], busy: list[tuple[int, int]]
) -> None:
    start, lasted = np.array([*operators, (50, 1)], np.int64).T
    busy_start, busy_lasted = np.array(busy, np.int64).reshape(-1, 2).T
    found = exposed_ns(start, start + lasted, busy_start, busy_start + busy_lasted)
    assert found.tolist() == slowly([*operators, (50, 1)], busy)

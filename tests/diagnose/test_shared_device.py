"""One device that explains several sets of slow places, or several that explain one each."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.network.shared_device import of_one_device

EVEN = np.ones(4)


def test_the_end_that_all_slow_pairs_have_in_common() -> None:
    """Each pair alone makes its other end look as guilty, or guiltier."""
    chances = [np.array(one) for one in
               ([0.15, 0.84, 0.0, 0.01], [0.4, 0.0, 0.59, 0.01], [0.3, 0.0, 0.0, 0.7])]  # fmt: skip
    ((parts, chance),) = of_one_device(chances, EVEN)
    assert sorted(parts) == [0, 1, 2]
    assert int(chance.argmax()) == 0 and chance[0] > 0.7


def test_two_devices_stay_two() -> None:
    """A switch above both is not likely in either."""
    chances = [np.array([0.95, 0.0, 0.0, 0.05]), np.array([0.0, 0.95, 0.0, 0.05])]
    found = of_one_device(chances, EVEN)
    assert [parts for parts, _ in found] == [(0,), (1,)]
    assert all(np.array_equal(chance, own) for (_, chance), own in zip(found, chances, strict=True))


def test_what_was_believed_before_counts_once() -> None:
    prior = np.array([2.0, 1.0, 1.0, 1.0])
    alike = prior / prior.sum()
    ((_, chance),) = of_one_device([alike, alike], prior)
    assert chance == pytest.approx(alike)

"""Where in a step a slow rank saves time: where it falls behind peers that do the same."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.decide.savings import _alike_in_most

PLACES, STEPS = 4, 6
EVEN = np.tile(np.arange(1, PLACES + 1) / PLACES, STEPS)
PLACE = np.tile(np.arange(PLACES), STEPS)


def test_a_slow_tail_is_saved_at_the_end() -> None:
    behind = np.array([0.0, 0.02, 0.05, 1.0])
    found = _alike_in_most(PLACE, np.tile(behind, STEPS), EVEN)
    assert found is not None and found.tolist() == behind.tolist()


def test_nobody_gives_back_what_it_fell_behind() -> None:
    """Peers of other stages are in other passes at the same place, and seem to be behind, too."""
    assert _alike_in_most(PLACE, np.tile([1.6, 0.4, 1.5, 1.0], STEPS), EVEN) is None

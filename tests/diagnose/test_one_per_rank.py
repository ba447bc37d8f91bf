"""Of several findings about a rank the one is kept that explains most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.decide.culprits import choose
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.suspect import Suspect

from .jobs import MS

LASTING = Suspect(3, "between-phases", ("between-phases",), 5, 45, 1.2, 90.0, 5.0, 100 * MS, 1.3, 1)


@pytest.mark.parametrize(("every", "kept"), [(1, "argus-l2"), (4, "transient")])
def test_what_is_in_most_steps_is_not_now_and_then(every: int, kept: str) -> None:
    """In the median of all steps the rank seems to be little slower. As spikes, what it does in
    every step would cost nothing, because no step is without them."""
    spikes = tuple(range(5, 45, every))
    now_and_then = replace(LASTING, spikes=spikes, stop=spikes[-1] + 1)
    found = [Slowdown("argus-l2", "unknown", "", (3,), suspect=LASTING),
             Slowdown("transient", "unknown", "", (3,), suspect=now_and_then)]  # fmt: skip
    assert [one.method for one in choose(found).kept] == [kept]


def test_what_noise_lifts_above_a_limit_in_some_steps_lasts_all_the_same() -> None:
    """19 of 40 steps are 110 ms longer, and the others 91: as spikes they cost only what they
    exceed the others by."""
    spikes = tuple(range(5, 43, 2))
    spiking = replace(LASTING, spikes=spikes, stop=spikes[-1] + 1,
                      excess_ns=110 * MS * len(spikes) / (spikes[-1] + 1 - 5))  # fmt: skip
    found = [Slowdown("argus-l2", "unknown", "", (3,), suspect=LASTING),
             Slowdown("transient", "unknown", "", (3,), suspect=spiking)]  # fmt: skip
    assert [one.method for one in choose(found).kept] == ["argus-l2"]

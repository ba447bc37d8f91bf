"""Jobs of which all steps were recorded, and what happens in them for a sample of the steps."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.window import Table

from .jobs import Fault, a_job, put


def every_second(table: Table) -> Table:
    return table.take(table.ints("step") % 2 == 0)


def test_spikes_cost_their_share_of_the_steps_of_which_they_are_known() -> None:
    stalls = Fault((2,), "forward-compute", 0, ms=60.0, every=3)
    whole = a_job(8, steps=150, noise=0.02, faults=[stalls], stacks=False)
    some = {name: every_second(whole.tables[name]) for name in ("phases", "comm_ops")}
    (full,), (sampled,) = diagnose(whole).verdicts, diagnose(put(whole, **some)).verdicts
    assert sampled.ranks == full.ranks == (2,)
    assert sampled.lost_fraction == pytest.approx(full.lost_fraction, abs=0.01)

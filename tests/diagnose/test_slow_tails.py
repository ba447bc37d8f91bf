"""A rank that computes after it handed over its last gradients: what is saved, is saved there."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose

from .bucket_jobs import bucket_job, lasts_ns


@pytest.mark.parametrize(("transfer_ms", "tail_ms"), [(1.0, 80.0), (20.0, 40.0), (25.0, 80.0)])
def test_a_slow_tail_costs_what_it_takes_longer_than_the_last_transfer(
    transfer_ms: float, tail_ms: float
) -> None:
    """Peers wait for the last transfer in any case, so 80 ms beside 20 cost 60. Saved evenly over
    its passes, its buckets would have been handed over sooner as well, and 80 ms were lost."""
    slow, usual = (bucket_job(lambda *_: transfer_ms, (0.0,) * 7 + (ms,)) for ms in (tail_ms, 0.0))
    (verdict,) = diagnose(slow).verdicts
    assert verdict.ranks == (7,)
    assert verdict.lost_fraction == pytest.approx(1 - lasts_ns(usual) / lasts_ns(slow), abs=0.02)

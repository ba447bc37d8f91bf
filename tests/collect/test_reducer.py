"""How long a backward waited for DDP's buckets, from the times that the hooks left."""

from __future__ import annotations

import pytest

from stepscope.collect.hooks.reducer import take_wait_ns
from stepscope.collect.shared import Shared

BEGUN, BUCKET, COMPUTED, REDUCED, ENDED = 100, 140, 150, 180, 195


def after(**times: int) -> Shared:
    """A backward with two buckets, both reduced."""
    usual = {"last_bucket_ns": BUCKET, "computed_ns": COMPUTED, "reduced_ns": REDUCED}
    return Shared(**{"calls": 2, "buckets": 2, "reduced": 2, **usual, **times})


def test_waiting_lasts_from_the_last_gradient_to_the_last_bucket() -> None:
    assert take_wait_ns(after(), BEGUN, ENDED, True) == REDUCED - COMPUTED


def test_buckets_that_were_reduced_before_are_not_waited_for() -> None:
    assert take_wait_ns(after(reduced_ns=COMPUTED - 1), BEGUN, ENDED, True) == 0


@pytest.mark.parametrize(("reduced", "only_buckets"), [(1, True), (2, False)])
def test_waiting_lasts_until_backward_ends_if_the_end_of_a_bucket_is_unknown(
    reduced: int, only_buckets: bool
) -> None:
    shared = after(reduced=reduced)
    assert take_wait_ns(shared, BEGUN, ENDED, only_buckets) == ENDED - COMPUTED


def test_without_the_callback_waiting_begins_with_the_last_bucket() -> None:
    assert take_wait_ns(after(computed_ns=BEGUN - 1), BEGUN, ENDED, True) == REDUCED - BUCKET


def test_a_backward_without_buckets_does_not_wait_and_waiting_counts_once() -> None:
    shared = after()
    assert take_wait_ns(shared, BUCKET + 1, ENDED, True) == 0
    assert take_wait_ns(shared, BEGUN, ENDED, True) > 0
    assert take_wait_ns(shared, BEGUN, ENDED, True) == 0

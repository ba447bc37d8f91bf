"""Ranks that wait for one source of data, like places in a queue, are not its culprits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host
from tests.diagnose.jobs import Fault, a_job

RANKS, PER_HOST, SINCE = 12, 4, 80
QUEUE = {1: 12.0, 4: 21.0, 6: 33.0, 9: 41.0}
"""How long ranks of three hosts wait, in ms."""


def waiting(waits: Mapping[int, float], since: int = SINCE) -> Diagnosis:
    faults = [Fault((rank,), "data-load", start=since, ms=ms, computes=False)
              for rank, ms in waits.items()]  # fmt: skip
    window = a_job(ranks=RANKS, faults=faults)
    hosts = tuple(Host(f"host-{at}", tuple(range(at * PER_HOST, (at + 1) * PER_HOST)))
                  for at in range(RANKS // PER_HOST))  # fmt: skip
    return diagnose(replace(window, job=replace(window.job, hosts=hosts)))


def test_a_queue_that_begins_on_several_hosts_at_once_accuses_no_rank() -> None:
    (verdict,) = waiting(QUEUE).verdicts
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("data_loading", (), "data-load")
    assert verdict.steps is not None and abs(verdict.steps[0] - SINCE) <= 1
    assert verdict.lost_fraction == pytest.approx(41 / 135, abs=0.05)


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param(dict.fromkeys(QUEUE, 40.0), id="alike"),
        pytest.param({1: 41.0, 4: 40.0, 6: 12.0, 9: 11.0}, id="of two kinds"),
        pytest.param({0: 12.0, 1: 21.0, 2: 33.0, 3: 41.0}, id="on one host"),
    ],
)
def test_ranks_that_do_not_stand_in_a_queue_are_named(waits: Mapping[int, float]) -> None:
    found = waiting(waits)
    named = {rank for one in found.verdicts for rank in one.ranks}
    assert named and named <= set(waits)

"""VenusTrace by name: late passes by microbatch, slow edges, hangs; and as published."""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.evaluate.columns import without_columns
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.window import Window

SLOW = "delay:rank=6,at={at},microbatch={microbatch},ms={ms},from=12,until=14"


def a_pipeline(*faults: str, tp: int = 2, ranks: int = 32, chunks: int = 1) -> Window:
    layout = Parallelism(pp=4, tp=tp, chunks=chunks)
    known = tuple(map(parse_fault, faults))
    return simulate(Scenario(ranks=ranks, steps=24, seed=3, parallelism=layout,
                             faults=known)).window  # fmt: skip


def by_name(job: Window, name: str = "venustrace") -> Diagnosis:
    return diagnose(job, Settings(methods=(name,)))


def only(found: Diagnosis) -> Verdict:
    (verdict,) = found.verdicts
    return verdict


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("at", ["forward", "backward"])
def test_one_late_pass_is_named_with_its_microbatch(at: str, chunks: int) -> None:
    job = a_pipeline(SLOW.format(at=at, microbatch=2, ms=400), chunks=chunks)
    verdict = only(by_name(job))
    assert (verdict.ranks, verdict.phase) == ((6,), f"{at}-compute")
    assert f"the {at} pass of microbatch 2 in stage" in verdict.evidence[0].detail
    assert verdict.steps == (12, 13)


def test_what_a_bubble_absorbs_costs_nothing_and_is_not_named() -> None:
    """Figure 13: the first stage may begin its forward passes late by the length of a bubble."""
    job = a_pipeline(SLOW.format(at="forward", microbatch=2, ms=60), tp=1)
    assert by_name(job).verdicts == ()
    assert by_name(a_pipeline(SLOW.format(at="backward", microbatch=7, ms=60))).verdicts


def test_a_late_transfer_is_an_edge_between_two_ranks() -> None:
    job = a_pipeline("delay:rank=6,at=transfer,ms=200,from=12,until=13")
    verdict = only(by_name(job))
    assert (verdict.ranks, verdict.cause) == ((6, 14), "network")
    assert "from rank 6 to rank 14" in verdict.summary


def test_an_exchange_of_gradients_is_late_after_the_last_pass() -> None:
    job = a_pipeline(SLOW.format(at="transfer", microbatch=2, ms=500), tp=1)
    verdict = only(by_name(job))
    assert (verdict.ranks, verdict.cause, verdict.group) == ((), "network", "dp-0")


def test_a_rank_that_was_slow_from_the_start_differs_from_other_replicas() -> None:
    verdict = only(by_name(a_pipeline("gpu_slow:rank=6,factor=1.3,from=0")))
    assert verdict.ranks == (6,)
    assert verdict.lost_fraction is not None
    assert verdict.lost_fraction > 0.05


def test_of_ranks_that_compute_together_arrivals_tell_who_was_late_or_nobody_does() -> None:
    job = a_pipeline(SLOW.format(at="backward", microbatch=7, ms=400))
    assert only(by_name(without_columns(job, "phases", "wait_ns"))).ranks == (6,)


def test_healthy_pipelines_are_not_accused() -> None:
    for name in ("venustrace", "venustrace-published"):
        assert by_name(a_pipeline(), name).verdicts == ()


def test_several_hangs_and_one_after_a_slowdown_are_all_named() -> None:
    hangs = (
        "hang:rank=6,from=22,at=host,microbatch=3",
        "hang:rank=11,from=22,at=host,microbatch=2",
    )
    two = by_name(a_pipeline(*hangs, tp=1))
    assert sorted(one.ranks for one in two.verdicts if one.kind == "hang") == [(6,), (11,)]
    slow = by_name(a_pipeline("gpu_slow:rank=2,factor=2,from=9", hangs[0]))
    assert [(one.kind, one.ranks) for one in slow.verdicts] == [("hang", (6,)), ("slowdown", (2,))]
    assert slow.verdicts[0].places[0].microbatch == 3


def test_as_published_one_hang_is_named_and_a_victim_of_a_slow_rank() -> None:
    """Line 26 takes the longest AllReduce, which is that of the rank that waits."""
    name = "venustrace-published"
    hung = by_name(a_pipeline("hang:rank=6,from=22,at=backward,microbatch=3"), name)
    assert [(one.kind, one.ranks) for one in hung.verdicts] == [("hang", (6,))]
    slow = by_name(a_pipeline(SLOW.format(at="backward", microbatch=7, ms=400)), name)
    assert only(slow).ranks == (7,), "rank 6 was slow"
    slight = by_name(a_pipeline("gpu_slow:rank=6,factor=1.3,from=9"), name)
    assert slight.verdicts == (), "less than half"


def test_without_microbatches_nothing_is_found() -> None:
    job = a_pipeline(SLOW.format(at="backward", microbatch=7, ms=400))
    for name in ("venustrace", "venustrace-published"):
        assert by_name(without_columns(job, "phases", "microbatch"), name).verdicts == ()

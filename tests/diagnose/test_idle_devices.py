"""Devices of all ranks that wait for their hosts, and a rank that saves while others wait."""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose

from .traces import Piece, a_trace

RANKS, STEPS = 4, 6
TO_HOST = "Memcpy DtoH (Device -> Pageable)"


def of_all(late_ms: float, kernels: int = 1) -> Diagnosis:
    """Steps of 30 ms of computing; hosts launch so many of their kernels too late."""
    each = [Piece("gemm", 30.0 / (kernels + 1), late_ms) for _ in range(kernels)]
    return diagnose(a_trace(lambda rank, step: [Piece("gemm", 30.0 / (kernels + 1)), *each],
                            RANKS, STEPS))  # fmt: skip


def test_hosts_that_all_do_something_else_in_each_step() -> None:
    (one,) = of_all(15.0).verdicts
    assert (one.cause, one.ranks) == ("host", ())
    assert one.lost_fraction == pytest.approx(15 / 48, abs=0.05)
    assert "while hosts launch nothing" in one.summary


def test_hosts_that_launch_too_slowly_for_short_kernels_are_not_healthy() -> None:
    """Whether they are slow, or the kernels too short, is not known: nobody is accused."""
    found = of_all(0.5, kernels=30)
    assert (found.state, found.verdicts) == ("unknown", ())
    assert "until hosts launch more" in found.unaccounted


def test_hosts_that_read_a_value_before_they_launch_more() -> None:
    """As `loss.item()` in each of thirty layers: what a copy to the host precedes is no launching
    that is slow."""
    layer = [Piece(TO_HOST, 0.01), Piece("gemm", 1.0, 0.5)]
    (one,) = diagnose(a_trace(lambda rank, step: [Piece("gemm", 1.0), *layer * 30],
                              RANKS, STEPS)).verdicts  # fmt: skip
    assert (one.cause, one.ranks) == ("host", ())
    assert one.lost_fraction == pytest.approx(15 / 48, abs=0.05)
    assert "while hosts read values from them" in one.summary


def test_a_little_of_it_is_ordinary() -> None:
    assert of_all(1.5).state == "healthy"


def saving(name: str) -> Diagnosis:
    """Rank 0 copies 20 ms of something in one step, and its host is late by 60 ms then."""

    def work(rank: int, step: int) -> list[Piece]:
        late = [Piece(name, 20.0), Piece("gemm", 20.0, 60.0)] if (rank, step) == (0, 3) else []
        return [Piece("gemm", 30.0), *late]

    return diagnose(a_trace(work, 8, 10))


def test_a_rank_that_saves_in_one_step_is_a_suspect() -> None:
    (one,) = saving(TO_HOST).verdicts
    assert one.ranks == (0,) and one.confidence is not None and one.confidence < 0.5


def test_a_rank_that_computes_meanwhile_does_not_save() -> None:
    (one,) = saving("gemm").verdicts
    assert one.ranks == (0,) and one.confidence is not None and one.confidence > 0.5


def test_ranks_that_wait_for_another_one_in_each_step_are_not_healthy() -> None:
    """Another one is last in each step, in too few steps to see that they take turns."""

    def work(rank: int, step: int) -> list[Piece]:
        return [Piece("gemm", 45.0 if step % 2 == rank else 30.0)]

    found = diagnose(a_trace(work, 2, 4))
    assert found.state != "healthy"

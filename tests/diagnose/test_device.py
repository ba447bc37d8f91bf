"""What a culprit does longer than its peers, as a trace of every kernel or operator shows it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.window import Window

from .jobs import without
from .traces import Piece, a_trace

COPY = "Memcpy HtoD (Pinned -> Device)"
USUAL = (Piece("embedding", 5), Piece("gemm", 20), Piece(COPY, 3), Piece("softmax", 10))


def with_odd_rank(*pieces: Piece, on_device: bool = True, ranks: int = 4) -> Window:
    """Rank 2 runs these pieces, all others the usual ones."""

    def work(rank: int, step: int) -> Sequence[Piece]:
        return pieces if rank == 2 else USUAL

    return a_trace(work, ranks, on_device=on_device)


def the_verdict(window: Window) -> Verdict:
    (verdict,) = diagnose(window).verdicts
    assert verdict.ranks == (2,)
    return verdict


def why(verdict: Verdict) -> str:
    return next(one.detail for one in verdict.evidence if one.method == "trace")


def test_a_longer_kernel_is_slow_computing_and_named() -> None:
    verdict = the_verdict(with_odd_rank(USUAL[0], Piece("gemm", 40), *USUAL[2:]))
    assert (verdict.cause, verdict.kernels) == ("compute", ("gemm",))
    assert "computing; mostly in gemm" in why(verdict)
    assert verdict.summary.startswith("rank 2 computes ")


def test_the_costliest_kernels_come_first_and_small_change_is_left_out() -> None:
    slow = (Piece("embedding", 20), Piece("gemm", 60), USUAL[2], Piece("softmax", 12))
    assert the_verdict(with_odd_rank(*slow)).kernels == ("gemm", "embedding")


def test_all_kernels_longer_is_a_slow_device() -> None:
    slow = [Piece(one.name, 2 * one.ms) for one in USUAL]
    verdict = the_verdict(with_odd_rank(*slow))
    assert (verdict.cause, verdict.kernels) == ("compute", ("gemm", "softmax", "embedding"))


def test_longer_copies_are_no_computing() -> None:
    verdict = the_verdict(with_odd_rank(*USUAL[:2], Piece(COPY, 30), USUAL[3]))
    assert (verdict.cause, verdict.kernels) == ("memory_copy", ())
    assert "copying between host and device" in verdict.summary


def test_kernels_launched_late_are_the_hosts_fault() -> None:
    verdict = the_verdict(with_odd_rank(*USUAL[:3], Piece("softmax", 10, late_ms=25)))
    assert (verdict.cause, verdict.kernels) == ("host", ())
    assert "because its host is late" in verdict.summary


def test_more_kernels_of_the_usual_length_are_more_work() -> None:
    verdict = the_verdict(with_odd_rank(*USUAL, Piece("gemm", 20)))
    assert (verdict.cause, verdict.kernels) == ("load_imbalance", ("gemm",))
    assert "more work, not slower" in why(verdict)


def test_so_are_longer_ones_beside_the_usual_while_the_device_is_no_slower() -> None:
    """The last stage of a pipeline multiplies by a larger matrix, in a kernel of the same name."""
    verdict = the_verdict(with_odd_rank(*USUAL, Piece("gemm", 50)))
    assert (verdict.cause, verdict.kernels) == ("load_imbalance", ("gemm",))
    slow = [Piece(one.name, 3 * one.ms) for one in USUAL]
    assert the_verdict(with_odd_rank(*slow, Piece("gemm", 20))).cause == "compute"


def test_so_are_kernels_that_no_other_rank_runs() -> None:
    verdict = the_verdict(with_odd_rank(*USUAL, Piece("expert", 25)))
    assert (verdict.cause, verdict.kernels) == ("load_imbalance", ("expert",))


def test_another_and_slower_algorithm_in_place_of_the_usual_is_slow_computing() -> None:
    verdict = the_verdict(with_odd_rank(USUAL[0], Piece("fallback_gemm", 45), *USUAL[2:]))
    assert (verdict.cause, verdict.kernels) == ("compute", ("fallback_gemm",))


def test_fewer_and_longer_kernels_are_slow_computing() -> None:
    """Half as many of four times the length: no more work."""
    usual = (Piece("gemm", 10), Piece("gemm", 10))

    def work(rank: int, step: int) -> Sequence[Piece]:
        return (Piece("gemm", 40),) if rank == 2 else usual

    assert the_verdict(a_trace(work)).cause == "compute"


def test_equal_work_is_silence() -> None:
    found = diagnose(with_odd_rank(*USUAL))
    assert (found.state, found.verdicts) == ("healthy", ())


@pytest.mark.parametrize("odd", [
    (*USUAL[:2], Piece(COPY, 3), Piece("softmax", 10.5)),
    (*USUAL[:3], Piece("softmax", 10, late_ms=0.5)),
])  # fmt: skip
def test_a_little_more_of_anything_is_none_either(odd: Sequence[Piece]) -> None:
    assert diagnose(with_odd_rank(*odd)).verdicts == ()


def test_on_cpu_a_longer_operator_is_computing_but_no_kernel() -> None:
    longer = (USUAL[0], Piece("gemm", 40), *USUAL[2:])
    verdict = the_verdict(with_odd_rank(*longer, on_device=False))
    assert (verdict.cause, verdict.kernels) == ("compute", ())
    assert "mostly in gemm" in why(verdict)


def test_on_cpu_time_between_operators_is_the_hosts() -> None:
    late = (*USUAL[:3], Piece("softmax", 10, late_ms=25))
    assert the_verdict(with_odd_rank(*late, on_device=False)).cause == "host"


def test_two_ranks_are_enough_to_tell_them_apart() -> None:
    def work(rank: int, step: int) -> Sequence[Piece]:
        return (*USUAL[:2], Piece(COPY, 60), USUAL[3]) if rank == 1 else USUAL

    (verdict,) = diagnose(a_trace(work, ranks=2, steps=10)).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "memory_copy")


def test_without_a_trace_the_plain_cause_stays() -> None:
    """Twenty steps and more, so that stragglers are also found without single operators."""

    def work(rank: int, step: int) -> Sequence[Piece]:
        return (*USUAL[:2], Piece(COPY, 40), USUAL[3]) if rank == 2 else USUAL

    window = a_trace(work, steps=60)
    assert the_verdict(window).cause == "memory_copy"
    assert the_verdict(without(window, "kernels", "host_ops")).cause == "compute"


def test_one_rank_has_no_peers_and_is_not_accused() -> None:
    found = diagnose(a_trace(lambda rank, step: USUAL, ranks=1))
    assert (found.state, found.verdicts) == ("healthy", ())
    assert any(one.why == "one rank has no peers" for one in found.skipped)


def test_slow_on_all_ranks_is_no_culprit() -> None:
    """A trace of a few steps has no past: what all do slowly looks like a big model."""
    slow = [Piece(one.name, 10 * one.ms) for one in USUAL]
    assert diagnose(a_trace(lambda rank, step: slow)).verdicts == ()

"""A rank whose expert is popular: more bytes in all-to-all show more work."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.window import Strings, Window

from .jobs import Fault, a_job, put
from .traces import Piece, a_trace

SLOW = Fault((2,), "forward-compute", 60, ms=30.0)


def exchanging(popular: int | None) -> Window:
    """The operators are exchanges between experts; from step 60 on one rank moves twice as much."""
    window = a_job(faults=[SLOW])
    comm = window.tables["comm_ops"]
    more = (comm.ints("rank") == popular) & (comm.ints("step") >= 60)
    size = np.where(more, 2, 1) * comm.ints("bytes")
    comm = comm.with_column("op", Strings.of(["AllToAll"] * len(comm))).with_column("bytes", size)
    return put(window, comm_ops=comm)


def the_verdict(window: Window) -> Verdict:
    (verdict,) = diagnose(window).verdicts
    return verdict


def test_a_rank_with_more_tokens_has_more_work() -> None:
    verdict = the_verdict(exchanging(popular=2))
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (2,))
    assert any("2.0 times as many bytes" in one.detail for one in verdict.evidence)


def test_a_rank_with_as_many_tokens_as_its_peers_is_slow() -> None:
    assert the_verdict(exchanging(popular=None)).cause == "compute"


def test_more_tokens_on_another_rank_explain_nothing() -> None:
    assert the_verdict(exchanging(popular=1)).cause == "compute"


def test_in_a_trace_longer_kernels_of_a_rank_with_more_tokens_are_more_work() -> None:
    window = a_trace(lambda rank, step: [Piece("gemm", 30.0 if rank == 2 else 20.0)])
    comm = window.tables["comm_ops"]
    size = np.where(comm.ints("rank") == 2, 2, 1) * comm.ints("bytes")
    comm = comm.with_column("op", Strings.of(["AllToAll"] * len(comm)))
    verdicts = [the_verdict(put(window, comm_ops=comm.with_column("bytes", some)))
                for some in (size, comm.ints("bytes"))]  # fmt: skip
    assert [one.cause for one in verdicts] == ["load_imbalance", "compute"]
    assert {one.ranks for one in verdicts} == {(2,)}


@pytest.mark.parametrize(
    ("slow", "cause"),
    [(("gemm",), "load_imbalance"), (("norm", "adam"), "compute"),
     (("gemm", "norm", "adam", "flash_fwd"), "compute")],
)  # fmt: skip
def test_in_a_trace_padded_exchanges_tell_experts_by_what_has_no_tokens(
    slow: tuple[str, ...], cause: str
) -> None:
    """Attention has none, and slow memory shows in the optimizer; no group is named."""
    usual = {"flash_fwd": 10.0, "gemm": 10.0, "norm": 10.0, "adam": 3.0}
    window = a_trace(lambda rank, step: [
        Piece(name, ms * (1.8 if rank == 2 and name in slow else 1.0)) for name, ms in usual.items()
    ])  # fmt: skip
    comm = window.tables["comm_ops"]
    comm = comm.with_column("op", Strings.of(["AllToAll"] * len(comm)))
    verdict = the_verdict(put(window, comm_ops=comm))
    assert (verdict.cause, verdict.ranks) == (cause, (2,))

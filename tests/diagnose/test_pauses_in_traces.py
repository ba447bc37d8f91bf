"""Ranks that pause in a few steps of a profiler trace, where all of it may be one event."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.trace import Host
from stepscope.window import Window

from .profiles import Share, but, profile
from .traces import Piece, a_trace

LATE_MS = 30.0


def a_job(
    pauses: Mapping[int, Collection[int]], ranks: int = 8, steps: int = 10, late_ms: float = LATE_MS
) -> Window:
    """Steps of 33 ms; some ranks launch their second kernel too late in some steps."""

    def work(rank: int, step: int) -> list[Piece]:
        is_late = step in pauses.get(rank, ())
        return [Piece("gemm", 20.0), Piece("relu", 10.0, late_ms if is_late else 0.0)]

    return a_trace(work, ranks, steps)


def found(
    pauses: Mapping[int, Collection[int]], ranks: int = 8, late_ms: float = LATE_MS
) -> Diagnosis:
    return diagnose(a_job(pauses, ranks, late_ms=late_ms))


def verdict(
    pauses: Mapping[int, Collection[int]], ranks: int = 8, late_ms: float = LATE_MS
) -> Verdict:
    (one,) = found(pauses, ranks, late_ms).verdicts
    return one


@pytest.mark.parametrize("steps", [(3,), (2, 6), (2, 5, 6), (1, 3, 6, 8)])
def test_a_rank_that_pauses_in_a_minority_of_the_steps(steps: tuple[int, ...]) -> None:
    one = verdict({5: steps}, late_ms=60)
    lost = 60 * len(steps)
    assert (one.ranks, one.cause) == ((5,), "host")
    assert one.lost_fraction == pytest.approx(lost / (9 * 33 + lost), abs=0.05)


def test_of_two_steps_peers_show_which_one_is_usual() -> None:
    (one,) = diagnose(a_job({5: (1,)}, steps=2, late_ms=60)).verdicts
    assert (one.ranks, one.cause) == ((5,), "host")
    assert one.lost_fraction == pytest.approx(60 / (2 * 33 + 60), abs=0.05)


def test_a_slow_step_of_all_is_not_the_usual_one() -> None:
    """All other steps but that one have pauses, or come after one."""

    def work(rank: int, step: int) -> list[Piece]:
        late_ms = 40.0 if rank == 5 and step in (2, 4, 6, 8) else 0.0
        return [Piece("gemm", 60.0 if step == 1 else 20.0), Piece("relu", 10.0, late_ms)]

    (one,) = diagnose(a_trace(work, 8, 10)).verdicts
    assert one.ranks == (5,)


def test_the_function_is_judged_by_the_whole_recording() -> None:
    """Three pauses of 60 ms are a third of ten steps, and each is twice a step."""
    shares = [Share("save", "python", but(0.002, 8, r5=0.3), location="/job/train.py:7")]
    window = a_job({5: (2, 5, 7)}, late_ms=60)
    patterns = profile(8, shares, (0, 9)).table()
    (one,) = diagnose(replace(window, tables={**window.tables, "patterns": patterns})).verdicts
    assert (one.ranks, one.function) == ((5,), "save (/job/train.py:7)")


def test_an_only_rank_is_compared_with_its_own_other_steps() -> None:
    one = verdict({0: (4,)}, ranks=1, late_ms=200)
    assert one.ranks == (0,)
    assert "slower than its usual steps" in one.summary


def test_a_pause_that_costs_little_is_no_verdict() -> None:
    short = found({5: (3,)}, late_ms=20)
    assert short.verdicts == ()
    assert [one.ranks for one in short.candidates] == [(5,)]
    assert short.candidates[0].decisions[-1].rule == "costs-enough"


def test_single_pauses_here_and_there_accuse_nobody() -> None:
    assert found({5: (3,), 2: (7,)}, late_ms=60).verdicts == ()


def test_two_ranks_that_pause_again_and_again_are_both_named() -> None:
    ranks = {
        rank for one in found({5: (3, 6), 2: (4, 7)}, late_ms=60).verdicts for rank in one.ranks
    }
    assert ranks == {2, 5}


def test_ranks_of_a_host_that_pause_at_once() -> None:
    hosts = (Host("a", tuple(range(8))), Host("b", tuple(range(8, 16))))
    window = a_job(dict.fromkeys(range(8, 16), (3, 6)), ranks=16, late_ms=60)
    placed = Window(replace(window.job, hosts=hosts), window.tables)
    (one,) = diagnose(placed).verdicts
    assert one.ranks == tuple(range(8, 16))


def test_the_gates_that_nobody_measured_are_not_shown() -> None:
    shown = diagnose(a_job({}), Settings(explain=(5,))).candidates
    assert all(
        one.limit is None or one.limit == one.limit for each in shown for one in each.decisions
    )

"""All ranks get slower together: nobody is blamed, the code is."""

from __future__ import annotations

import pytest

from stepscope.diagnose.runner import diagnose

from .jobs import Fault, a_job, with_samples, without

ALL = (0, 1, 2, 3)
SLOW = Fault(ALL, "forward-compute", 100, ms=60, function="tokenize (text.py:12)")


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_a_function_slow_on_all_ranks(noise: float) -> None:
    diagnosis = diagnose(a_job(noise=noise, faults=[SLOW]))
    (verdict,) = diagnosis.verdicts
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert verdict.function == "tokenize (text.py:12)"
    assert verdict.steps is not None
    assert abs(verdict.steps[0] - 100) <= 5
    assert (diagnosis.state, diagnosis.windows[0].kind) == ("regression", "regression")
    assert verdict.lost_fraction == pytest.approx(60 / 148, abs=0.08)


def test_without_stacks_the_phase_is_named() -> None:
    (verdict,) = diagnose(without(a_job(faults=[SLOW]), "stacks")).verdicts
    assert (verdict.cause, verdict.phase, verdict.function) == ("code", "forward-compute", None)
    assert verdict.confidence <= 0.6


def test_all_loaders_slow_is_data_loading() -> None:
    fault = Fault(ALL, "data-load", 100, ms=60, computes=False)
    (verdict,) = diagnose(without(a_job(faults=[fault]), "stacks")).verdicts
    assert (verdict.cause, verdict.ranks) == ("data_loading", ())


def test_collections_on_all_ranks_are_gc() -> None:
    fault = Fault(ALL, "forward-compute", 100, ms=60, gc=True)
    (verdict,) = diagnose(a_job(faults=[fault])).verdicts
    assert (verdict.cause, verdict.ranks) == ("gc", ())


def test_a_machine_that_got_busy_is_not_code() -> None:
    """Everything takes 1.6 times as long and no processor time is added: no function grew."""
    fault = Fault(ALL, None, 100, times=1.6, computes=False)
    job = with_samples(a_job(noise=0.1, faults=[fault]), "run_delay", lambda *_: 0.5)
    assert diagnose(job).verdicts == ()
    assert diagnose(job).state == "regression"


def test_a_machine_on_which_steps_double_deserves_a_careful_word() -> None:
    fault = Fault(ALL, None, 100, times=2.5, computes=False)
    (verdict,) = diagnose(a_job(noise=0.1, faults=[fault])).verdicts
    assert (verdict.cause, verdict.ranks) == ("host", ())
    assert verdict.confidence < 0.5


def test_one_slow_rank_is_not_everyones_regression() -> None:
    fault = Fault((2,), "forward-compute", 100, ms=60, function="tokenize (text.py:12)")
    (verdict,) = diagnose(a_job(faults=[fault])).verdicts
    assert verdict.ranks == (2,)


def test_a_slow_rank_within_a_slow_job() -> None:
    """Once the rank is healed the job is still slower than before: two verdicts."""
    own = Fault((2,), "backward-compute", 60, ms=40)
    verdicts = diagnose(a_job(steps=240, faults=[own, SLOW])).verdicts
    assert {verdict.ranks for verdict in verdicts} == {(2,), ()}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault((1,), "forward-compute", 100, ms=60, gc=True), "gc"),
        (Fault((1,), "forward-compute", 100, ms=60, function="tokenize (text.py:12)"), "compute"),
    ],
)
def test_what_a_culprit_does_is_not_everyones_reason(fault: Fault, cause: str) -> None:
    """The machine got busier at the same time: its pauses and its function explain only itself."""
    busy = Fault(ALL, None, 100, times=1.4, computes=False)
    job = with_samples(a_job(noise=0.1, faults=[fault, busy]), "run_delay", lambda *_: 0.5)
    verdicts = diagnose(job).verdicts
    assert [(verdict.cause, verdict.ranks) for verdict in verdicts] == [(cause, (1,))]

"""The line that says whom each method names, and why some of them are not accused."""

from __future__ import annotations

from functools import cache

import pytest

from stepscope.diagnose.decide.opinions import listed
from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.report.html import render_html
from stepscope.report.json import to_json
from stepscope.report.text import render_text
from stepscope.report.trail import render_trail
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.window import Window

from .jobs import Fault, a_job, without


@cache
def simulated(fault: str, tp: int = 2) -> Diagnosis:
    scenario = Scenario(ranks=32, steps=40, parallelism=Parallelism(tp=tp),
                        faults=(parse_fault(fault),))  # fmt: skip
    return diagnose(simulate(scenario).window)


def only(diagnosis: Diagnosis) -> Verdict:
    (verdict,) = diagnosis.verdicts
    return verdict


def said(verdict: Verdict) -> dict[str, tuple[int, ...]]:
    return {one.by: one.ranks for one in verdict.opinions}


def test_the_one_who_shares_layers_waits() -> None:
    """KAIR's score names both of a tensor parallel pair; only one takes longer itself."""
    verdict = only(simulated("gpu_slow:ranks=12,factor=1.3"))
    assert said(verdict)["own time"] == (12,)
    assert said(verdict)["K-S"] == (12, 13)
    assert verdict.agreement.endswith("own time says 12, K-S says 12 and 13: 13 waits for 12")


def test_whoever_a_slow_adapter_holds_up_waits_for_it() -> None:
    verdict = only(simulated("nic_slow:ranks=12"))
    assert said(verdict)["slow-link"] == (12,) and said(verdict)["own time"] == ()
    assert "own time says nobody" in verdict.agreement
    assert "wait for 12" in verdict.agreement


def test_methods_that_agree_need_no_reason() -> None:
    job = a_job(ranks=8, faults=[Fault((2,), "forward-compute", 50, ms=60)])
    verdict = only(diagnose(job))
    assert verdict.agreement == "arrival says 2, own time says 2, K-S says 2"


def two_faults() -> Window:
    return a_job(ranks=16, faults=[Fault((2,), "forward-compute", 0, ms=60),
                                   Fault((9,), "backward-compute", 100, ms=70)])  # fmt: skip


def test_a_rank_with_a_verdict_of_its_own_is_said_to_have_one() -> None:
    lines = {one.ranks: one.agreement for one in diagnose(two_faults()).verdicts}
    assert lines[(9,)].endswith("2 has a verdict of its own")
    assert "own time says 9" in lines[(9,)] and "arrival says 2" in lines[(9,)]


def test_the_methods_of_own_time_have_one_opinion() -> None:
    verdict = only(diagnose(a_job(ranks=8, faults=[Fault((2,), "optimizer", 50, ms=60)])))
    assert "argus-l2" not in said(verdict), "it judges own time, which has spoken"


def test_one_opinion_alone_is_no_line() -> None:
    job = without(a_job(ranks=8, faults=[Fault((2,), "forward-compute", 50, ms=60)]), "comm_ops")
    assert [one.agreement for one in diagnose(job).verdicts] == [""]


def test_a_method_run_by_name_has_its_say() -> None:
    job = a_job(ranks=16, faults=[Fault((2,), "forward-compute", 0, ms=60)])
    verdict = diagnose(job, Settings(methods=("default", "kair-published"))).verdicts[0]
    assert said(verdict)["kair-published"] == (2,)


def test_every_report_has_the_line() -> None:
    diagnosis = simulated("gpu_slow:ranks=12,factor=1.3")
    line = only(diagnosis).agreement
    assert f"Methods   {line[:40]}" in render_text(diagnosis)
    assert line in render_html(diagnosis)
    assert line in render_trail(diagnosis, 12)
    (shown,) = to_json(diagnosis)["verdicts"]
    assert shown["agreement"] == line
    assert shown["opinions"][2] == {"by": "K-S", "ranks": [12, 13], "places": []}


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((12,), "12"), ((1, 2), "1 and 2"), ((1, 2, 3), "1, 2 and 3"),
     (tuple(range(9)), "0, 1, 2, 3 and 5 more")],
)  # fmt: skip
def test_ranks_are_listed_shortly(ranks: tuple[int, ...], words: str) -> None:
    assert listed(ranks) == words

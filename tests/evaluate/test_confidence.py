"""The confidence of verdicts: what is learnt, from what, and what it does to verdicts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli import main
from stepscope.diagnose.decide.confidence import BELOW, FACTS, SURE, Weights, read, shipped
from stepscope.diagnose.run import diagnose
from stepscope.errors import FormatError
from stepscope.evaluate.confidence import Labelled, fit
from stepscope.evaluate.layouts import job
from stepscope.simulate import simulate
from stepscope.simulate.parse import parse_fault

TYPICAL = {"score": 0.8, "agree": 1.0, "differ": 0.0, "lost": 0.1, "steps": 40.0, "cause": 1.0,
           "accuses": 1.0, "first": 1.0, "measured": 1.0}  # fmt: skip


def verdicts(origin: str, agree: float, right: int, wrong: int) -> list[Labelled]:
    facts = {**TYPICAL, "agree": agree}
    return [Labelled(origin, "slowdown", facts, right=at < right) for at in range(right + wrong)]


def test_where_more_measures_agree_verdicts_are_trusted_as_often_as_they_were_right() -> None:
    known = []
    for origin in ("lab", "suite"):
        known += [*verdicts(origin, 0.0, 60, 60), *verdicts(origin, 2.0, 114, 6)]
    weights = fit(known, "slow").weights
    assert weights.likelihood({**TYPICAL, "agree": 0.0}) == pytest.approx(0.50, abs=0.03)
    assert weights.likelihood({**TYPICAL, "agree": 2.0}) == pytest.approx(0.95, abs=0.03)


def test_a_large_suite_does_not_outvote_a_few_real_jobs() -> None:
    """Of 2,000 simulated verdicts two in five are right, of 40 real ones three: together half."""
    known = [*verdicts("suite", 1.0, 800, 1200), *verdicts("real", 1.0, 24, 16)]
    assert fit(known, "slow").weights.likelihood(TYPICAL) == pytest.approx(0.5, abs=0.03)


def test_scores_are_kept_where_fitted_weights_are_worse_on_other_origins() -> None:
    """Where agreement means the opposite elsewhere, nothing can be learnt from it."""
    known = [*verdicts("one", 0.0, 15, 35), *verdicts("one", 2.0, 45, 5),
             *verdicts("two", 0.0, 45, 5), *verdicts("two", 2.0, 15, 35)]  # fmt: skip
    found = fit(known, "slow")
    assert found.about["log_loss_on_other_origins"] > found.about["log_loss_of_scores"]
    assert found.weights.likelihood(TYPICAL) == pytest.approx(TYPICAL["score"])


def test_weights_of_one_origin_cannot_be_judged_and_are_not_used() -> None:
    found = fit(verdicts("lab", 1.0, 20, 60), "slow")
    assert found.about["log_loss_on_other_origins"] is None
    assert found.weights.likelihood(TYPICAL) == pytest.approx(TYPICAL["score"])


@pytest.mark.parametrize("known", [verdicts("lab", 1.0, 10, 10), verdicts("lab", 1.0, 90, 0)])
def test_too_few_verdicts_or_none_that_was_wrong_keep_the_scores(known: list[Labelled]) -> None:
    weights = fit(known, "slow").weights
    for score in (0.1, 0.55, 0.93):
        assert weights.likelihood({**TYPICAL, "score": score}) == pytest.approx(score)


def test_a_likelihood_is_never_certain() -> None:
    sure = Weights(50.0, {"score": 1.0})
    assert sure.likelihood({"score": 1.0}) == SURE
    assert Weights(-50.0, {}).likelihood({"score": 0.0}) == pytest.approx(1 - SURE)


@pytest.mark.parametrize(("base", "lowest", "highest"), [(-50, 0.5, 0.5), (50, SURE, SURE)])
def test_an_accusation_stays_one_however_unlikely(
    base: float, lowest: float, highest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {sort: Weights(base, {}) for sort in FACTS}
    monkeypatch.setattr("stepscope.diagnose.decide.confidence.shipped", lambda: weights)
    slow = parse_fault("gpu_slow:rank=5,factor=2,from=15")
    found = diagnose(simulate(replace(job(16, 40, 0, 1, "ddp"), faults=(slow,))).window).verdicts
    assert found
    for one in found:
        low, high = (0.0, BELOW) if one.facts["score"] < 0.5 else (lowest, highest)
        assert low <= one.confidence <= high


def test_the_shipped_weights_never_trust_a_higher_score_less() -> None:
    for sort, weights in shipped().items():
        assert set(weights.of) == set(FACTS[sort])
        assert weights.of["score"] >= 0
        assert all(math.isfinite(one) for one in (weights.base, *weights.of.values()))


def test_the_command_fits_results_and_lines_of_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, results = tmp_path / "lab.jsonl", tmp_path / "suite.json"
    rows = [{"origin": "lab", "kind": "slowdown", "facts": TYPICAL, "right": at % 2 > 0}
            for at in range(40)]  # fmt: skip
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = [{"kind": "slowdown", "facts": TYPICAL, "right": at % 2 > 0} for at in range(40)]
    told.append({"kind": "slowdown", "right": True})  # by a version without facts
    results.write_text(json.dumps({"suite": "smoke", "results": [{"said": told}]}))
    file = tmp_path / "weights.json"
    args = ["evaluate", "--fit-confidence", str(file), "--labelled", str(lines),
            "--labelled", str(results)]  # fmt: skip
    assert main(args) == 0
    said = capsys.readouterr().out
    assert "slow   80 verdicts, 40 right; log loss of the methods' scores 0.916" in said
    assert "fitted weights are kept" in said
    weights = read(file.read_text(), "weights")["slow"]
    assert weights.likelihood(TYPICAL) == pytest.approx(0.5, abs=0.03)
    assert main(args) == 0
    assert "version 2" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "stepscope-confidence"}', '{"a": 1'])
def test_a_file_of_other_content_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="weights of confidence"):
        read(text, "some.json")


def test_weights_agree_with_a_plain_search_for_the_best(tmp_path: Path) -> None:
    """The odds of one fact, by maximum likelihood over a grid."""
    rng = np.random.default_rng(7)
    scores = rng.uniform(0.5, 0.98, 400)
    right = rng.random(400) < scores**2
    known = []
    for at, (score, hit) in enumerate(zip(scores.tolist(), right.tolist(), strict=True)):
        known.append(
            Labelled(("lab", "suite")[at % 2], "slowdown", {**TYPICAL, "score": score}, hit)
        )
    odds = np.log(scores / (1 - scores))
    grid = [(base, slope) for base in np.linspace(-3, 1, 81) for slope in np.linspace(0, 2, 81)]

    def loss(base: float, slope: float) -> float:
        likely = 1 / (1 + np.exp(-(base + slope * odds)))
        return float(-np.where(right, np.log(likely), np.log(1 - likely)).sum())

    base, slope = min(grid, key=lambda one: loss(*one))
    weights = fit(known, "slow").weights
    for score in (0.6, 0.8, 0.95):
        plain = 1 / (1 + math.exp(-(base + slope * math.log(score / (1 - score)))))
        assert weights.likelihood({**TYPICAL, "score": score}) == pytest.approx(plain, abs=0.03)

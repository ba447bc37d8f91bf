"""Training of Holmes' random forest: labels from the truth, scikit-learn as oracle, the command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli import main
from stepscope.diagnose.detect.published.holmes_features import FEATURES
from stepscope.diagnose.detect.published.holmes_model import Model, read, to_text
from stepscope.errors import UsageError
from stepscope.evaluate import SUITES
from stepscope.evaluate.forest import Agreement, rounded_down, split, train, tree
from stepscope.evaluate.labels import (
    FOR_GOOD,
    Labelled,
    fault_spans,
    longer,
    of_recording,
    of_scenario,
)
from stepscope.evaluate.layouts import job
from stepscope.evaluate.suites import SMOKE
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault

ELAPSED = FEATURES.index("elapsed")


def a_scenario(fault: str) -> Scenario:
    faults = (parse_fault(fault),) if fault else ()
    return replace(job(16, 50, 0, 1, "ddp"), faults=faults)


SLOW = a_scenario("gpu_slow:rank=5,factor=4,from=40")


# ---- labels ----


def test_an_operator_counts_as_longer_by_a_tenth_and_by_a_share_of_the_step() -> None:
    """0.2 % of a step of 1,000 is 2."""
    lasted, usual = np.array([1.0, 2.9, 3.1, 100, 109, 111]), np.array([1.0, 1, 1, 100, 100, 100])
    assert longer(lasted, usual, 1000).tolist() == [False, False, True, False, False, True]


def test_who_waits_for_a_slow_rank_has_abnormal_operators_and_the_slow_rank_has_none() -> None:
    found = of_scenario(SLOW, "slow")
    assert found is not None
    assert 0.3 < found.abnormal.mean() < 1
    assert np.isfinite(found.features).all()
    lasted = found.features[:, ELAPSED]
    assert lasted[found.abnormal].mean() > lasted[~found.abnormal].mean()


def test_a_healthy_job_has_long_steps_and_no_abnormal_operators() -> None:
    """A checkpoint makes a step irregular."""
    found = of_scenario(replace(a_scenario(""), steps=70), "healthy")
    assert found is not None and not found.abnormal.any()


def test_a_job_that_hangs_has_no_labels() -> None:
    assert of_scenario(a_scenario("hang:rank=3,from=30"), "hang") is None


def test_a_recording_is_labelled_by_the_steps_of_its_fault() -> None:
    window = simulate(SLOW).window
    twice, recorded = of_scenario(SLOW, "twice"), of_recording(window, [(40, FOR_GOOD)], "once")
    assert twice is not None and recorded is not None
    assert np.array_equal(twice.features, recorded.features), "the same sample"
    assert (twice.abnormal == recorded.abnormal).mean() > 0.9
    healthy = of_recording(window, [], "no fault")
    assert healthy is not None and not healthy.abnormal.any()
    assert of_recording(window, [(0, FOR_GOOD)], "always") is None


def test_the_steps_of_faults_in_both_kinds_of_truth() -> None:
    simulated = {"faults": [{"steps": [30, 35]}, {"steps": None}]}
    lab = {"faults": [{"when": {"first": 52, "last": None}}, {"when": {"first": 3, "last": 9}}]}
    assert fault_spans(simulated) == [(30, 35)]
    assert fault_spans(lab) == [(52, FOR_GOOD), (3, 9)]


# ---- training ----


def test_the_last_quarter_of_the_seeds_is_for_scoring() -> None:
    assert split(range(8)) == (range(6), range(6, 8))
    assert split(range(7, 8)) == (range(7, 8), range(8, 8))


def test_precision_and_recall_by_hand() -> None:
    said, true = np.array([1, 1, 1, 0, 0], bool), np.array([1, 0, 0, 1, 0], bool)
    assert Agreement.of(said, true) == Agreement(round(1 / 3, 3), 0.5, 0.4)
    assert Agreement.of(~(said | ~said), true) == Agreement(0, 0, 0)


def labelled(seed: int, size: int = 3000) -> Labelled:
    """Abnormal is what is long in relation to its median, with some labels wrong."""
    random = np.random.default_rng(seed)
    features = random.normal(18, 2, (size, len(FEATURES)))
    features[:, 3] = random.integers(-3, 4, size)  # many equal ones
    excess = features[:, ELAPSED] - features[:, FEATURES.index("q2")]
    abnormal = (excess > 2) ^ (random.random(size) < 0.05)
    return Labelled(f"job {seed}", features, 1e9, abnormal, excess > 3)


def test_a_saved_forest_votes_as_scikit_learn_does() -> None:
    """Also at the thresholds themselves, where only rounding down keeps equal values left."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    one = labelled(0)
    fitted = ensemble.RandomForestClassifier(20, max_leaf_nodes=64, random_state=0)
    fitted.fit(one.features, one.abnormal)
    trees = [tree(part.tree_) for part in fitted.estimators_]
    saved = read(to_text(Model(1, 1e9, trees, {})), "saved")
    rows = labelled(1).features
    for at, part in enumerate(fitted.estimators_):
        edges = part.tree_.threshold[part.tree_.feature == at % len(FEATURES)]
        rows[: edges.size, at % len(FEATURES)] = edges
    for some in (one.features, rows, rows.round()):
        assert saved.forest.votes(some) == pytest.approx(fitted.predict_proba(some)[:, 1], abs=2e-6)


def test_a_trained_forest_is_scored_on_other_jobs() -> None:
    pytest.importorskip("sklearn")
    model = train([labelled(0), labelled(1)], [labelled(2)], 3, {"suite": "none"})
    assert model.version == 3 and model.trained["suite"] == "none"
    assert (model.trained["jobs"], model.trained["held_out"]["jobs"]) == (2, 1)
    scores = model.trained["held_out"]
    assert scores["forest"]["f1"] > scores["rule"]["f1"] > 0


def test_thresholds_are_rounded_down_to_single_precision() -> None:
    for value in (0.1, 1 / 3, -0.1, 21.123456789, 7.0):
        near = float(np.float32(rounded_down(value)))
        assert near <= value < float(np.nextafter(np.float32(near), np.float32(np.inf)))


def test_jobs_without_an_abnormal_operator_train_nothing() -> None:
    one = labelled(0)
    healthy = replace(one, abnormal=np.zeros(len(one.abnormal), np.bool_))
    with pytest.raises(UsageError, match="1 jobs with irregular steps have 0 abnormal operators"):
        train([healthy], [], 1, {})
    with pytest.raises(UsageError, match="0 jobs with irregular steps"):
        train([], [], 1, {})


def test_without_scikit_learn_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UsageError, match=r'pip install "stepscope\[forest\]"'):
        train([labelled(0)], [], 1, {})


# ---- the command ----


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "smoke", replace(SMOKE, steps=40, onset=20, healthy=1))


TRAIN = ["evaluate", "--family", "gpu_slow", "--family", "irregular", "--seeds", "3"]


@pytest.mark.usefixtures("tiny")
def test_a_forest_is_trained_on_simulated_and_recorded_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    file, folder = tmp_path / "forest.json", tmp_path / "practice"
    simulated = ["simulate", "--ranks", "8", "--steps", "50", "--out", str(folder), "--fault",
                 "gpu_slow:rank=3,factor=4,from=40"]  # fmt: skip
    assert main(simulated) == 0
    args = [*TRAIN, "--train-forest", str(file)]
    assert main([*args, "--train-job", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "version 1" in text and "F1" in text
    model = read(file.read_text(), "forest.json")
    assert model.trained["families"] == ["gpu_slow", "irregular"]
    assert (model.trained["seeds"], model.trained["held_out_seeds"]) == ([0, 1], [2])
    assert model.trained["recorded"] == ["practice"]
    assert main(args) == 0
    assert read(file.read_text(), "forest.json").version == 2


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--train-job", "x"], "--train-job needs --train-forest FILE"),
        (["--suite", "all", "--train-forest", "f"], "--train-forest takes the jobs of one suite"),
        (["--method", "holmes-published", "--train-forest", "f"], "score no diagnoses"),
        (["--family", "healthy", "--seeds", "1", "--train-forest", "f"], "choose more jobs"),
        (["--train-forest", "f", "--train-job", "nobody"], "its faults are not known"),
    ],
)
def test_what_cannot_be_trained_is_said_before_hours_of_simulation(
    args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *args]) == 2
    assert why in capsys.readouterr().err


def test_another_file_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.json"
    file.write_text("[]", encoding="utf-8")
    assert main([*TRAIN, "--train-forest", str(file)]) == 2
    assert "exists and is no forest" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "[]"


def test_a_truth_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.truth.json").write_text(json.dumps({"faults": [{"when": 3}]}))
    args = [*TRAIN, "--train-forest", str(tmp_path / "f.json"), "--train-job",
            str(tmp_path / "job")]  # fmt: skip
    assert main(args) == 2
    assert "job.truth.json: TypeError" in capsys.readouterr().err

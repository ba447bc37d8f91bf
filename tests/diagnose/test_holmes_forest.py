"""Holmes' random forest: its features and its drift tuning by hand, trees, file, and method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.detect.published.holmes import PIVOT, published_case
from stepscope.diagnose.detect.published.holmes_features import FEATURES, Log, drift
from stepscope.diagnose.detect.published.holmes_forest import JudgedLogs, by_forest
from stepscope.diagnose.detect.published.holmes_model import Model, read, shipped, to_text
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.numeric.forest import LEAF, Forest, Tree
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.errors import FormatError
from stepscope.evaluate.layouts import job
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.trace import OPERATORS
from stepscope.window import NULL, Floats, Window

SECOND = 1e9


def a_log(*elapsed_s: Sequence[float], step_s: Sequence[float] = (9.0,) * 5) -> Log:
    """A log of AllReduces of 1,024 bytes among four ranks."""
    size = len(elapsed_s)
    return Log(SECOND * np.array(elapsed_s), SECOND * np.array(step_s), np.full(size, 4),
               np.full(size, 1024), np.full(size, OPERATORS.index("AllReduce")))  # fmt: skip


def at(log: Log, operator: int, column: int) -> dict[str, float]:
    row = log.features(np.array([column]))[operator, 0]
    return dict(zip(FEATURES, row.tolist(), strict=True))


# ---- features ----


def test_the_features_of_an_operator_by_hand() -> None:
    """10, 20, 30, 40 and 100: mean 40, variance (900 + 400 + 100 + 0 + 3,600) / 5 = 1,000."""
    log = a_log([10, 20, 30, 40, 100], [40, 40, 40, 40, 40])
    found = at(log, 0, 4)
    seconds = {name: np.exp(found[name]) / SECOND for name in
               ("elapsed", "mean", "std", "q1", "q2", "q3", "iqr", "step", "average")}  # fmt: skip
    wanted = {"elapsed": 100, "mean": 40, "std": np.sqrt(1000), "q1": 20, "q2": 30, "q3": 40,
              "iqr": 20, "step": 9, "average": 40}  # fmt: skip
    assert seconds == pytest.approx(wanted)
    assert found["z_score"] == pytest.approx(60 / np.sqrt(1000))
    assert np.expm1(found["bytes"]) == pytest.approx(1024)
    assert (found["ranks"], found["pattern"]) == (4, 0)


def test_quartiles_lie_between_values_in_proportion() -> None:
    found = at(a_log([1, 2, 3, 4], step_s=(9.0,) * 4), 0, 0)
    quartiles = [np.exp(found[name]) / SECOND for name in ("q1", "q2", "q3")]
    assert quartiles == pytest.approx(np.quantile([1, 2, 3, 4], [0.25, 0.5, 0.75]))


def test_what_was_not_recorded_has_no_features_and_changes_no_others() -> None:
    whole, holed = a_log([10, 20, 30, 40]), a_log([10, 20, np.nan, 30, 40])
    assert np.isnan(holed.features(np.array([2]))).all()
    for name, value in at(whole, 0, 3).items():
        assert at(holed, 0, 4)[name] == pytest.approx(value), name


def test_an_operator_that_always_takes_as_long_has_no_z_score() -> None:
    assert at(a_log([7.0] * 5), 0, 3)["z_score"] == 0


def test_an_unknown_size_counts_as_none() -> None:
    log = a_log([1.0] * 5)
    unknown = Log(log.elapsed_ns, log.step_ns, log.ranks, np.array([NULL]), log.pattern)
    assert at(unknown, 0, 0)["bytes"] == 0


# ---- drift ----


def node(feature: str, threshold: float) -> Tree:
    """Abnormal above the threshold."""
    return Tree([FEATURES.index(feature), LEAF, LEAF], [threshold, 0.0, 1.0])


def a_model(*trees: Tree, step_s: float = 9.0) -> Model:
    return Model(1, step_s * SECOND, trees, {})


def votes(model: Model, step_s: float, **values: float) -> float:
    row = [values.get(name, 0.0) for name in FEATURES]
    return float(model.tuned(step_s * SECOND).votes(np.array([row]))[0])


def test_figure_10b_the_iteration_time_shifts_from_9_to_9_2_seconds() -> None:
    """The node "step <= 9.0 s" becomes "step <= 9.2 s"."""
    model = a_model(node("step", np.log(9.0 * SECOND)))
    almost, above = np.log(9.199 * SECOND), np.log(9.201 * SECOND)
    assert votes(model, 9.0, step=almost) == 1, "before the drift it was irregular"
    assert votes(model, 9.2, step=almost) == 0
    assert votes(model, 9.2, step=above) == 1


def test_thresholds_of_operators_grow_in_proportion() -> None:
    """9.2 / 9.0 s: an operator of 1 s is expected to take 1.022 s."""
    model = a_model(node("elapsed", np.log(SECOND)))
    assert votes(model, 9.2, elapsed=np.log(1.0222 * SECOND)) == 0
    assert votes(model, 9.2, elapsed=np.log(1.0223 * SECOND)) == 1


def test_fixed_features_and_the_z_score_do_not_drift() -> None:
    moved = dict(zip(FEATURES, drift(9.2, 9.0).tolist(), strict=True))
    assert [moved[name] for name in ("z_score", "ranks", "bytes", "pattern")] == [0, 0, 0, 0]
    assert moved["q1"] == moved["std"] == pytest.approx(np.log(9.2 / 9))


def test_without_a_regular_step_nothing_is_tuned() -> None:
    assert not drift(float("nan"), 9.0).any()


def test_a_job_ten_times_as_fast_is_judged_in_the_same_way() -> None:
    slow = a_log([1, 1.1, 0.9, 1, 5], [1, 1.1, 0.9, 1, 1.05], step_s=(9, 9, 9, 9, 13))
    fast = Log(slow.elapsed_ns / 10, slow.step_ns / 10, slow.ranks, slow.bytes, slow.pattern)
    model = a_model(node("elapsed", np.log(3 * SECOND)))
    columns, regular = np.array([4]), np.arange(4)
    for log in (slow, fast):
        assert model.abnormal(log, columns, regular).tolist() == [[True], [False]]


def test_the_majority_of_trees_decides_and_half_is_none() -> None:
    log = a_log([1, 1, 1, 1, 5])
    never, always = node("elapsed", np.log(9 * SECOND)), node("elapsed", np.log(2 * SECOND))
    columns, regular = np.array([4]), np.arange(4)
    assert not a_model(never, always).abnormal(log, columns, regular).any()
    assert a_model(never, always, always).abnormal(log, columns, regular).all()


# ---- trees ----


def test_a_tree_by_hand() -> None:
    """x <= 1: 0.1; else y <= 2: 0.2, or 0.3."""
    forest = Forest.of([Tree([0, LEAF, 1, LEAF, LEAF], [1, 0.1, 2, 0.2, 0.3])], 2)
    rows = np.array([[1, 9], [1.5, 2], [1.5, 2.5]])
    assert forest.votes(rows).tolist() == [0.1, 0.2, 0.3]
    tuned = forest.tuned(np.array([0.5, 0.0]))
    assert tuned.votes(rows).tolist() == [0.1, 0.1, 0.1]


def a_random_tree(random: np.random.Generator, features: int, splits: int) -> Tree:
    feature, value, todo = [], [], [splits]
    while todo:
        left_over = todo.pop()
        if not left_over:
            feature.append(LEAF)
            value.append(float(random.random()))
            continue
        feature.append(int(random.integers(features)))
        value.append(float(random.integers(-4, 5)))  # few values, so that many are equal
        left = int(random.integers(left_over))
        todo += [left_over - 1 - left, left]
    return Tree(feature, value)


def walked(tree: Tree, row: Floats) -> float:
    """The leaf of a row, by walking from the root."""
    ends: dict[int, int] = {}
    for one in range(len(tree.feature) - 1, -1, -1):
        ends[one] = one + 1 if tree.feature[one] == LEAF else ends[ends[one + 1]]
    one = 0
    while tree.feature[one] != LEAF:
        one = one + 1 if row[tree.feature[one]] <= tree.value[one] else ends[one + 1]
    return tree.value[one]


@pytest.mark.parametrize("seed", range(8))
def test_all_rows_at_once_reach_the_leaves_that_a_walk_reaches(seed: int) -> None:
    random = np.random.default_rng(seed)
    trees = [a_random_tree(random, 3, splits) for splits in (0, 1, 5, 63, 63)]
    rows = random.integers(-5, 6, (3000, 3)).astype(float) / 2
    by_hand = [np.mean([walked(tree, row) for tree in trees]) for row in rows[:200]]
    assert Forest.of(trees, 3).votes(rows)[:200] == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (Tree([], []), "not one whole tree"),
        (Tree([0, LEAF], [1.0, 0.5]), "not one whole tree"),
        (Tree([LEAF, LEAF], [0.5, 0.5]), "not one whole tree"),
        (Tree([0, LEAF, LEAF], [1.0, 0.5]), "3 features and 2 values"),
        (Tree([0, LEAF, LEAF], [float("nan"), 0.5, 0.5]), "not finite"),
        (Tree([3, LEAF, LEAF], [1.0, 0.5, 0.5]), "not among the 3"),
        (Tree([0] * 64 + [LEAF] * 65, [1.0] * 129), "65 leaves"),
    ],
)
def test_a_tree_that_is_none_is_refused(tree: Tree, why: str) -> None:
    with pytest.raises(ValueError, match=f"tree 0: .*{why}"):
        Forest.of([tree], 3)


# ---- the file ----


def test_the_shipped_forest_says_what_it_is() -> None:
    model = shipped()
    assert model.version >= 1
    assert model.trained["seeds"] and model.trained["jobs"] > 50
    others = model.trained["held_out"]
    assert not set(model.trained["seeds"]) & set(model.trained["held_out_seeds"])
    assert others["forest"]["f1"] > others["rule"]["f1"]
    assert len(to_text(model)) < 100_000


def test_a_forest_is_read_as_it_was_written() -> None:
    model = shipped()
    again = read(to_text(model), "again")
    random = np.random.default_rng(0)
    rows = random.normal(18, 3, (500, len(FEATURES)))
    assert np.array_equal(model.forest.votes(rows), again.forest.votes(rows))
    assert (again.version, again.step_ns, again.trained) == (
        model.version, model.step_ns, model.trained,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "job"}, "model.json is no forest: its kind is not 'holmes-forest'"),
        ({"format": 2}, "format is 2, not 1; train it again: stepscope evaluate --train-forest"),
        ({"features": ["elapsed"]}, r"features is \['elapsed'\]"),
        ({"patterns": ["AllReduce"]}, "patterns is"),
        ({"step_ns": -1}, "an iteration of -1.0 ns"),
        ({"step_ns": None}, "TypeError"),
        ({"trees": []}, "a forest of no trees"),
        ({"trees": [{"feature": [0], "value": [1.0]}]}, "tree 0: its nodes are not one whole tree"),
        ({"trees": [{"value": [1.0]}]}, "KeyError: 'feature'"),
    ],
)
def test_another_file_is_refused_with_what_is_wrong(changes: dict[str, Any], why: str) -> None:
    data = json.loads(to_text(a_model(node("step", 1.0))))
    with pytest.raises(FormatError, match=why):
        read(json.dumps({**data, **changes}), "model.json")


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(FormatError, match=r"model\.json is not JSON"):
        read("PK", "model.json")


# ---- the method ----


def recorded(fault: str, steps: int = 50) -> Window:
    """A job of 16 ranks in three dimensions, with a checkpoint after fifty steps."""
    faults = (parse_fault(fault),) if fault else ()
    return simulate(replace(job(16, steps, 0, 3, "zero1"), faults=faults)).window


def by_name(fault: str, steps: int = 50) -> Diagnosis:
    return diagnose(recorded(fault, steps), Settings(methods=("holmes-forest-published",)))


def test_a_slow_gpu_is_named() -> None:
    (verdict,) = by_name("gpu_slow:rank=5,factor=4,from=40").verdicts
    assert (verdict.ranks, verdict.cause) == ((5,), "compute")
    assert verdict.evidence[0].method == "holmes-forest-published"


def test_a_slow_link_is_named() -> None:
    (verdict,) = by_name("link_slow:rank=5,factor=20,from=40").verdicts
    assert verdict.cause == "network"
    assert verdict.devices[0].name == "host-001/nic-1--leaf-1"


def test_a_healthy_job_is_not_accused() -> None:
    assert by_name("", steps=70).verdicts == ()


def test_only_logs_that_the_search_arrives_at_are_judged() -> None:
    case = published_case(Observed(recorded("gpu_slow:rank=5,factor=4,from=40")), by_forest)
    assert case is not None
    judged = case.abnormal
    assert isinstance(judged, JudgedLogs) and not judged.logs
    assert case.roots(int(case.irregular[-1]))
    assert PIVOT in judged.logs
    assert 1 < len(judged.logs) < 16


def test_the_pause_of_a_checkpoint_is_no_abnormal_operator() -> None:
    """Its step is irregular by definition 1, and is judged."""
    case = published_case(Observed(recorded("", steps=70)), by_forest)
    assert case is not None and case.irregular.size
    assert not any(case.abnormal[int(one), at] for at in case.irregular.tolist()
                   for one in case.graph.log(PIVOT))  # fmt: skip

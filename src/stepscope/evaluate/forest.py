"""Trains Holmes' random forest on labelled jobs, and scores it on others.

Needs scikit-learn: `pip install "stepscope[forest]"`. What it writes is read without
(`diagnose.detect.published.holmes_model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.diagnose.detect.published.holmes_features import drift
from stepscope.diagnose.detect.published.holmes_model import HALF, Model
from stepscope.diagnose.numeric.forest import LEAF, MOST_LEAVES, Tree
from stepscope.errors import UsageError
from stepscope.evaluate.labels import Labelled
from stepscope.window import Floats, Mask

TREES = 40
"""F1 on other jobs was the same with 30 and with 50. Our simulator."""
LEAST_SAMPLES = 5
"""Of a leaf. Our choice."""
HELD_OUT = 0.25
"""Share of the seeds, the last ones, whose jobs are for scoring. Our choice."""


DIGITS = 6
"""Of the share in a leaf: of a million samples, one counts."""


@dataclass(frozen=True)
class Agreement:
    """How well a judge agrees with the labels of some operators."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, said: Mask, true: Mask) -> Agreement:
        """Zero where a share has nothing to be a share of."""
        both = int((said & true).sum())
        precision, recall = both / max(int(said.sum()), 1), both / max(int(true.sum()), 1)
        either = int(said.sum()) + int(true.sum())
        return cls(round(precision, 3), round(recall, 3), round(2 * both / max(either, 1), 3))

    def to_json(self) -> dict[str, float]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


def split(seeds: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The seeds to train on, and those to score; a single seed is trained on."""
    kept = len(seeds) - int(np.ceil(HELD_OUT * len(seeds))) or 1
    return seeds[:kept], seeds[kept:]


def train(
    jobs: Sequence[Labelled], others: Sequence[Labelled], version: int, told: dict[str, Any]
) -> Model:
    """A forest of these jobs, with its scores on other jobs; `told` says where they come from.

    Raises:
        UsageError: scikit-learn is not installed, or the jobs do not have both kinds of operators.
    """
    wanted = np.concatenate([job.abnormal for job in jobs]) if jobs else np.zeros(0, np.bool_)
    if wanted.all() or not wanted.any():
        raise UsageError(f"{len(jobs)} jobs with irregular steps have {int(wanted.sum())} abnormal "
                         f"operators of {wanted.size}: choose more jobs, with faults")  # fmt: skip
    step_ns = float(np.exp(np.mean([np.log(job.step_ns) for job in jobs])))
    library, classifier = _classifier()
    fitted = classifier.fit(np.concatenate([tuned(job, step_ns) for job in jobs]), wanted)
    trees = [tree(one.tree_) for one in fitted.estimators_]
    about = {
        **told, "scikit-learn": library, "jobs": len(jobs),
        "operators": wanted.size, "abnormal": int(wanted.sum()),
    }  # fmt: skip
    model = Model(version, step_ns, trees, about)
    return Model(version, step_ns, trees, {**about, "held_out": scores(model, others)})


def tuned(job: Labelled, step_ns: float) -> Floats:
    """A job's features as if its iterations took this long: the drift tuning, of values instead
    of thresholds."""
    return job.features - drift(job.step_ns, step_ns)


def scores(model: Model, jobs: Sequence[Labelled]) -> dict[str, Any]:
    """How the forest, and beside it the robust rule, agree with the labels of these jobs."""
    if not jobs:
        return {"jobs": 0}
    said = np.concatenate([model.tuned(job.step_ns).votes(job.features) > HALF for job in jobs])
    true = np.concatenate([job.abnormal for job in jobs])
    rule = np.concatenate([job.by_rule for job in jobs])
    return {
        "jobs": len(jobs), "operators": true.size, "abnormal": int(true.sum()),
        "forest": Agreement.of(said, true).to_json(), "rule": Agreement.of(rule, true).to_json(),
    }  # fmt: skip


def tree(fitted: Any) -> Tree:
    """A tree of scikit-learn, in preorder.

    Values are single precision there, so thresholds are rounded down to it: no decision changes.
    """
    feature, value, todo = [], [], [0]
    while todo:
        node = todo.pop()
        if fitted.children_left[node] < 0:
            share = fitted.value[node][0]
            feature.append(LEAF)
            value.append(round(float(share[-1] / share.sum()), DIGITS))
            continue
        feature.append(int(fitted.feature[node]))
        value.append(rounded_down(float(fitted.threshold[node])))
        todo += [int(fitted.children_right[node]), int(fitted.children_left[node])]
    return Tree(feature, value)


def rounded_down(value: float) -> float:
    """The largest number in single precision that is not larger, with as few digits as it needs."""
    single = np.float32(value)
    if float(single) > value:
        single = np.nextafter(single, np.float32(-np.inf))
    return float(str(single))


def _classifier() -> tuple[str, Any]:
    """The version of scikit-learn, and an untrained forest."""
    try:
        import sklearn
        from sklearn.ensemble import RandomForestClassifier
    except ImportError as error:
        raise UsageError('training needs scikit-learn: pip install "stepscope[forest]"') from error
    return sklearn.__version__, RandomForestClassifier(
        TREES, max_leaf_nodes=MOST_LEAVES, min_samples_leaf=LEAST_SAMPLES, random_state=0
    )

"""Holmes' trained random forest: what is in its file, and which operators it calls abnormal.

Paper: Holmes (Yao et al., 2025), section 4.2.2. The forest is trained by `stepscope evaluate
--train-forest` and shipped as `holmes_forest.json`: its version, its features, the iteration time
of training, what it was trained on, its scores on other jobs, and its trees. The paper trains one
forest for each training; one for all of them needs its drift tuning from the first step on, because
another job differs by more than a month of drift does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np

from stepscope.diagnose.detect.published.holmes_features import FEATURES, Log, drift, iteration_ns
from stepscope.diagnose.numeric.forest import Forest, Tree
from stepscope.errors import FormatError
from stepscope.trace import OPERATORS
from stepscope.window import Ints, Mask

KIND, FORMAT = "holmes-forest", 1
"""What the file calls itself, and the version of its layout."""
SHIPPED = "holmes_forest.json"
HALF = 0.5
"""Votes above this mean abnormal: the majority of a forest."""
TRAIN = "train it again: stepscope evaluate --train-forest FILE"


@dataclass(frozen=True)
class Model:
    """A trained forest."""

    version: int
    step_ns: float
    """The mean iteration time in training, for which the thresholds hold as they are."""
    trees: Sequence[Tree]
    trained: Mapping[str, Any]
    """On what, with what, and how well."""

    @cached_property
    def forest(self) -> Forest:
        return Forest.of(self.trees, len(FEATURES))

    def abnormal(self, log: Log, columns: Ints, regular: Ints) -> Mask:
        """`[operator, column]`: which operators of these steps are abnormal; unknown ones are not.

        The thresholds are tuned to the regular steps of the log.
        """
        table = log.features(columns)
        known = np.isfinite(table[:, :, 0])
        found = np.zeros(known.shape, np.bool_)
        found[known] = self.tuned(iteration_ns(log.step_ns[regular])).votes(table[known]) > HALF
        return found

    def tuned(self, step_ns: float) -> Forest:
        """The forest for iterations that usually take this long."""
        return self.forest.tuned(drift(step_ns, self.step_ns))


@cache
def shipped() -> Model:
    """The forest of this package.

    Raises:
        FormatError: the installation is damaged.
    """
    file = resources.files("stepscope.diagnose.detect.published").joinpath(SHIPPED)
    return read(file.read_text(encoding="utf-8"), SHIPPED)


def read(text: str, name: str) -> Model:
    """Reads what `to_text` wrote; the name is for messages.

    Raises:
        FormatError: it is something else, or of another version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{name} is not JSON: {error}") from error
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise FormatError(f"{name} is no forest: its kind is not {KIND!r}")
    for key, ours in (("format", FORMAT), ("features", [*FEATURES]), ("patterns", [*OPERATORS])):
        if data.get(key) != ours:
            raise FormatError(f"{name}: {key} is {data.get(key)!r}, not {ours!r}; {TRAIN}")
    try:
        trees = [Tree(one["feature"], one["value"]) for one in data["trees"]]
        step_ns, trained = float(data["step_ns"]), dict(data["trained"])
        model = Model(int(data["version"]), step_ns, trees, trained)
        model.forest  # noqa: B018  builds it, so that a tree that is wrong is found here
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{name}: {type(error).__name__}: {error}; {TRAIN}") from error
    if not 0 < step_ns < math.inf:
        raise FormatError(f"{name}: an iteration of {step_ns} ns; {TRAIN}")
    return model


def to_text(model: Model) -> str:
    """As JSON: a line for each tree."""
    head = {
        "kind": KIND, "format": FORMAT, "version": model.version, "features": FEATURES,
        "patterns": OPERATORS, "step_ns": model.step_ns, "trained": dict(model.trained),
    }  # fmt: skip
    trees = ",\n  ".join(
        json.dumps({"feature": [*one.feature], "value": [*one.value]}, separators=(",", ":"))
        for one in model.trees
    )
    return json.dumps(head, indent=1)[:-2] + f',\n "trees": [\n  {trees}\n ]\n}}\n'

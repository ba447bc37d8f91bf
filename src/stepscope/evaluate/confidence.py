"""Fits the confidence of verdicts to verdicts whose truth is known.

Needs scikit-learn: `pip install "stepscope[forest]"`. What it writes is read without
(`diagnose.decide.confidence`).

Jobs of one origin (a suite, the lab, somebody's cluster) resemble one another, so the weights are
judged on origins that they were not fitted to, one after the other. All origins count alike, and
within each all verdicts: one verdict of a suite of thousands must not outvote the real jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.diagnose.decide.confidence import FACTS, FORMAT, KIND, Sort, Weights, sort_of, terms
from stepscope.errors import FormatError, UsageError
from stepscope.window import Floats, Mask

PENALTY = 1.0
"""The inverse strength of the ridge on standardised terms: scikit-learn's default."""
LEAST_VERDICTS = 30
"""Below this a sort of verdicts keeps the methods' scores. Our choice."""
DIGITS = 4


@dataclass(frozen=True)
class Labelled:
    """A verdict of a job whose truth is known."""

    origin: str
    kind: str
    facts: Mapping[str, float]
    right: bool

    @classmethod
    def of_json(cls, origin: str, row: Mapping[str, Any]) -> Labelled | None:
        """A row of results or of a file of labelled verdicts; None: it has no facts."""
        if not row.get("facts"):
            return None
        return cls(row.get("origin", origin), row["kind"], row["facts"], bool(row["right"]))


def read(file: Path) -> list[Labelled]:
    """The labelled verdicts in results of `evaluate --json`, or one per line with `origin`, `kind`,
    `facts` and `right`.

    Raises:
        FormatError: the file is something else.
    """
    try:
        text = file.read_text(encoding="utf-8")
        rows = list(_rows(text, file.stem))
        return [one for origin, row in rows if (one := Labelled.of_json(origin, row)) is not None]
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{file} holds no labelled verdicts: {error}") from error


def _rows(text: str, stem: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    first = text.lstrip().split("\n", 1)[0]
    if '"origin"' in first:
        return [(stem, json.loads(line)) for line in text.splitlines() if line.strip()]
    results = json.loads(text)
    return [(results["suite"], row) for one in results["results"] for row in one["said"]]


@dataclass(frozen=True)
class Fit:
    """Weights of one sort of verdict, and how well confidence fits on origins left out."""

    weights: Weights
    about: Mapping[str, Any]


def fit(verdicts: Sequence[Labelled], sort: Sort) -> Fit:
    """Weights for slowdowns, or for hangs and mismatches: the methods' scores as they are, unless
    fitted ones are better on origins that they were not fitted to."""
    own = [one for one in verdicts if sort_of(one.kind) == sort]
    right = np.array([one.right for one in own], np.bool_)
    names = list(FACTS[sort])
    as_scored = Weights(0.0, {name: float(name == "score") for name in names})
    about: dict[str, Any] = {"verdicts": len(own), "right": int(right.sum())}
    if len(own) < LEAST_VERDICTS or right.all() or not right.any():
        return Fit(as_scored, about)
    table = np.array([[terms(one.facts)[name] for name in names] for one in own])
    origins = np.array([one.origin for one in own])
    scored = _log_loss(np.array([one.facts["score"] for one in own]), right, _shares(origins))
    left_out = [_on_others(table, right, origins, names, name) for name in np.unique(origins)]
    unseen = [loss for loss in left_out if loss is not None]
    fitted = round(float(np.mean(unseen)), DIGITS) if unseen else None
    about |= {
        "origins": {str(name): int((origins == name).sum()) for name in np.unique(origins)},
        "log_loss_of_scores": scored, "log_loss_on_other_origins": fitted,
    }  # fmt: skip
    better = fitted is not None and fitted < scored
    return Fit(_weights(table, right, _shares(origins), names) if better else as_scored, about)


def _on_others(
    table: Floats, right: Mask, origins: Any, names: Sequence[str], left: str
) -> float | None:
    """The log loss on one origin of weights that were fitted to the others."""
    here = origins == left
    if here.all() or right[~here].all() or not right[~here].any():
        return None
    weights = _weights(table[~here], right[~here], _shares(origins[~here]), names)
    odds = weights.base + table[here] @ np.array([weights.of[name] for name in names])
    return _log_loss(1 / (1 + np.exp(-odds)), right[here], np.ones(int(here.sum())))


def _shares(origins: Any) -> Floats:
    """Weights with which all origins count alike."""
    _, at, count = np.unique(origins, return_inverse=True, return_counts=True)
    shares: Floats = (len(origins) / len(count) / count)[at]
    return shares


def _weights(table: Floats, right: Mask, shares: Floats, names: Sequence[str]) -> Weights:
    """A ridge logistic regression on standardised terms, in terms as they are."""
    classifier = _regression()
    mean, spread = table.mean(axis=0), table.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    fitted = classifier.fit((table - mean) / spread, right, sample_weight=shares)
    weights = fitted.coef_[0] / spread
    base = float(fitted.intercept_[0] - weights @ mean)
    of = {name: round(float(value), DIGITS) for name, value in zip(names, weights, strict=True)}
    return Weights(round(base, DIGITS), of)


def _regression() -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UsageError('fitting needs scikit-learn: pip install "stepscope[forest]"') from error
    return LogisticRegression(C=PENALTY, max_iter=1000)


def _log_loss(likely: Floats, right: Mask, shares: Floats) -> float:
    likely = np.clip(likely, 0.01, 0.99)
    loss = -np.where(right, np.log(likely), np.log(1 - likely))
    return round(float(np.average(loss, weights=shares)), DIGITS)


def to_text(fits: Mapping[Sort, Fit], version: int) -> str:
    """The file of weights, as `diagnose.decide.confidence` reads it."""
    body: dict[str, Any] = {
        "kind": KIND, "format": FORMAT, "version": version,
        **{sort: {"base": one.weights.base, "weights": one.weights.of, "fitted": one.about}
           for sort, one in fits.items()},
    }  # fmt: skip
    return json.dumps(body, indent=1) + "\n"

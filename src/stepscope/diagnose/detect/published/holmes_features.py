"""What Holmes' random forest is told about an operator, and how far that has drifted.

Paper: Holmes (Yao et al., 2025), section 4.2.2, "Detection features" and "Distribution drift
adaptation". Of each operator X of one GPU's log, over the time window:

    elapsed               X
    mean, std             of the operator
    z_score               (X - mean) / std
    q1, q2, q3, iqr       its quartiles, and q3 - q1
    step, average         the iteration time; the average operator of the log
    ranks, bytes, pattern the fixed features: how many ranks share it, data size, operator

Drift: the mean iteration time is 9.2 s instead of the 9.0 s of training, so the threshold of 9.0 s
in a node "step" becomes 9.2 s, and thresholds of all other durations grow by the same factor.
Differences: all times are logarithms. A tree decides the same by them, but a shift is a factor; the
paper adds seconds, and does not say how many to the threshold of an operator that takes only a
thousandth of the iteration. "Ranks" may also mean the GPU's number, which says nothing in another
job. Regular steps say how long iterations take; the paper does not leave out irregular ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.diagnose.graph.comm_graph import CommGraph
from stepscope.trace import OPERATORS
from stepscope.window import NULL, Floats, Ints, Strings

FEATURES = (
    "elapsed", "mean", "std", "z_score", "q1", "q2", "q3", "iqr", "step", "average", "ranks",
    "bytes", "pattern",
)  # fmt: skip
DURATIONS = ("elapsed", "mean", "std", "q1", "q2", "q3", "iqr", "step", "average")
"""The features that drift: all but those that are fixed, and the z-score, which has no unit."""
QUARTERS = (0.25, 0.5, 0.75)
SHORTEST_NS = 1.0
"""The clock's unit: a spread of nothing has a logarithm, too."""


@dataclass(frozen=True)
class Log:
    """The operators of one rank in a time window, as its log has them."""

    elapsed_ns: Floats
    """`[operator, step]`; NaN: unknown."""
    step_ns: Floats
    """The iteration times."""
    ranks: Ints
    """How many ranks share each operator; 0: unknown."""
    bytes: Ints
    """NULL: unknown."""
    pattern: Ints
    """The index in OPERATORS; -1: another."""

    @classmethod
    def of(cls, graph: CommGraph, row: int) -> Log:
        """The log of one row of the grid."""
        entries = graph.log(row)
        return cls(
            graph.elapsed_ns[entries], graph.line.job_period_ns[graph.columns],
            graph.shared_by[entries], graph.size_bytes[entries], patterns(graph.op.take(entries)),
        )  # fmt: skip

    def features(self, columns: Ints) -> Floats:
        """`[operator, column, feature]` of these steps of the window, in the order of FEATURES.

        NaN where the operator was not recorded.
        """
        lasted, shape = self.elapsed_ns, (len(self.elapsed_ns), columns.size)
        known = np.isfinite(lasted)
        count = known.sum(axis=1)
        mean = np.where(known, lasted, 0.0).sum(axis=1) / np.maximum(count, 1)
        apart = np.where(known, lasted - mean[:, None], 0.0)
        std = np.sqrt((apart**2).sum(axis=1) / np.maximum(count, 1))
        q1, q2, q3 = quartiles(lasted, count)
        average = lasted[known].mean() if known.any() else np.nan
        z_score = np.divide(
            apart[:, columns], std[:, None], out=np.zeros(shape), where=std[:, None] > 0
        )
        size = np.log1p(np.where(self.bytes == NULL, 0, self.bytes))
        values = {
            "elapsed": _log(lasted[:, columns]), "mean": _log(mean), "std": _log(std),
            "z_score": z_score, "q1": _log(q1), "q2": _log(q2), "q3": _log(q3),
            "iqr": _log(q3 - q1), "step": np.broadcast_to(_log(self.step_ns[columns]), shape),
            "average": np.full(shape, _log(average)), "ranks": self.ranks, "bytes": size,
            "pattern": self.pattern,
        }  # fmt: skip
        table = np.empty((*shape, len(FEATURES)))
        for at, name in enumerate(FEATURES):
            value = np.asarray(values[name], np.float64)
            table[:, :, at] = value[:, None] if value.ndim == 1 else value
        table[~known[:, columns]] = np.nan
        return table


def quartiles(values: Floats, count: Ints) -> tuple[Floats, Floats, Floats]:
    """Of the known values of each row, between two of them in proportion; NaN: none are known."""
    steps = values.shape[1]
    if not steps:
        return (np.full(len(values), np.nan),) * 3
    if (count == steps).all():
        wanted = {int(np.floor(share * (steps - 1))) for share in QUARTERS}
        ordered = np.partition(values, sorted(wanted | {min(at + 1, steps - 1) for at in wanted}))
    else:
        ordered = np.sort(values, axis=1)  # NaN last
    q1, q2, q3 = (_between(ordered, share * np.maximum(count - 1, 0)) for share in QUARTERS)
    return q1, q2, q3


def _between(ordered: Floats, place: Floats) -> Floats:
    """The value at a place of each row that may lie between two values."""
    rows, below = np.arange(len(ordered)), np.floor(place).astype(np.int64)
    low, high = ordered[rows, below], ordered[rows, np.ceil(place).astype(np.int64)]
    return np.asarray(low + (place - below) * (high - low))


def patterns(names: Strings) -> Ints:
    """The index of each operator in OPERATORS."""
    index = [OPERATORS.index(one) if one in OPERATORS else -1 for one in names.values]
    return np.asarray(np.array([*index, -1], np.int64)[names.codes])


def iteration_ns(step_ns: Floats) -> float:
    """The mean iteration time that drift is measured by; NaN: none is known."""
    known = step_ns[np.isfinite(step_ns)]
    return float(known.mean()) if known.size else float("nan")


def drift(now_ns: float, then_ns: float) -> Floats:
    """By how much the threshold of each feature is moved if iterations take this long now, and took
    that long in training. Fixed features are not moved, and nothing is if either is unknown."""
    by = float(np.log(now_ns / then_ns)) if now_ns > 0 and then_ns > 0 else 0.0
    return np.array([by if one in DURATIONS else 0.0 for one in FEATURES])


def _log(value_ns: npt.ArrayLike) -> Floats:
    return np.asarray(np.log(np.maximum(value_ns, SHORTEST_NS)))

"""What counters of hardware noticed: evidence for a device, never a verdict by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.routes import Carrier, Kind
from stepscope.window import Floats, Ints, Mask

TROUBLE = ("error", "down", "replay", "retrans", "discard", "drop", "crc", "timeout")
"""Words in names of counters that stand still as long as nothing goes wrong."""
OWN: tuple[tuple[str, Kind, float], ...] = (
    ("nic", "nic", 20.0), ("nic", "link", 5.0), ("pcie", "pcie", 20.0), ("nvlink", "nvlink", 20.0),
)  # fmt: skip
"""A counter's first word, whom it speaks against, and how much. An adapter counts on its port what
its cable does wrong as well; twenty to one is what a sign that shows in most such faults and on one
in thirty healthy devices is worth. Ours: nobody has published such counts."""
TIMES = 2.0
"""So many times what it is in other steps and on other ranks."""
FEW = 0.1
"""What more ranks show at once is no sign of one device."""


@dataclass(frozen=True)
class Noticed:
    """A counter that rises on few ranks while data is slow."""

    metric: str
    rows: Mask
    """Of the grid."""


def noticed(seen: Observed, steps: Mask) -> list[Noticed]:
    """Counters of trouble that stand out in the given steps.

    Args:
        steps: columns in which data was slow.
    """
    table = seen.window.table("hardware")
    if table is None or not steps.any():
        return []
    names = table.strings("metric").values
    return [one for name in sorted(set(names)) if _speaks(name)
            for one in _standing_out(seen, name, steps)]  # fmt: skip


def _speaks(metric: str) -> bool:
    return any(word in metric for word in TROUBLE) and not metric.endswith("_per_s")


def _standing_out(seen: Observed, metric: str, steps: Mask) -> Iterator[Noticed]:
    table = seen.window.tables["hardware"].take(
        seen.window.tables["hardware"].strings("metric").equals(metric)
    )
    row, column = seen.line.rows(table.ints("rank")), seen.line.column_at(table.ints("ts_ns"))
    keep = (row >= 0) & (column >= 0)
    value = table.floats("value")[keep]
    # what happened in a step shows in the first sample after it
    inside = steps[column[keep]] | steps[np.maximum(column[keep] - 1, 0)]
    during, else_ = (_means(row[keep][part], value[part], len(seen.line.ranks))
                     for part in (inside, ~inside))  # fmt: skip
    usual = max(stats.median(during), 0.0)
    rows = during > TIMES * np.maximum(else_, usual)
    if 0 < rows.sum() <= max(FEW * rows.size, 1):
        yield Noticed(metric, rows)


def _means(row: Ints, value: Floats, ranks: int) -> Floats:
    """Mean of each rank; ranks without a row stand at zero, as counters of trouble do."""
    count = np.bincount(row, minlength=ranks)
    return np.asarray(stats.sums(row, value, ranks) / np.maximum(count, 1))


def speak_against(
    seen: Observed, signs: Sequence[Noticed], carriers: Sequence[Carrier]
) -> Floats:  # fmt: skip
    """By what factor the signs make each carrier likelier."""
    factors = np.ones(len(carriers))
    for sign in signs:
        ranks = frozenset(seen.line.ranks[sign.rows].tolist())
        for word, kind, factor in OWN:
            if sign.metric.startswith(word):
                factors *= [factor if one.kind == kind and ranks.intersection(one.ranks) else 1.0
                            for one in carriers]  # fmt: skip
    return factors

"""Converts samples into rows of `hardware`, and lost samples into rows of `losses`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.processor.counters.frames import Lost, Samples
from stepscope.processor.records.normalise import Rows
from stepscope.window import Strings

_HOST_LEVEL = -1


def sample_rows(host: str, gpu: int, metrics: Sequence[str], samples: Samples) -> Rows:
    """One row for each value of each sample: its end and its averaging period."""
    values = samples.of["value"][:, : len(metrics)]
    known = np.isfinite(values)
    sample, metric = np.nonzero(known)
    start_ns, end_ns = samples.of["start_ns"][sample], samples.of["end_ns"][sample]
    names = tuple(f"{name}.gpu{gpu}" for name in metrics)
    return {
        "rank": np.full(len(sample), _HOST_LEVEL, np.int32),
        "host": Strings(np.zeros(len(sample), np.int32), (host,)),
        "metric": Strings(metric.astype(np.int32), names),
        "ts_ns": end_ns,
        "value": values[known],
        "period_ns": end_ns - start_ns,
    }


def loss_rows(metrics: Sequence[str], lost: Lost) -> Rows:
    """Counts the rows that the lost samples would have made."""
    return {
        "rank": [_HOST_LEVEL],
        "table": ["hardware"],
        "start_ns": [lost.start_ns],
        "end_ns": [lost.end_ns],
        "rows": [lost.samples * len(metrics)],
    }

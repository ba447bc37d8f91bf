"""Learns what is expected of functions from a user's own healthy jobs, for `stepscope baseline`.

Ranges are of what ranks of healthy windows do: shares from the lowest to the 99th percentile of the
ranks, over all windows, widened by a tenth; uses of resources from the 5th to the 95th; times per
step of the median rank. Few windows make ranges too narrow, so the fewer there are, the wider they
are made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.diagnose.account.ranges import key_of
from stepscope.diagnose.detect.profiled.common_devices import unequal
from stepscope.diagnose.expected import ENOUGH_WINDOWS, Expected, Key, Range, Ranges
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.profiled import without_profiled
from stepscope.diagnose.views.patterns import Patterns
from stepscope.window import Floats, Window

WIDER, AT_LEAST = 0.1, 0.005
"""How much wider than seen ranges are: a tenth, and half a percent of the step. Our choice."""
STEP_WIDER = 0.02
"""The same of times per step, which are medians over ranks. Our choice."""
MOST, LEAST = 0.99, 0.05
"""Quantiles of the ranks that count as healthy. Our choice."""


@dataclass
class Learning:
    """What the jobs so far have shown."""

    beta: dict[Key, list[Range]] = field(default_factory=lambda: defaultdict(list))
    mu: dict[Key, list[Range]] = field(default_factory=lambda: defaultdict(list))
    sigma: dict[Key, list[Range]] = field(default_factory=lambda: defaultdict(list))
    step_ns: dict[Key, list[Range]] = field(default_factory=lambda: defaultdict(list))
    steps: list[float] = field(default_factory=list)
    uneven: list[float] = field(default_factory=list)
    jobs: int = 0
    windows: int = 0

    def add(self, window: Window) -> int:
        """Adds one job; returns how many windows of profiling it has."""
        cleaned, _ = clean(window)
        job = Observed(align(without_profiled(cleaned)[0])[0])
        self.jobs += bool(job.patterns)
        self.windows += len(job.patterns)
        for patterns in job.patterns:
            self._learn(patterns)
            found = unequal(job, patterns)
            self.uneven.append(0.0 if found is None else found.wide)
        if job.patterns and len(job.line.steps):
            self.steps.append(job.line.typical_ns)
        return len(job.patterns)

    def _learn(self, window: Patterns) -> None:
        for key, rows in _by_key(window).items():
            beta = window.beta[rows][:, window.rows].sum(axis=0)
            self.beta[key].append(_quantiles(beta, 0.0, MOST))
            for values, into in ((window.mu, self.mu), (window.sigma, self.sigma)):
                known = values[rows][np.isfinite(values[rows])]
                if known.size:
                    into[key].append(_quantiles(known, LEAST, 1 - LEAST))
            if window.step_ns is not None:
                time_ns = stats.median(beta) * window.step_ns
                self.step_ns[key].append(Range(time_ns, time_ns))

    @property
    def expected(self) -> Expected:
        few = max(ENOUGH_WINDOWS / max(self.windows, 1), 1.0)
        functions = {key: self._ranges(key, few) for key in self.beta}
        step_ns = Range(min(self.steps), max(self.steps)) if self.steps else None
        wide = max(self.uneven, default=0.0) * (1 + WIDER * few)
        return Expected(functions, self.jobs, self.windows, step_ns, Range(0.0, wide))

    def _ranges(self, key: Key, few: float) -> Ranges:
        beta = _around(self.beta[key], WIDER * few, AT_LEAST * few)
        return Ranges(
            Range(0.0, min(beta.high, 1.0)), _share(self.mu, key, few),
            _share(self.sigma, key, few), _time(self.step_ns, key, few),
        )  # fmt: skip


def _by_key(window: Patterns) -> Mapping[Key, list[int]]:
    """Ranges by name and file: functions that are defined in it more than once are one."""
    found: dict[Key, list[int]] = defaultdict(list)
    for at, one in enumerate(window.functions):
        found[key_of(one)].append(at)
    return found


def _quantiles(values: Floats, low: float, high: float) -> Range:
    return Range(float(np.quantile(values, low)), float(np.quantile(values, high)))


def _around(seen: Sequence[Range], wider: float, least: float) -> Range:
    low, high = min(one.low for one in seen), max(one.high for one in seen)
    return Range(max(low * (1 - min(wider, 1.0)) - least, 0.0), high * (1 + wider) + least)


def _share(seen: Mapping[Key, Sequence[Range]], key: Key, few: float) -> Range | None:
    if not seen.get(key):
        return None
    low, high = _around(seen[key], WIDER * few, 0.0)
    return Range(min(low, 1.0), min(high, 1.0))


def _time(seen: Mapping[Key, Sequence[Range]], key: Key, few: float) -> Range | None:
    return _around(seen[key], STEP_WIDER * few, 0.0) if seen.get(key) else None

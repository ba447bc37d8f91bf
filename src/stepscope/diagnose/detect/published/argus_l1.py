"""ARGUS level 1 as published: windows with max/min above a ratio, and the largest rise of the mean.

Paper: ARGUS (2026), section 6.1 and appendix B, "L1". Symbols: W -> `width`, theta -> `ratio`,
b -> `baseline`, mu_L, mu_R -> `before`, `after`, t -> `split`.
Fault: spikes (jitter) and a lasting rise (regression) of the step time.
Runs by `--method argus-l1-published` only. It misfires (algorithm notes, section 4): with 3 % noise
max/min > 1.2 in 36 % of healthy series and at every checkpoint; rare spikes hide a step change, and
5 % noise makes 7 % false ones. The default is `detect.step_time`.
Cost: linear in steps. Cannot see: what was slow from the start, nor who or why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.detect.steps.step_time import LEAST_RISE
from stepscope.diagnose.finding import Unsteady
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import compiled
from stepscope.diagnose.observed import Observed
from stepscope.window import Floats, Mask

WINDOW = 20
RATIO = 1.2
"""W and theta of the published jitter detector; the paper names none, these are the algorithm
notes' (section 4). Our simulator."""
EXCEEDS = 1.1
"""What "significantly exceeds the baseline" means in the published second phase; the paper names no
number. Our simulator."""
LARGEST_SPREAD = 0.1
"""Largest relative deviation on either side of the change point; the paper names none. Our
simulator."""


class ArgusL1Published:
    """Jitter and regression of the step time, by the rules that ARGUS publishes."""

    name = "argus-l1-published"
    needs = Needs("steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Unsteady]:
        line = job.line
        known = np.flatnonzero(np.isfinite(line.job_period_ns))
        known = known[known >= line.warm_up]
        series = line.job_period_ns[known]
        spikes = [at for first, stop in jitter_as_published(series) for at in range(first, stop)]
        if spikes:
            detail = f"{len(spikes)} steps lie in windows of {WINDOW} whose max/min exceeds {RATIO}"
            columns = tuple(int(known[at]) for at in spikes)
            yield Unsteady(self.name, "unknown", detail, spikes=columns)
        rise = regression_as_published(series)
        if rise is not None:
            split = int(known[rise[0]])
            detail = f"the mean rises {rise[1]:.2f} times at step {line.steps[split]}"
            yield Unsteady(self.name, "unknown", detail, slowdown=rise[1], split=split)


def jitter_as_published(
    series: Floats, width: int = WINDOW, ratio: float = RATIO
) -> list[tuple[int, int]]:
    """Appendix B: windows with max/min > ratio, merged; then the longest run above the baseline."""
    if series.size < width:
        return []
    marked = np.flatnonzero(wide_windows(series, width, ratio))
    if not marked.size:
        return []
    parts = np.split(marked, np.flatnonzero(np.diff(marked) > width) + 1)
    found = [_exceeding(series, int(part[0]), int(part[-1]) + width) for part in parts]
    return [interval for interval in found if interval is not None]


def wide_windows(series: Floats, width: int, ratio: float) -> Mask:
    """Phase one: in which windows of so many steps max > ratio * min."""
    if compiled.wide_windows is not None:
        wide = compiled.wide_windows(series.astype(np.float64, copy=False).tobytes(), width, ratio)
        return np.frombuffer(wide, np.bool_)
    windows = np.lib.stride_tricks.sliding_window_view(series, width)
    return np.asarray(windows.max(axis=1) > ratio * windows.min(axis=1))


def _exceeding(series: Floats, first: int, stop: int) -> tuple[int, int] | None:
    """The longest run inside [first, stop) above the median of what lies outside."""
    outside = np.concatenate((series[:first], series[stop:]))
    baseline = float(np.median(outside if outside.size else series))
    above = np.concatenate(([0], series[first:stop] > EXCEEDS * baseline, [0])).astype(np.int8)
    begins, ends = np.flatnonzero(np.diff(above) == 1), np.flatnonzero(np.diff(above) == -1)
    if not begins.size:
        return None
    longest = int(np.argmax(ends - begins))
    return first + int(begins[longest]), first + int(ends[longest])


def regression_as_published(series: Floats) -> tuple[int, float] | None:
    """Appendix B: the split with the largest ratio of means, both sides being stable."""
    if compiled.largest_rise is not None:
        packed = series.astype(np.float64, copy=False).tobytes()
        split, ratio = compiled.largest_rise(packed, LEAST_RISE, LARGEST_SPREAD)
        return (split, ratio) if split else None
    return largest_rise(series, LEAST_RISE, LARGEST_SPREAD)


def largest_rise(series: Floats, least: float, spread: float) -> tuple[int, float] | None:
    """The same in numpy: all splits at once, by cumulative sums."""
    count = np.arange(1, series.size)
    total, squares = np.cumsum(series), np.cumsum(series**2)
    left, right = total[:-1] / count, (total[-1] - total[:-1]) / count[::-1]
    left_var = squares[:-1] / count - left**2
    right_var = (squares[-1] - squares[:-1]) / count[::-1] - right**2
    stable = (np.sqrt(np.maximum(left_var, 0)) < spread * left) & (
        np.sqrt(np.maximum(right_var, 0)) < spread * right
    )
    ratio = np.where(stable & (left > 0), right / np.where(left > 0, left, 1), 0.0)
    if not ratio.size or ratio.max() <= least:
        return None
    split = int(np.argmax(ratio))
    return split + 1, float(ratio[split])

"""Time that all ranks lose on their devices or in turns, by behaviour patterns: no single function
is wrong.

Fault: unequal work, garbage that a different rank collects each time, a slow network, devices that
other processes use as well.
Paper: EROICA (2026): section 6.1 (garbage collection), section 6.2 (load imbalance, low network
throughput) and appendix B, the case that it missed: nearly all kernels took a little longer at
their usual clocks, because an idle model's collectives held multiprocessors.
What differs: the paper leaves these conclusions to people. The last two need a baseline.
Cost: medians over ranks. Cannot see: a network or devices that have always been slow, without a
baseline of jobs elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.belief import unusual_bits
from stepscope.diagnose.account.ranges import key_of
from stepscope.diagnose.detect.profiled.pattern_waste import SURE_BITS, wasted
from stepscope.diagnose.expected import Ranges
from stepscope.diagnose.finding import Waste
from stepscope.diagnose.network.devices import all_hosts
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST, LEAST_COST_REPEATED
from stepscope.diagnose.views.patterns import LEAST_BETA, Patterns
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints

WIDE = 0.04
"""Relative scatter of the time in kernels from which ranks' work is unequal: clocks and noise make
two percent. Our simulator."""
FOLLOWS = 0.7
"""Correlation of how often and how long kernels run that shows unequal work. Our choice."""
FEWEST = 4
"""Fewer ranks than this have no measurable scatter. Our choice."""
SAME_SPEED = 0.03
"""Relative scatter of the devices' clocks that is none. Our choice."""
LONGER = 1.05
"""How many times longer nearly all kernels must take than in the baseline. Our choice."""
NEARLY_ALL = 0.75
"""Part of the kernels' time that must have become longer for the device to be the reason. Our
choice."""
SLOWER = 0.8
"""Of the lowest use of adapters in the baseline: below, the network is slower. Our choice."""
SEVERAL = 3
"""Kernels or collectives that are listed. Our choice."""


@dataclass(frozen=True)
class Unequal:
    """How unequally ranks of one role compute in one window."""

    window: Patterns
    spent: Floats
    """The share of the window in which each rank computes."""
    wide: float
    """Its relative scatter."""

    @property
    def loss(self) -> float:
        """How much longer the most loaded ranks take than the average."""
        return float(np.quantile(self.spent, 0.95)) - float(self.spent.mean())


def uneven(job: Observed, windows: Sequence[Patterns]) -> Iterator[Waste]:
    """Kernels that run equally fast on all devices, and longer where they are called more often.

    Every job has some of that: it must cost clearly more than usual, or scatter clearly more than
    in the baseline.
    """
    found = [one for window in windows if (one := unequal(job, window)) is not None]
    if len(found) * 2 <= len(windows):
        return
    worst = max(found, key=lambda one: one.loss)
    loss, wide = (stats.median(np.array([getattr(one, name) for one in found]))
                  for name in ("loss", "wide"))  # fmt: skip
    if loss < LEAST_COST:
        return
    known = job.expected.uneven
    bits = unusual_bits(loss)
    if known is not None:
        bits = max(bits, SURE_BITS * (wide - known.high) / max(known.high, WIDE))
    least, most = percent(float(worst.spent.min())), percent(float(worst.spent.max()))
    says = f"ranks compute for {least} to {most} of the same steps: their work is unequal"
    detail = "kernels run equally fast on all devices, and longer where more are launched"
    yield wasted(
        job, worst.window, "load_imbalance", loss, bits, says, detail, values={"scatter": wide}
    )


def unequal(job: Observed, window: Patterns) -> Unequal | None:
    """The role whose ranks compute most unequally, by how often kernels are launched."""
    at, found = window.at("kernel"), None
    for group in job.groups(None) if at.size else ():
        rows = group[np.isin(group, window.rows)]
        if rows.size < FEWEST:
            continue
        spent = window.beta[np.ix_(at, rows)].sum(axis=0)
        calls = window.calls[np.ix_(at, rows)].sum(axis=0)
        wide = stats.sigma(np.log(np.maximum(spent, 1e-9)))
        if wide < WIDE or not _same_speed(window, at, rows) or not _follows(calls, spent):
            continue
        if found is None or wide > found.wide:
            found = Unequal(window, spent, wide)
    return found


def _same_speed(window: Patterns, at: Ints, rows: Ints) -> bool:
    mu = window.mu[np.ix_(at, rows)]
    known = np.isfinite(mu).all(axis=1)
    logs = np.log(np.maximum(mu[known], 1e-9))
    return bool(known.any()) and all(stats.sigma(one) <= SAME_SPEED for one in logs)


def _follows(calls: Floats, spent: Floats) -> bool:
    if not np.isfinite(calls).all() or np.std(calls) == 0:
        return False
    return bool(np.corrcoef(calls, spent)[0, 1] >= FOLLOWS)


def in_turns(job: Observed, windows: Sequence[Patterns]) -> Iterator[Waste]:
    """Garbage collection at different times on different ranks: each pause of one rank holds up
    all."""
    losses, function = [], ""
    for window in windows:
        at = np.array([one.collects and one.trains for one in window.functions], np.bool_)
        spent = np.nansum(window.beta[at], axis=0) if at.any() else np.zeros(1)
        losses.append(float(spent.sum()) if (spent > 0).sum() > 1 else 0.0)
        function = next((one.frame for one in window.functions if one.collects), function)
    loss = min(float(np.mean(losses)), 1.0)
    if loss < LEAST_COST_REPEATED:
        return
    says = f"ranks collect garbage at different times; all wait up to {percent(loss)} of the time"
    detail = f"{function} runs on some ranks in profiled steps, and not at once: pauses add up"
    yield wasted(job, windows[-1], "gc", loss, SURE_BITS, says, detail, function=function)


def slow_network(job: Observed, windows: Sequence[Patterns]) -> Iterator[Waste]:
    """Collectives that use adapters less than in the baseline, on most ranks."""
    window, names, worst, cost = windows[-1], [], 1.0, 0.0
    for at in window.at("collective").tolist():
        known = _learned(job, window, at)
        mu = stats.median(window.mu[at])
        if known is None or known.mu is None or mu <= 0 or mu >= SLOWER * known.mu.low:
            continue
        beta = stats.median(window.beta[at])
        names.append(window.functions[at].name)
        worst = min(worst, mu / known.mu.low)
        # what it takes longer may be waiting, so it counts only as far as the rate explains it
        slower = (known.mu.low / mu - 1) * _share_of(known, window)
        cost += max(min(beta - known.beta.high, slower), 0.0)
    if not names or cost < LEAST_BETA:
        return
    says = f"data moves {1 / worst:.1f} times slower between all ranks than in healthy jobs"
    detail = (
        f"{names[0]} uses {percent(worst)} of what adapters reached in the baseline, and takes "
        "more of the step"
    )
    yield wasted(
        job, window, "network", cost, SURE_BITS, says, detail, kernels=tuple(names[:SEVERAL])
    )


def _share_of(known: Ranges, window: Patterns) -> float:
    """The share of the window that a function would take as in the baseline."""
    if known.step_ns is None or window.step_ns is None:
        return known.beta.high
    return known.step_ns.high / window.step_ns


def sharing(job: Observed, windows: Sequence[Patterns]) -> Iterator[Waste]:
    """Nearly all kernels take longer than in the baseline, at the usual clock."""
    window = windows[-1]
    at = window.at("kernel")
    if window.step_ns is None or not at.size:
        return
    rows, total, ratios, longer = window.rows, 0.0, [], 0.0
    for one in at.tolist():
        known = _learned(job, window, one)
        if known is None or known.step_ns is None or known.mu is None:
            continue
        time_ns = stats.median(window.beta[one, rows]) * window.step_ns
        total += time_ns
        times = time_ns / max(known.step_ns.high, 1.0)
        if times >= LONGER and stats.median(window.mu[one, rows]) >= known.mu.low:
            ratios.append(times)
            longer += time_ns
    if not ratios or longer < NEARLY_ALL * total or len(ratios) < min(SEVERAL, at.size):
        return
    times = stats.median(np.array(ratios))
    loss = longer / window.step_ns * (1 - 1 / times)
    says = (
        f"kernels take {times:.2f} times as long as in healthy jobs on all ranks, at the same "
        "clocks: other processes seem to use the devices"
    )
    detail = (
        "nearly all kernels take longer per step than in the baseline, and their devices run at "
        "the usual clock: no function became slower, but the devices are shared"
    )
    yield wasted(
        job, window, "contention", loss, SURE_BITS, says, detail, devices=all_hosts(job.window)
    )


def _learned(job: Observed, window: Patterns, at: int) -> Ranges | None:
    return job.expected.of(key_of(window.functions[at]))

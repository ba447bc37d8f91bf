"""Functions that hold up all ranks more than is expected of them, by behaviour patterns.

Fault: user code, data loading, copies that were slow from the first step on; work that is unequal
on all ranks; with a learned baseline also communication, and devices that others use as well.
Paper: EROICA (2026), section 4.3, "distance from expectation"; as printed it is `published.eroica`.
What differs: a function counts by what three quarters of the ranks spend in it at least, so what a
few ranks do is not the code of all. Being outside of a range is no verdict: every job has a little
of it, so it must be clearly more than is ordinary (`account.belief`), or lie outside of what was
learned from the user's own healthy jobs. Functions that the same line of user code calls are added
up.
Cost: a quantile per function. Cannot see: code that runs beside a busy device, for it takes no time
of the critical path; what a model needs, without a baseline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.belief import odds
from stepscope.diagnose.account.ranges import Judge, key_of
from stepscope.diagnose.detect.behaviour import KERNELS, RESOURCES
from stepscope.diagnose.detect.odd_patterns import named
from stepscope.diagnose.detect.step_time import regression
from stepscope.diagnose.finding import Cause, Decision, Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST, LEAST_SCORE
from stepscope.diagnose.views.patterns import Function, Patterns
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints

MOST_RANKS = 0.75
"""Part of the ranks that must spend so much in a function. Our simulator (as in `user_code`)."""
WIDE = 0.05
"""Relative scatter of the time in kernels from which ranks' work is unequal: clocks and noise make
two percent. Our simulator."""
FOLLOWS = 0.7
"""Correlation of how often and how long kernels run that shows unequal work. Our choice."""
SAME_SPEED = 0.03
"""Relative scatter of the devices' clocks that is none. Our choice."""
TWIN = 1.05
"""How many times longer nearly all kernels must take than in the baseline. Our choice."""
NEARLY_ALL = 0.75
"""Part of the kernels' time that must have become longer for the device to be the reason. Our
choice."""
SURE_BITS = 12.0
"""Evidence where calls or a learned range show it. Our choice."""


class CommonPatterns:
    """Functions that take all ranks longer than expected in profiled steps."""

    name = "common-patterns"
    needs = Needs("patterns")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        if not job.patterns:
            return
        window = job.patterns[-1]
        judge = Judge(window, job.expected)
        shared = _sharing(job, judge)
        yield from shared
        for some in _by_caller(judge, tuple(_exceeding(judge, bool(shared)))):
            yield _function(job, judge, some)
        yield from _uneven(job, window)


@dataclass(frozen=True)
class _Exceeds:
    """A function that three quarters of the ranks spend more time in than expected."""

    at: int
    beta: float
    loss: float
    """Beyond the expected range."""
    bits: float


def _exceeding(judge: Judge, devices_known: bool) -> Iterator[_Exceeds]:
    window = judge.patterns
    usual = at_least(window)
    for at, function in enumerate(window.functions):
        high = judge.expected(function).beta.high
        learned = judge.is_learned(function)
        work = not function.waits or (learned and function.kind == "collective")
        of_device = function.kind in ("kernel", "collective") and devices_known
        if work and not of_device and usual[at] > high:
            bits = judge.bits(function, float(usual[at]))
            yield _Exceeds(at, float(usual[at]), float(usual[at]) - high, bits)


def at_least(window: Patterns) -> Floats:
    """What three quarters of the profiled ranks spend in each function at least."""
    if not window.functions:
        return np.zeros(0)
    found: Floats = np.quantile(window.beta[:, window.rows], 1 - MOST_RANKS, axis=1)
    return found


def _by_caller(judge: Judge, some: Sequence[_Exceeds]) -> list[list[_Exceeds]]:
    """Functions that the same line of the user calls, together; the largest first in each."""
    together: dict[tuple[str, str], list[_Exceeds]] = defaultdict(list)
    for one in sorted(some, key=lambda one: -one.loss):
        function = judge.patterns.functions[one.at]
        of_host = function.kind == "python" and function.caller
        place = function.caller if of_host else f"{one.at}"
        together[_cause(function), place].append(one)
    return list(together.values())


def _cause(function: Function) -> Cause:
    if function.loads:
        return "data_loading"
    if function.collects:
        return "gc"
    if function.compiles:
        return "jit_compile"
    return {"copy": "memory_copy", "collective": "network"}.get(  # type: ignore[return-value]
        function.kind, "code"
    )


def _function(job: Observed, judge: Judge, some: Sequence[_Exceeds]) -> Waste:
    window = judge.patterns
    function, first = window.functions[some[0].at], some[0]
    beta, loss = sum(one.beta for one in some), sum(one.loss for one in some)
    bits = max(first.bits, judge.bits(function, beta))
    high = judge.expected(function).beta.high
    source = "your healthy jobs show" if judge.is_learned(function) else "a healthy job shows"
    says = f"all ranks spend {percent(beta)} of their steps in {function.frame}"
    detail = (
        f"{named(function)} takes {percent(first.beta)} of the profiled steps on "
        f"{percent(MOST_RANKS)} of the ranks or more; {source} {percent(high)} at most"
    )
    if len(some) > 1:
        detail += f"; with {len(some) - 1} more of the same caller it is {percent(beta)}"
    use = stats.median(window.mu[first.at])
    if function.resource and np.isfinite(window.mu[first.at]).any():
        detail += f"; it uses {percent(use)} of {RESOURCES.get(function.resource, '')}"
    of_host = function.kind == "python"
    return found(
        job, window, _cause(function), loss, bits, says, detail,
        function=function.frame if of_host else None,
        kernels=() if of_host else (function.name,),
        values={"share": beta, "expected": high},
    )  # fmt: skip


def found(
    job: Observed, window: Patterns, cause: Cause, loss: float, bits: float, says: str,
    detail: str, function: str | None = None, kernels: tuple[str, ...] = (),
    values: dict[str, float] | None = None, ranks: tuple[int, ...] = (),
) -> Waste:  # fmt: skip
    """A finding about all ranks of a window, in the steps in which it was like that."""
    sure, line = odds(bits, loss), job.line
    first = since(job, window)
    steps = window.steps
    if first is not None:
        steps = line.span(first, len(line.steps))
        says += f" from step {steps[0]}" if first > line.warm_up else ""
    bits_said = f"{bits:.1f} bits of evidence"
    likely = Decision("likely", sure >= LEAST_SCORE, sure, LEAST_SCORE, bits_said)
    return Waste(
        CommonPatterns.name, cause, detail, ranks, function=function, kernels=kernels[:KERNELS],
        steps=steps,
        time_ns=window.time_ns if first is None else line.span_ns(first, len(line.steps)),
        slowdown=1 / max(1 - loss, 0.01), lost_ns=loss * line.typical_ns if first is not None else
        loss * (window.step_ns or 0.0), lost_fraction=loss, score=sure,
        victims=len(line.ranks) - len(ranks) if ranks else 0, says=says,
        values={"bits": bits, "lost_fraction": loss, **(values or {})}, decisions=(likely,),
    )  # fmt: skip


def since(job: Observed, window: Patterns) -> int | None:
    """The column since which steps take as long as in the window; None where it is not known.

    If the step time never rose, it has always been so.
    """
    line = job.line
    if window.steps is None or len(line.steps) <= line.warm_up:
        return None
    change = regression(line.job_period_ns[line.warm_up :])
    first = line.warm_up if change is None else change.split + line.warm_up
    return first if int(line.steps[first]) <= window.steps[1] else None


def _uneven(job: Observed, window: Patterns) -> Iterator[Waste]:
    """Kernels that run equally fast on all devices, and longer where they are called more often."""
    at = window.at("kernel")
    for group in job.groups(None):
        rows = group[np.isin(group, window.rows)]
        if rows.size < 4 or not at.size:
            continue
        spent = window.beta[np.ix_(at, rows)].sum(axis=0)
        logs = np.log(np.maximum(spent, 1e-9))
        if stats.sigma(logs) < WIDE or not _same_speed(window, at, rows):
            continue
        calls = window.calls[np.ix_(at, rows)].sum(axis=0)
        if not np.isfinite(calls).all() or not _follows(calls, spent):
            continue
        loss = float(np.quantile(spent, 0.95)) - float(spent.mean())
        if loss >= LEAST_COST:
            least, most = percent(float(spent.min())), percent(float(spent.max()))
            says = f"ranks compute for {least} to {most} of the same steps: unequal work"
            detail = "kernels run equally fast on all devices, and longer where more are launched"
            yield found(job, window, "load_imbalance", loss, SURE_BITS, says, detail)
            return


def _same_speed(window: Patterns, at: Ints, rows: Ints) -> bool:
    mu = window.mu[np.ix_(at, rows)]
    known = np.isfinite(mu).all(axis=1)
    if not known.any():
        return False
    logs = np.log(np.maximum(mu[known], 1e-9))
    return all(stats.sigma(one) <= SAME_SPEED for one in logs)


def _follows(calls: Floats, spent: Floats) -> bool:
    return bool(np.std(calls) > 0 and np.corrcoef(calls, spent)[0, 1] >= FOLLOWS)


def _sharing(job: Observed, judge: Judge) -> list[Waste]:
    """All kernels take longer than in the baseline, at the same clock: somebody else computes."""
    window = judge.patterns
    if window.step_ns is None:
        return []
    rows, total, longer = window.rows, 0.0, 0.0
    ratios: list[float] = []
    for at in window.at("kernel").tolist():
        known = judge.learned.of(key_of(window.functions[at]))
        if known is None or known.step_ns is None or known.mu is None:
            continue
        time_ns = stats.median(window.beta[at, rows]) * window.step_ns
        ratio = time_ns / max(known.step_ns.high, 1.0)
        total += time_ns
        if ratio >= TWIN and known.mu.low <= stats.median(window.mu[at, rows]):
            longer += time_ns
            ratios.append(ratio)
    if not total or longer < NEARLY_ALL * total:
        return []
    times = stats.median(np.array(ratios))
    loss = longer / window.step_ns * (1 - 1 / times)
    says = (
        f"kernels take {times:.2f} times as long as in healthy jobs on all ranks, at the same "
        "clocks: other processes seem to use the devices"
    )
    detail = (
        "nearly all kernels take longer per step than in the baseline, and their devices run at "
        "the usual clock"
    )
    return [found(job, window, "contention", loss, SURE_BITS, says, detail)]

"""Functions that hold up all ranks more than is expected of them, by behaviour patterns.

Fault: user code, data loading, copies that were slow from the first step on; garbage that ranks
collect in turns; work that is unequal on all ranks; with a learned baseline also slow networks, and
devices that others use as well.
Paper: EROICA (2026), section 4.3, "distance from expectation"; as printed it is `published.eroica`.
What differs: a function counts by what three quarters of the ranks of one pipeline stage spend in
it at least, so what a few ranks do is not the code of all. Being outside of a range is no verdict:
every job has a little of it, so it must be clearly more than is ordinary (`account.belief`), or lie
outside of what was learned from the user's own healthy jobs. Functions that the same line of user
code calls are added up.
Cost: a quantile per function and window. Cannot see: code that runs beside a busy device, for it
takes no time of the critical path; what a model needs, without a baseline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.account.ranges import Judge
from stepscope.diagnose.account.waste import by_all
from stepscope.diagnose.detect.profiled.behaviour import KERNELS, RESOURCES
from stepscope.diagnose.detect.profiled.common_devices import (
    in_turns,
    sharing,
    slow_network,
    uneven,
)
from stepscope.diagnose.detect.profiled.odd_patterns import named
from stepscope.diagnose.detect.profiled.pattern_waste import (
    METHOD,
    roles,
    since,
    wasted,
    windows_now,
)
from stepscope.diagnose.detect.waste.user_code import MOST_RANKS
from stepscope.diagnose.finding import Cause, Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.patterns import PINS, Function, Patterns
from stepscope.diagnose.views.threads import busiest_worker, own_beta
from stepscope.diagnose.words.advice import who_spend
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import short_frame
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats, Ints


class CommonPatterns:
    """Functions that take all ranks longer than expected in profiled steps."""

    name = METHOD
    needs = Needs("patterns")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        windows = windows_now(job)
        if not windows:
            return
        shared = list(sharing(job, windows))
        yield from shared
        exceeding = [one for one in _exceeding(job, windows)
                     if not shared or one.function.kind != "kernel"]  # fmt: skip
        for some in _by_caller(exceeding):
            yield _function(job, some)
        yield from slow_network(job, windows)
        yield from uneven(job, windows)
        yield from in_turns(job, windows)


@dataclass(frozen=True)
class _Exceeds:
    """A function that three quarters of the ranks of a role spend more time in than expected."""

    window: Patterns
    at: int
    beta: float
    loss: float
    """Beyond the expected range."""
    judge: Judge

    @property
    def function(self) -> Function:
        return self.window.functions[self.at]


def _exceeding(job: Observed, windows: Sequence[Patterns]) -> list[_Exceeds]:
    """By the median over the windows, with the last window that shows the function."""
    who, found = roles(job), []
    seen: dict[tuple[str, ...], list[tuple[Patterns, int, float]]] = defaultdict(list)
    for window in windows:
        usual = at_least(window, who)
        usual[window.sleeps] = 0.0
        for at, one in enumerate(window.functions):
            key = (one.kind, one.name, one.location, one.thread, one.phase)
            seen[key].append((window, at, float(usual[at])))
    for some in seen.values():
        window, at, _ = some[-1]
        absent = [0.0] * (len(windows) - len(some))
        beta = float(np.median([*(value for _, _, value in some), *absent]))
        judge = Judge(window, job.expected)
        high = judge.expected(window.functions[at]).beta.high
        function = window.functions[at]
        beside = not function.trains and function.thread != PINS
        if beta > high and not function.waits and not function.is_label and not beside:
            found.append(_Exceeds(window, at, beta, beta - high, judge))
    return sorted(found, key=lambda one: -one.loss)


def at_least(window: Patterns, who: Sequence[Ints]) -> Floats:
    """The time that at least three quarters of the ranks of some role spend in each function."""
    found, spent = np.zeros(len(window.functions)), own_beta(window)
    for group in who:
        rows = group[np.isin(group, window.rows)]
        if rows.size and found.size:
            each = np.sort(spent[:, rows], axis=1)[:, int(rows.size * (1 - MOST_RANKS))]
            found = np.maximum(found, each)
    return found


def _by_caller(some: Sequence[_Exceeds]) -> list[list[_Exceeds]]:
    """Functions called from the same line of the user's code, together; the largest first in
    each."""
    together: dict[tuple[str, str], list[_Exceeds]] = defaultdict(list)
    for at, one in enumerate(some):
        of_host = one.function.kind == "python" and one.function.caller
        together[_cause(one.function), one.function.caller if of_host else f"{at}"].append(one)
    return list(together.values())


def _cause(function: Function) -> Cause:
    if function.loads:
        return "data_loading"
    if function.collects:
        return "gc"
    if function.compiles:
        return "jit_compile"
    return "memory_copy" if function.kind == "copy" else "code"


def _function(job: Observed, some: Sequence[_Exceeds]) -> Waste:
    first, function = some[0], some[0].function
    beta, loss = sum(one.beta for one in some), sum(one.loss for one in some)
    most = _loaded_in_steps(job, first.window) if function.loads else 1.0
    largest, beta, loss = min(first.beta, most), min(beta, most), min(loss, most)
    if function.loads:
        held = min(_held_by_loading(job, first.window), most)  # of two ranks, one may be slow
        beta, loss = max(beta, held), max(loss, held)
    bits = max(first.judge.bits(function, largest), first.judge.bits(function, beta))
    of_host = function.kind == "python" or function.allocates
    # an annotation without a place in a file, such as the loader's, names no function
    named_in_file = function.allocates or (of_host and bool(function.location or function.caller))
    frame, does, detail = function.in_users_code, "in", _detail(some, beta)
    if function.loads and (worker := busiest_worker(first.window, first.window.rows)):
        (working, share), does = worker, "waiting for loader workers, which are in"
        frame, named_in_file = working.in_users_code, True
        detail += f"; the workers spend {percent(share)} of their time in {frame}"
    who, whose = who_spend(job.line.ranks.tolist())
    says = f"{who} {percent(beta)} of {whose} steps {does} {short_frame(frame)}"
    return wasted(
        job, first.window, _cause(function), loss, bits, says, detail,
        function=frame if named_in_file else None,
        kernels=() if of_host else tuple(one.function.name for one in some)[:KERNELS],
        values={"share": beta, "expected": first.judge.expected(function).beta.high},
    )  # fmt: skip


def _loaded_in_steps(job: Observed, window: Patterns) -> float:
    """The share of loading that all ranks have in most of the steps like the profiled ones; 1 where
    phases do not show it.

    The least of any rank, because the others would wait for it in any case (`account.waste`). What
    a few long steps add to the share of a whole window is no property of the loader.
    """
    first = since(job, window)
    if DATA_LOAD not in job.own.phases or first is None:
        return 1.0
    loads = by_all(job.own.of(DATA_LOAD)[:, first:])
    share = loads / np.maximum(job.line.job_period_ns[first:], 1.0)
    return stats.median(share) if np.isfinite(share).any() else 1.0


def _held_by_loading(job: Observed, window: Patterns) -> float:
    """The share of most steps that loading holds on the median rank, while its device computes
    nothing; 0 if unknown.

    In a pattern it is less: kernels of communication that were launched before run meanwhile, and
    only wait for the ranks that still load (`shared_loading` counts by phases as well).
    """
    first = since(job, window)
    if job.breakdown is None or DATA_LOAD not in job.own.phases or first is None:
        return 0.0
    period = job.line.period_ns[:, first:]
    loads = job.own.of(DATA_LOAD)[:, first:]
    computed = device_ns(job, "compute_ns")[:, first:]
    held = np.minimum(loads, period - computed) / np.maximum(period, 1.0)
    share = stats.column_median(held)
    return max(stats.median(share), 0.0) if np.isfinite(share).any() else 0.0


def _detail(some: Sequence[_Exceeds], beta: float) -> str:
    first, function = some[0], some[0].function
    high = first.judge.expected(function).beta.high
    known = first.judge.is_learned(function)
    source = "your healthy jobs show" if known else "a healthy job shows"
    text = (
        f"{named(function)} takes {percent(first.beta)} of the profiled steps; {source} "
        f"{percent(high)} at most"
    )
    if len(some) > 1:
        text += f"; with {len(some) - 1} more that the same line calls, {percent(beta)}"
    mu = first.window.mu[first.at]
    if function.resource in RESOURCES and np.isfinite(mu).any():
        text += f"; it uses {percent(stats.median(mu))} of {RESOURCES[function.resource]}"
    return text

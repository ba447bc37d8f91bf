"""A function of the user's own that takes time on all ranks, while training stands still.

Fault: a function of the input pipeline, a number that is read from the device in every step,
logging, an unplanned checkpoint: from the first step on, or for a part of the job.
Paper: ARGUS (2026), section 6.3 (level 5), leaves it to people to read stacks.
Ours: a call stack that passes through no part of the framework that trains (modules, autograd,
optimizers, collectives, data loaders) is the user's own code. Ranks wait for one another, so what
all spend there is lost by all (`account.waste`). Phases do not show it: forward begins when the
batch is there. The innermost function that holds most of that time on most of the ranks is named.
Cost: one pass over the stacks. Cannot see: what runs beside a busy device, functions that a model's
own modules call, jobs on GPUs whose kernels were not recorded, stacks without paths of PyTorch, and
calls in C in which the training loop itself blocks: they look like a sleep in a device's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.account import waste
from stepscope.diagnose.finding import Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.frames import awaits_device, function_of, is_users
from stepscope.diagnose.views.stacks import CARRIES, LEAST_NS, Samples
from stepscope.diagnose.views.unnamed import covered
from stepscope.diagnose.words.advice import who_spend
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import short_frame
from stepscope.window import Floats, Mask

ORDINARY = 0.02
"""Share of a step that ranks usually spend in code of their own. Measured on real data (the lab's
healthy jobs: below 0.01)."""
BLUR_NS = 2e8
"""Samples are some 100 ms long, and their clock is as accurate: py-spy says so. What is sampled of
an evaluation may lie in a step beside it."""
MOST_RANKS = 0.75
"""Part of the sampled ranks that must show the function. Our simulator."""


PARTS = 3
"""Thirds in which its time is compared: of fewer it is not known whether it goes on growing."""
DOUBLES = 2.0
"""A function that takes so many times as long at the end grows. Our choice."""
SURE_SIGMAS = 3.0
"""By so many standard errors of counting samples. Statistics: one in 700."""


@dataclass(frozen=True)
class _Function:
    frame: str
    share: float
    """Of the time, on the median rank."""
    grows_ns: tuple[float, float] | None = None
    """Per step in the first and in the last third, if it takes longer and longer."""


class UserCode:
    """A function of the user's own that takes time on all ranks, beside training."""

    name = "user-code"
    needs = Needs("stacks", "steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        samples = job.samples
        if samples is None or (len(job.line.ranks) == 1 and job.window.job.world_size != 1):
            return
        if job.has_roles:  # what an actor does beside training is its work
            return
        own = _own(job, samples)
        spent = _spent(job, samples, own)
        part = None if spent is None else waste.stretch(job, spent, ORDINARY, blur_ns=BLUR_NS)
        if part is None:
            return
        begin, end = job.line.span_ns(part.first, part.stop)
        span = (samples.time_ns >= begin) & (samples.time_ns < end)
        function = _function(samples, span, own, part.loss)
        if function is not None:
            grows_ns = _growth(job, samples, part, function)
            yield _found(job, part, replace(function, grows_ns=grows_ns))


def _growth(
    job: Observed, samples: Samples, part: waste.Stretch, function: _Function
) -> tuple[float, float] | None:
    """Its time per step in the first and the last third, if each takes longer than the one before.

    What goes through everything that was before again, say, takes longer in each step.
    """
    edges = np.linspace(part.first, part.stop, PARTS + 1).astype(np.int64)
    column = job.line.column_at(samples.time_ns)
    inside = samples.within(lambda name: name == function_of(function.frame))
    inside &= (column >= part.first) & (column < part.stop)
    third = np.clip(np.searchsorted(edges, column, side="right") - 1, 0, PARTS - 1)[inside]
    ranks = max(np.unique(samples.row).size, 1)
    spent = stats.sums(third, samples.weight[inside], PARTS)
    each = spent / (ranks * np.maximum(np.diff(edges), 1))
    alike = 1 if samples.at_random else ranks  # ranks that are sampled at the same times
    seen = np.maximum(spent / (alike * samples.interval_ns), 1.0)
    error = float(np.hypot(*(each / np.sqrt(seen))[[0, -1]]))
    grown = float(each[-1] - each[0])
    if (np.diff(each) <= 0).any() or each[-1] < DOUBLES * each[0] or grown < SURE_SIGMAS * error:
        return None
    return float(each[0]), float(each[-1])


def _own(job: Observed, samples: Samples) -> Mask:
    """Samples of the user's own code, beside training, that do not wait for a device.

    Where the training loop itself holds most of the time, and the process uses its processor for
    far less than that, a script without a device sleeps for as long as a device would take: nobody
    can tell that from waste.
    """
    used = job.hardware("cpu_util", job.line.warm_up, len(job.line.steps))
    rows = len(job.line.ranks)
    whole = stats.sums(samples.row, samples.weight, rows)
    loop = stats.sums(samples.row, np.where(samples.in_loop, samples.weight, 0.0), rows)
    sleeps = used < HALF * loop / np.maximum(whole, 1.0)
    own = samples.beside_training[samples.code] & ~samples.end_in(awaits_device)
    return np.asarray(own & ~(samples.in_loop & sleeps[samples.row]))


def _spent(job: Observed, samples: Samples, own: Mask) -> Floats | None:
    """Time per step that ranks spend in their own code while their devices idle; None if unknown.

    The rank with most of it is left out: what one rank does is not the code of all, unless there is
    only one.
    """
    idle = waste.idle_of_devices(job) if samples.shows_modules else None
    if idle is None:
        return None
    start, row = samples.time_ns[own], samples.row[own]
    end = start + samples.weight[own].astype(np.int64)
    spent: Floats = np.minimum(covered(job.line, row, start, end), idle)
    if len(spent) == 1:
        return np.asarray(spent[0])
    most = int(np.argmax(np.nansum(spent, axis=1)))
    others: Floats = np.delete(spent, most, axis=0)
    sampled = np.isin(np.delete(np.arange(len(spent)), most), samples.row)
    return others[sampled].mean(axis=0) if sampled.any() else None


def _function(
    samples: Samples, span: Mask, own: Mask, loss: float
) -> _Function | None:  # fmt: skip
    """The innermost function of the user's own with most of the time that is lost."""
    own = span & own
    rows = np.unique(samples.row[span])
    inside, own_ns = samples.shares_of(rows, own)
    time_ns = stats.sums(samples.row[span], samples.weight[span], 0)[rows]
    if time_ns.sum() < LEAST_NS:
        return None
    shares = inside * (own_ns / np.maximum(time_ns, 1.0))[:, None]
    usual = np.median(shares, axis=0)
    spent = stats.median(own_ns / np.maximum(time_ns, 1.0))
    fits = usual >= HALF * min(loss, spent)  # of few samples, a loss is easily too large
    fits &= (shares >= HALF * usual).mean(axis=0) >= MOST_RANKS
    fits &= [is_users(name) for name in samples.functions]
    if not fits.any():
        return None
    within = np.where(fits, usual, 0.0)
    carrying = np.flatnonzero(within >= CARRIES * within.max())
    at = int(carrying[np.argmax(samples.depth[carrying])])
    return _Function(samples.line_of(at, own), float(usual[at]))


def _found(job: Observed, part: waste.Stretch, function: _Function) -> Waste:
    loss = min(part.loss, function.share)
    where = short_frame(function.frame)
    who, whose = who_spend(job.line.ranks.tolist())
    says = f"{who} {percent(loss)} of {whose} steps in {where}"
    says += job.line.since(part.first)
    detail = (
        f"{function.frame} is in {percent(function.share)} of the samples, outside of all that "
        f"trains; the ranks' own code takes {part.lost_ns / 1e6:.1f} ms per step"
    )
    if function.grows_ns is not None:
        first_ms, last_ms = (one / 1e6 for one in function.grows_ns)
        says += f", and more and more: {first_ms:.1f} ms per step at first, {last_ms:.1f} ms by now"
        detail += "; it takes longer and longer, as if it went through all that came before again"
    return waste.found(
        job, UserCode.name, "code", part, loss, says, detail, function=function.frame
    )

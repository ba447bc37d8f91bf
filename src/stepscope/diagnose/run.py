"""The order of diagnosis: clean, align, look at the job, its ranks and what is stuck, decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from stepscope.diagnose.decide.by_kernels import kernel_verdicts
from stepscope.diagnose.decide.cost import Cost, accusable, what_if
from stepscope.diagnose.decide.culprits import find_culprits, in_common
from stepscope.diagnose.decide.join import Slow, joined
from stepscope.diagnose.decide.network import judge_network
from stepscope.diagnose.decide.on_path import with_path
from stepscope.diagnose.decide.symptoms import with_symptoms
from stepscope.diagnose.decide.verdict import (
    costs_enough,
    everyones_verdict,
    ranked,
    slow_finding,
    slow_verdict,
    stuck_verdict,
)
from stepscope.diagnose.detect import desync, hang
from stepscope.diagnose.detect import step_time as l1
from stepscope.diagnose.detect.gc_turns import find_turns
from stepscope.diagnose.detect.mismatch import find_mismatch
from stepscope.diagnose.detect.planned_pauses import expected
from stepscope.diagnose.detect.regression.shared import find_everyones
from stepscope.diagnose.detect.straggler_ranks import is_brief
from stepscope.diagnose.explain.idle_host import with_idle
from stepscope.diagnose.explain.kernels import with_kernels
from stepscope.diagnose.explain.pcie import with_link
from stepscope.diagnose.explain.reason import reason_of
from stepscope.diagnose.finding import (
    AnomalousWindow,
    Diagnosis,
    Finding,
    RankPhase,
    Skipped,
    Span,
    State,
    StepSeries,
    Verdict,
)
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.liveness import latest_stack
from stepscope.diagnose.overview.overview import last_arrivals, rank_times
from stepscope.diagnose.overview.own_cost import own_cost
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.device_steps import device_steps
from stepscope.diagnose.prepare.gauges import by_rank
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.stacks import Samples, read_samples
from stepscope.diagnose.views.timeline import WARM_UP_STEPS
from stepscope.window import Floats, Window

JITTER_COST = 0.02
"""Spikes that cost less than this share of all step time do not make a job jittery."""


MOSTLY = 0.5
"""A culprit that is slow for half of a rise is there for most of what it costs."""


@dataclass(frozen=True)
class Settings:
    """What to look for."""

    hangs: bool = True
    slowdowns: bool = True


def diagnose(window: Window, settings: Settings = Settings()) -> Diagnosis:
    """Everything wrong with the job in this window, and what could not be looked at."""
    window, dropped = clean(window)
    window, clocks, unaligned = align(device_steps(window))
    job = Observed(by_rank(window))
    stuck = _stuck(window) if settings.hangs else []
    slow = _slow(job) if settings.slowdowns else _Slow((), (), None)
    verdicts = ranked([*stuck, *(with_symptoms(job, with_path(job, one)) for one in slow.verdicts)])
    return Diagnosis(
        job_id=window.job.job_id,
        ranks=len(window.ranks),
        state=_state(slow, verdicts),
        steps=_steps(job),
        windows=_windows(job, slow, verdicts),
        verdicts=verdicts,
        clocks=clocks,
        skipped=(*dropped, *unaligned, *_skipped(job)),
        series=_series(job),
        rank_phases=tuple(_rank_phases(job)),
        rank_times=rank_times(job),
        latecomers=last_arrivals(job),
        losses=_losses(window),
        cost=own_cost(window),
    )


def find_hang(window: Window, settings: Settings = Settings()) -> Diagnosis | None:
    """Only whether the job hangs right now; cheap enough to ask several times a second."""
    if not settings.hangs:
        return None
    window, _ = clean(window)
    finding = hang.find_hang(window)
    if finding is None:
        return None
    verdict = stuck_verdict(window, finding)
    return Diagnosis(window.job.job_id, len(window.ranks), "hang", verdict.steps,
                     verdicts=(verdict,))  # fmt: skip


def _stuck(window: Window) -> list[Verdict]:
    """A mismatch explains the hang it causes. Flight recorders show both by order alone."""
    if desync.applies(window):
        return [_desynced(window, one) for one in desync.find_desync(window)]
    found = [find_mismatch(window), hang.find_hang(window)]
    kept = [one for one in found if one is not None]
    if len(kept) == 2 and kept[0].group == kept[1].group:
        kept = kept[:1]
    return [stuck_verdict(window, one) for one in kept]


def _desynced(window: Window, finding: Finding) -> Verdict:
    """Also who called another operator was last seen somewhere."""
    verdict = stuck_verdict(window, finding)
    stack = latest_stack(window, finding.ranks[0]) if finding.ranks else ()
    return replace(verdict, stack=stack)


@dataclass(frozen=True)
class _Slow:
    """What the step series and the ranks' own times say."""

    verdicts: tuple[Verdict, ...]
    spikes: tuple[int, ...]
    """Columns."""
    change: l1.Regression | None


def _slow(job: Observed) -> _Slow:
    line = job.line
    if not len(line.steps):
        return _Slow(tuple(kernel_verdicts(job)), (), None)
    samples = read_samples(job.window, line)
    culprits = accusable(job, find_culprits(job))
    cost = what_if(job, culprits)
    verdicts, kept = _named(job, samples, culprits, cost)
    network = judge_network(job, kept)
    verdicts += network.verdicts
    told = kernel_verdicts(job, {rank for one in verdicts for rank in one.ranks})
    verdicts += told
    series = line.job_period_ns[line.warm_up :]
    change = _moved(l1.regression(series), line.warm_up)
    # mostly all are kept, and what they cost is known
    mine = cost.lost_ns if len(kept) == len(culprits) else _lost_ns(job, kept)
    healed = line.job_period_ns - mine - network.lost_ns
    rest = _moved(l1.regression(healed[line.warm_up :], l1.SLIGHT_RISE), line.warm_up)
    named = {one.row for one in kept}
    everyone = find_everyones(job, samples, rest, named) if rest is not None else None
    links = network.verdicts if everyone is not None and everyone.cause == "network" else ()
    stretches = _stretches(job, kept, [*told, *links])
    if (
        everyone is not None
        and rest is not None
        and not _after_effect(everyone, len(line.steps) - rest.split, stretches)
    ):
        verdicts.append(everyones_verdict(job.window, everyone))
        change = change or rest
    turns = find_turns(job, named) if everyone is None else None
    if turns is not None:
        verdicts.append(everyones_verdict(job.window, turns))
    return _Slow(tuple(verdicts), _jitter(job, samples), change)


def _lost_ns(job: Observed, kept: Sequence[Suspect]) -> Floats:
    """What some culprits cost in each step."""
    return what_if(job, kept).lost_ns if kept else np.zeros(len(job.line.steps))


def _jitter(job: Observed, samples: Samples | None) -> tuple[int, ...]:
    """Columns of long steps that nothing explains, if they cost enough."""
    line = job.line
    series = line.job_period_ns[line.warm_up :]
    spikes = l1.jitter(series, line.steps[line.warm_up :], WARM_UP_STEPS - line.warm_up)
    odd = spikes.columns[~expected(job, samples, spikes.columns + line.warm_up)]
    lost_ns = float((series[odd] - spikes.baseline_ns).sum())
    costly = lost_ns >= JITTER_COST * float(np.nansum(series))
    return tuple(int(one) + line.warm_up for one in odd) if costly else ()


def _named(
    job: Observed, samples: Samples | None, culprits: Sequence[Suspect], cost: Cost
) -> tuple[list[Verdict], list[Suspect]]:
    """Verdicts on the culprits whose slowness costs the job something."""
    slow: list[Slow] = []
    reasons = [with_link(job, worst, with_kernels(job, worst, reason_of(job, samples, worst)))
               for worst in (one.at_its_worst for one in culprits)]  # fmt: skip
    for at, (one, reason) in enumerate(
        zip(culprits, in_common(job, culprits, reasons), strict=True)
    ):
        told = with_idle(job, samples, one.at_its_worst, reason)
        columns = frozenset(np.arange(len(job.line.steps))[one.columns].tolist())
        slow.append(Slow(slow_finding(job, one, told, cost, at), told.evidence, columns,
                         has_onset=bool(one.struck) or one.first > job.line.warm_up))  # fmt: skip
    costly = [one for one in joined(job.window, slow) if costs_enough(one.finding)]
    named = {rank for one in costly for rank in one.finding.ranks}
    kept = [one for one in culprits if int(job.line.ranks[one.row]) in named]
    return [slow_verdict(job.window, one) for one in costly], kept


def _after_effect(everyone: Finding, columns: int, stretches: Sequence[Span]) -> bool:
    """Whether something was slow for most of everyone's rise, which nothing of its own explains.

    A rank that is starved of its processor is also slow in its part of each transfer, which lasts
    longer for all: one cause, and one verdict. So is one of which kernels alone tell: nobody knows
    what each step would take without it. And what a slow link holds up, others wait for in
    transfers of their own, which seem to be slow everywhere.
    """
    shown = everyone.values.get("shown") is True
    slow = max((stop - first for first, stop in stretches), default=0)
    return not shown and slow >= MOSTLY * columns


def _stretches(job: Observed, kept: Sequence[Suspect], told: Sequence[Verdict]) -> list[Span]:
    """The columns of culprits, and of verdicts of which no row of the grid is known."""
    steps = [one.steps for one in told if one.steps is not None]
    ends = job.line.columns(np.array(steps, np.int64).ravel()).reshape(-1, 2)
    own = [(one.first, one.stop) for one in kept]
    return own + [(first, last + 1) for first, last in ends.tolist()]


def _moved(change: l1.Regression | None, columns: int) -> l1.Regression | None:
    if change is None:
        return None
    return replace(change, split=change.split + columns)


def _state(slow: _Slow, verdicts: tuple[Verdict, ...]) -> State:
    if any(verdict.kind == "hang" or _unfinished(verdict) for verdict in verdicts):
        return "hang"
    if slow.change is not None:
        return "both" if slow.spikes else "regression"
    if slow.spikes:
        return "jitter"
    return "slow" if any(verdict.kind == "slowdown" for verdict in verdicts) else "healthy"


def _unfinished(verdict: Verdict) -> bool:
    """Whether members that disagree are still in the operator."""
    return any(one.values.get("unfinished") is True for one in verdict.evidence)


def _windows(
    job: Observed, slow: _Slow, verdicts: tuple[Verdict, ...]
) -> tuple[AnomalousWindow, ...]:
    steps = job.line.steps
    found = [AnomalousWindow("jitter", (int(steps[a]), int(steps[b])))
             for a, b in _runs(slow.spikes)]  # fmt: skip
    if slow.change is not None:
        found.append(AnomalousWindow("regression", (int(steps[slow.change.split]), int(steps[-1]))))
    stuck = [verdict for verdict in verdicts if verdict.kind == "hang" and verdict.steps]
    found += [AnomalousWindow("hang", verdict.steps) for verdict in stuck if verdict.steps]
    if not found:
        found = [AnomalousWindow("slow", verdict.steps) for verdict in verdicts if verdict.steps]
    return tuple(sorted(found, key=lambda one: one.steps))


def _runs(columns: Sequence[int]) -> list[Span]:
    """Neighbouring columns as ranges, both ends included."""
    runs: list[Span] = []
    for column in columns:
        if runs and column == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], column)
        else:
            runs.append((column, column))
    return runs


def _steps(job: Observed) -> Span | None:
    steps = job.line.steps
    return (int(steps[0]), int(steps[-1])) if len(steps) else None


def _series(job: Observed) -> StepSeries:
    period = np.nan_to_num(job.line.job_period_ns)
    return StepSeries(tuple(map(int, job.line.steps)), tuple(map(int, period)))


def _rank_phases(job: Observed) -> Iterator[RankPhase]:
    """Of ranks and phases that have a median, its whole nanoseconds."""
    for phase, own in zip(job.own.phases, job.own.own, strict=True):
        medians = stats.row_medians(own[:, job.line.warm_up :])
        known = np.isfinite(medians)
        ranks, times = job.line.ranks[known].tolist(), medians[known].astype(np.int64).tolist()
        yield from map(RankPhase, ranks, repeat(phase), times)


def _losses(window: Window) -> dict[str, int]:
    table = window.table("losses")
    if table is None:
        return {}
    names, rows = table.strings("table"), table.ints("rows")
    return {name: int(rows[names.equals(name)].sum()) for name in names.values
            if names.equals(name).any()}  # fmt: skip


NEEDS = {
    "argus-l1": ("steps",),
    "argus-l2": ("phases",),
    "arrival": ("comm_ops",),
    "hang": ("comm_ops",),
    "stacks": ("stacks",),
    "processor": ("hardware",),
    "pauses": ("pauses",),
}
"""Tables without which a method has nothing to look at."""


def _skipped(job: Observed) -> list[Skipped]:
    if desync.applies(job.window):
        return [Skipped("all but desync", "dumps tell what was called, not how long steps took")]
    found = list(job.own.skipped)
    for method, tables in NEEDS.items():
        missing = [name for name in tables if job.window.table(name) is None]
        if missing and not (method == "pauses" and job.pauses is not None):
            found.append(Skipped(method, f"no table {', '.join(missing)}"))
    if len(job.line.ranks) < 2:
        method = "brief" if is_brief(job) else "argus-l2"
        found.append(Skipped(method, "one rank has no peers"))
    return found

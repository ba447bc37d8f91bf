"""The order of diagnosis: prepare, detect, explain, decide, and put into words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose import registry
from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.candidates import considered
from stepscope.diagnose.decide.confidence import with_confidence
from stepscope.diagnose.decide.ledger import ledger
from stepscope.diagnose.decide.on_path import with_path, with_symptoms
from stepscope.diagnose.decide.opinions import with_opinions
from stepscope.diagnose.decide.since_baseline import advised, with_those_alone
from stepscope.diagnose.decide.state import Found
from stepscope.diagnose.decide.undecided import undecided
from stepscope.diagnose.decide.unseen import (
    as_suspects_of_calls,
    of_one_rank,
    reworded,
    unrecorded,
    waiting_for_absent,
    worded,
)
from stepscope.diagnose.decide.verdict import ranked, verdict_of, with_loss
from stepscope.diagnose.detect.steps.duties import pauses_of_all, planned_steps
from stepscope.diagnose.detect.steps.periods import periods
from stepscope.diagnose.detect.stuck import desync, hang, vanished
from stepscope.diagnose.finding import Diagnosis, Finding, Skipped, Slowdown, Stuck, Verdict
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.overview.compared import compared
from stepscope.diagnose.overview.overview import (
    functions,
    last_arrivals,
    limits,
    rank_phases,
    rank_times,
    with_periods,
)
from stepscope.diagnose.overview.recorders import losses, not_recorded, own_cost
from stepscope.diagnose.prepare import blocking_calls
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.device_steps import device_steps
from stepscope.diagnose.prepare.gauges import by_rank
from stepscope.diagnose.prepare.profiled import without_profiled
from stepscope.diagnose.search import Search
from stepscope.diagnose.settings import DEFAULT, Settings
from stepscope.diagnose.shown import NO_SERIES, ClockFit, Ledger, StepSeries
from stepscope.diagnose.views.after_baseline import after_baseline
from stepscope.diagnose.views.asynchronous import step_ns
from stepscope.window import Floats, Ints, Window, numbered


def diagnose(window: Window, settings: Settings = DEFAULT, in_place: bool = False) -> Diagnosis:
    """Everything wrong with the job in this window, and what could not be looked at.

    Args:
        in_place: its columns may be overwritten, so that it cannot be used any more.
    """
    given = _prepared(window, settings, in_place)
    del window  # nobody else may hold it, and it is as large as what was made of it
    found = _diagnose(given, settings)
    if settings.baseline is None:
        return found
    return with_those_alone(found, _diagnose(given, replace(settings, baseline=None)))


@dataclass(frozen=True)
class _Prepared:
    """A job on one clock, and what was left out of it."""

    window: Window
    job: Observed
    """Without profiled steps."""
    clocks: tuple[ClockFit, ...]
    unread: tuple[Skipped, ...]
    profiled: tuple[Skipped, ...]
    is_log: bool
    """Whether only calls were recorded."""


def _prepared(window: Window, settings: Settings, in_place: bool = False) -> _Prepared:
    window, dropped = clean(window)
    window, clocks, unaligned = align(device_steps(window), in_place)
    window, unread = by_rank(window), (*dropped, *unaligned)
    unprofiled, profiled = without_profiled(window)
    is_log = blocking_calls.is_log(dropped)
    job = Observed(unprofiled, settings.expected, not is_log)
    return _Prepared(window, job, clocks, unread, profiled, is_log)


def _diagnose(given: _Prepared, settings: Settings) -> Diagnosis:
    """Of the job alone, or of the job and the healthy steps before it as if they were one."""
    window, clocks, job = given.window, given.clocks, given.job
    unread, profiled = given.unread, given.profiled
    after, healthy = job, None
    if settings.baseline is not None:
        healthy = _prepared(settings.baseline, settings).job.window
        after = replace(job, window=after_baseline(job.window, healthy))
    methods = settings.methods
    found = Search(after.comparable, after, registry.chosen(methods),
                   registry.explanations(methods))  # fmt: skip
    if registry.are_published(found.detectors):
        only = _as_published(found, job, settings)
        return replace(only, clocks=clocks, skipped=(*unread, *profiled, *only.skipped))
    with_profiled = Observed(window).comparable if profiled else None
    found.look_for_hangs(with_profiled or (found.job if after is job else job.comparable))
    found.look_for_slowness()
    times, series = rank_times(job), _series_of(job.line.steps, job.line.job_period_ns)
    if given.is_log:
        found.blamed = as_suspects_of_calls(after, found.blamed)
    verdicts = _verdicts(after, found, series, len(window.ranks))
    absent = unrecorded(job)
    if absent or len(window.ranks) == 1:
        verdicts = tuple(reworded(one, worded if absent else of_one_rank) for one in verdicts)
    verdicts, recurring = with_periods(verdicts, periods(job))
    state = _known(found).state
    known = _ledger(job, series, verdicts, _slowed_by_culprits(after, found.blamed))
    unaccounted = ""
    if state == "healthy":
        unaccounted = (found.undecided or undecided(job, known)
                       or blocking_calls.undecided(window, unread))  # fmt: skip
    elif absent and (waiting := waiting_for_absent(job, verdicts)):
        absent = f"{absent}; {waiting}"
    return replace(
        _outline(window, found, settings, series, verdicts),
        state="unknown" if unaccounted else state,
        clocks=clocks,
        skipped=(*unread, *profiled, *not_recorded(window), *_skipped(job, found)),
        rank_phases=tuple(rank_phases(job)),
        rank_times=times,
        limits=limits(job, times),
        last_arrivals=last_arrivals(job),
        functions=functions(job),
        periods=recurring,
        candidates=considered(after, verdicts, found.let_go, settings.explain, bool(absent)),
        ledger=known,
        unaccounted=unaccounted,
        unrecorded=absent,
        compared=None if healthy is None else compared(after, healthy),
    )


def _outline(
    window: Window, found: Search, settings: Settings, series: StepSeries,
    verdicts: tuple[Verdict, ...],
) -> Diagnosis:  # fmt: skip
    """What is said of a job whatever methods ran."""
    known_as = _known(found)
    return Diagnosis(
        job_id=window.job.job_id,
        ranks=len(window.ranks),
        state=known_as.state,
        steps=(series.steps[0], series.steps[-1]) if series.steps else None,
        windows=known_as.windows(verdicts),
        verdicts=verdicts,
        series=series,
        hosts=tuple(host.name for host in window.job.hosts),
        methods=settings.methods,
        losses=losses(window),
        cost=own_cost(window),
    )


def _as_published(found: Search, job: Observed, settings: Settings) -> Diagnosis:
    """What published forms find, with nothing of what is added to the verdicts of the default: an
    overview of ten thousand ranks takes longer than a search among them."""
    found.look_as_published()
    after, window = found.recorded, job.window
    series = _series_of(job.line.steps, job.line.job_period_ns)
    verdicts = ranked([with_loss(verdict_of(window, one), len(window.ranks), series)
                       for one in found.blamed])  # fmt: skip
    outline = _outline(window, found, settings, series, verdicts)
    is_healthy = outline.state == "healthy"
    return replace(
        outline,
        state="unknown" if is_healthy else outline.state,
        skipped=tuple(found.skipped),
        candidates=considered(after, verdicts, found.let_go, settings.explain, False),
        unaccounted=found.undecided if is_healthy else "",
    )


def find_hang(window: Window) -> Diagnosis | None:
    """Only whether the job hangs right now; cheap enough to ask several times a second."""
    window, _ = clean(window)
    finding = (vanished.find_vanished(window) or vanished.find_fatal_mismatch(window)
               or hang.find_hang(window))  # fmt: skip
    if finding is None:
        return None
    verdict = with_loss(verdict_of(window, finding), len(window.ranks), NO_SERIES)
    return Diagnosis(window.job.job_id, len(window.ranks), "hang", verdict.steps,
                     verdicts=(verdict,))  # fmt: skip


def _verdicts(
    job: Observed, found: Search, series: StepSeries, ranks: int
) -> tuple[Verdict, ...]:  # fmt: skip
    """Verdicts, ranked, with what they cost and what other methods say; slow ranks with their part
    of the critical path and with symptoms."""
    stuck = [verdict_of(job.window, one) for one in found.blamed if isinstance(one, Stuck)]
    slow = [verdict_of(job.window, one) for one in found.blamed if not isinstance(one, Stuck)]
    verdicts = ranked([*stuck, *(with_symptoms(job, with_path(job, one)) for one in slow)])
    if job.line.first_own:
        verdicts = tuple(advised(job.line, one) for one in verdicts)
    costing = tuple(with_loss(one, ranks, series) for one in verdicts)
    return with_confidence(job, with_opinions(job, costing, [*found.blamed, *found.let_go]))


def _ledger(
    job: Observed, series: StepSeries, verdicts: Sequence[Verdict], slowed: frozenset[int]
) -> Ledger | None:  # fmt: skip
    """Args:
    slowed: steps that were long because of somebody with a verdict.
    """
    if job.asynchronous:
        series = _series_of(job.line.steps, step_ns(job.line))
    planned = planned_steps(job)
    kind = numbered(job.cycle.kind, job.work.stages)
    return ledger(series, job.line.warm_up, verdicts, planned - slowed, kind,
                  pauses_of_all(job, planned & slowed))  # fmt: skip


def _known(found: Search) -> Found:
    """What the job is called, by what was found."""
    by_window = frozenset(detector.name for detector in registry.PROFILED)
    return Found(found.job.line, found.blamed, found.unsteady, by_window)


def _slowed_by_culprits(job: Observed, blamed: Sequence[Finding]) -> frozenset[int]:
    """Steps that were long because of a rank with a verdict, and the ones after them, which no
    schedule of the job excuses."""
    at = {column + more for one in blamed if isinstance(one, Slowdown) and one.spikes
          for column in one.columns for more in (0, 1)}  # fmt: skip
    return frozenset(int(job.line.steps[column]) for column in at if column < len(job.line.steps))


def _series_of(steps: Ints, took_ns: Floats) -> StepSeries:
    return StepSeries(tuple(map(int, steps)), tuple(map(int, np.nan_to_num(took_ns))))


def _skipped(job: Observed, found: Search) -> Iterator[Skipped]:
    """What could not run, and which table, column or metric it lacked."""
    if desync.applies(job.window):
        yield Skipped("all but desync", "dumps tell what was called, not how long steps took")
        return
    yield from job.own.skipped
    missing = {one.method: one for one in found.skipped}
    needs = [(one.name, one.needs) for one in found.explanations]
    for name, needed in (*needs, (rules.LAST_ARRIVAL.name, rules.LAST_ARRIVAL.needs)):
        if why := needed.missing(job.window):
            missing.setdefault(name, Skipped(name, why, unrecorded=True))
    yield from missing.values()

"""Slow steps that come back at regular distances: how often, at what cost, and from what source.

Fault: a job that loses time every so many steps (checkpoints, evaluation, full collections of
garbage) or every so many seconds (timers of the host, such as cron).
Paper: KAIR (Yang et al.), section III-B, "frequency-based visualization", shows how often operators
occur over time and leaves the reading to people. It has no rule; this one is ours.
What differs: distances are fitted in steps and in seconds, and judged against slow steps at random
places (`numeric.combs`); the source is named only from what was recorded in these steps
(`source_of`). The source is, in this order, the first that applies: a phase that saves, evaluates
or loads and has most of the excess; pauses for garbage collection; functions on the stacks; a
compiler's operators; other processes on the processors or GPUs; waiting for a processor, which the
kernel counts, though others are as busy at all times. Each is compared with the steps between the
slow ones. A distance alone names nothing: a minute may be a timer of the job as well as cron's.
Every diagnosis shows the periods it finds beside the verdicts: a checkpoint accuses nobody, what
has a culprit already has its verdict, and what costs a tenth of the time gets one
(`recurring_loss`).
Cost: a running median per series; 40 ms for a series of 4,000 steps with 400 slow ones; for the
source one pass over the stacks, and two means of a counter per event.
Cannot see: fewer than five slow steps; distances below three steps; moments that wander; what no
recorder looked at: then the source is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stepscope.diagnose.detect.steps.recurring import Recurrent, recurring, rise
from stepscope.diagnose.finding import Cause, Span
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import is_beside_training, loads, saves
from stepscope.diagnose.shown import Period, Source
from stepscope.diagnose.thresholds import HALF, OTHER_PROCESSES
from stepscope.diagnose.views.frames import LOADER, collects, compiles
from stepscope.diagnose.views.stacks import LEAST_NS, LEAST_SHARE, SAMPLE_NS, SURE_SIGMAS, Samples
from stepscope.diagnose.words import periods as words
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints, Mask

ONE_MORE = 0.5
"""Processes that compute on a rank's GPU in the slow steps beyond those between: seen in half of
them. Our choice."""
CROWDED = 0.25
"""Share of a host's processors, as in `explain.cpu`. Our simulator."""
MOSTLY = 0.75
"""Part of the excess for which ranks wait for a processor: on a machine where they always wait for
half of their time, half of anything is such waiting. Our choice."""
EVIDENCE = "periods"
"""What verdicts call the evidence of a period."""
CAUSES: Mapping[Source, Cause] = {
    "checkpoint": "code",
    "evaluation": "code",
    "garbage collection": "gc",
    "compilation": "jit_compile",
    "data loading": "data_loading",
    "NCCL heartbeat": "host",
    "other processes": "contention",
    "busy processors": "contention",
    "too few processors": "host",
    "other processes on GPUs": "contention",
    "a function": "code",
    "unknown source": "unknown",
}


class Named(NamedTuple):
    """A source with its evidence."""

    source: Source
    because: str
    function: str | None = None


UNKNOWN = Named("unknown source", "nothing recorded shows what happens in these steps")


def source_of(job: Observed, found: Recurrent) -> Named:
    """The likely source of recurring slow steps."""
    return next(iter(_sources(job, found)), UNKNOWN)


def _sources(job: Observed, found: Recurrent) -> Iterator[Named]:
    yield from _by_phase(found)
    yield from _by_pauses(job, found)
    yield from _by_stacks(job, found)
    yield from _by_operators(job, found)
    yield from _by_processes(job, found)
    yield from _by_run_delay(job, found)


def _by_phase(found: Recurrent) -> Iterator[Named]:
    detail = f"phase {found.phase} has most of the excess"
    if saves(found.phase):
        yield Named("checkpoint", detail)
    elif is_beside_training(found.phase):
        yield Named("evaluation", detail)
    elif found.phase is not None and loads(found.phase):
        yield Named("data loading", detail)


def _by_pauses(job: Observed, found: Recurrent) -> Iterator[Named]:
    """In each step the longest pause of any rank counts, because all wait for it."""
    if job.pauses is None:
        return
    rows = np.array(found.rows or range(len(job.line.ranks)))
    longest = job.pauses[rows].max(axis=0)[None]
    paused = float(rise(longest, found)[0])
    if paused >= HALF * found.excess_ns:
        part = percent(paused / found.excess_ns)
        yield Named("garbage collection", f"pauses for garbage collection are {part} of the excess")


NAMES: Mapping[Source, Callable[[str], bool]] = {
    "checkpoint": lambda name: _called(name).startswith(("save", "_save")),
    "evaluation": lambda name: _called(name).startswith(("evaluat", "validat")),
    "garbage collection": collects,
    "compilation": compiles,
    "NCCL heartbeat": lambda name: "heartbeat" in name.lower(),
    "data loading": lambda name: LOADER in name,
}
"""By the names of functions. `checkpoint` alone would be activation checkpointing."""


def _called(function: str) -> str:
    """`Trainer.save_model (trainer.py)` is called `save_model`."""
    return function.split(" ", 1)[0].rpartition(".")[2].lower()


def _by_stacks(job: Observed, found: Recurrent) -> Iterator[Named]:
    samples = job.samples
    if samples is None:
        return
    column = job.line.column_at(samples.time_ns)
    own = np.isin(samples.row, found.rows) if found.rows else np.ones(column.size, np.bool_)
    inside, between = own & np.isin(column, found.columns), own & np.isin(column, found.usual)
    needed = _needed_gain(job, samples, found, inside)
    if needed is None or not between.any():
        return
    for source, wanted in NAMES.items():
        now, before = (samples.part(samples.within(wanted), chosen) for chosen in (inside, between))
        if now - before >= needed:
            yield Named(source, f"stacks show it in {percent(now)} of these steps' time, and in "
                        f"{percent(before)} between them")  # fmt: skip
    (now_of, _), (before_of, _) = samples.working(inside), samples.working(between)
    at = samples.deepest(now_of - before_of)
    if at is not None and now_of[at] - before_of[at] >= needed:
        frame = samples.line_of(at, inside)
        yield Named("a function", f"{samples.functions[at]} takes {percent(float(now_of[at]))} of "
                    f"these steps' time, and {percent(float(before_of[at]))} between them",
                    samples.caller_of(frame, inside) or frame)  # fmt: skip


def _by_operators(job: Observed, found: Recurrent) -> Iterator[Named]:
    """A trace without stacks shows a compiler as operators, which torch names after its parts."""
    operators = job.window.table("host_ops")
    if operators is None:
        return
    names = operators.strings("name")
    of_compiler = names.equals(*filter(compiles, names.values))
    cells = np.where(of_compiler, job.line.cells(operators), -1)
    compiled = job.line.sums(cells, operators.ints("duration_ns"))
    part = float(rise(compiled.max(axis=0)[None], found)[0]) / found.excess_ns
    if part >= HALF:
        yield Named("compilation", f"operators of a compiler are {percent(part)} of the excess")


def _needed_gain(job: Observed, samples: Samples, found: Recurrent, inside: Mask) -> float | None:
    """The share of the time that a function must gain; None: too few samples to tell."""
    time_ns = float(samples.weight[inside].sum())
    if time_ns < LEAST_NS:
        return None
    events, steps = len(found.runs), found.columns.size / len(found.runs)
    share = found.excess_ns / (found.excess_ns + steps * job.line.typical_ns)
    count = max(time_ns / SAMPLE_NS / max(np.unique(samples.row[inside]).size, 1), events, 1)
    return max(HALF * share, LEAST_SHARE, SURE_SIGMAS * float(np.sqrt(share * (1 - share) / count)))


def _by_processes(job: Observed, found: Recurrent) -> Iterator[Named]:
    """Processes outside the job that run during the slow steps and not halfway between them."""
    rows = np.array(found.rows or range(len(job.line.ranks)))
    inside = _samples(job, "stranger_cpu_util", rows, found, 0)
    cores = inside - _samples(job, "stranger_cpu_util", rows, found, 1)
    if cores >= OTHER_PROCESSES:
        yield Named("other processes", f"other processes use {inside:.1f} cores of the same "
                    f"processors in these steps, and {cores:.1f} fewer between them")  # fmt: skip
    crowded = _host_use(job, found)
    if crowded >= CROWDED:
        yield Named("other processes", f"{percent(crowded)} more of the host's processors are in "
                    "use in these steps than between them")  # fmt: skip
    more = _samples(job, "gpu_strangers", rows, found, 0)
    more -= _samples(job, "gpu_strangers", rows, found, 1)
    if more >= ONE_MORE:
        yield Named("other processes on GPUs", "in these steps, and not between them, other "
                    "processes compute on the same devices")  # fmt: skip


def _by_run_delay(job: Observed, found: Recurrent) -> Iterator[Named]:
    """Ranks that wait for a processor for most of the excess: for the one that waits longest, all
    others wait. Other processes need not use more then than between these steps."""
    rows = np.array(found.rows or range(len(job.line.ranks)))
    usual = stats.median(_mean(job, "run_delay", rows, _spans(found, 1))) * job.line.typical_ns
    share = [np.nan_to_num(job.hardware("run_delay", *span)[rows]).max(initial=0.0)
             for span in _spans(found, 0)]  # fmt: skip
    lasted = [float(np.nansum(job.period_ns[run])) for run in found.runs]
    waited = float(np.dot(share, lasted)) - usual * found.columns.size
    part = waited / len(found.runs) / found.excess_ns
    if part < MOSTLY:
        return
    detail = f"waiting for a processor is {percent(min(part, 1.0))} of the excess"
    first, stop = int(found.runs[0][0]), int(found.runs[-1][-1]) + 1
    taken = stats.median(job.hardware("stranger_cpu_util", first, stop)[rows])
    if taken >= OTHER_PROCESSES:
        yield Named("busy processors", f"{detail}; other processes use {taken:.1f} cores of the "
                    "same processors, in these steps as in others")  # fmt: skip
    else:
        yield Named("too few processors", detail)


def _samples(job: Observed, metric: str, rows: Ints, found: Recurrent, halfway: int) -> float:
    """The mean of a counter over the events, or halfway between them; times without a sample count
    as 0."""
    return float(_mean(job, metric, rows, _spans(found, halfway)).mean())


def _mean(job: Observed, metric: str, rows: Ints, spans: Sequence[Span]) -> Floats:
    """A counter of each rank, as its mean over all spans; those without a sample count as 0."""
    each = [np.nan_to_num(job.hardware(metric, *one)[rows]) for one in spans]
    return np.asarray(np.mean(each, axis=0))


def _spans(found: Recurrent, halfway: int) -> list[tuple[int, int]]:
    if not halfway:
        return [(int(run[0]), int(run[-1]) + 1) for run in found.runs]
    begins = np.array([run[0] for run in found.runs])
    between = (begins[:-1] + begins[1:]) // 2
    return [(int(one), int(one) + 1) for one in between]


def _host_use(job: Observed, found: Recurrent) -> float:
    """How much more of the affected host is in use, beyond other hosts and its own ranks' use."""
    ranks = job.line.ranks_of(found.rows)
    hosts = {host for rank in ranks if (host := job.window.host_of(rank)) is not None}
    now, before = (_of_hosts(job, found, halfway) for halfway in (0, 1))
    more = {host: now[host] - before[host] for host in now.keys() & before.keys()}
    others = [value for host, value in more.items() if host not in hosts]
    rows = np.array(found.rows, np.int64)
    if not others or not rows.size:
        return 0.0
    own = _samples(job, "cpu_util", rows, found, 0) - _samples(job, "cpu_util", rows, found, 1)
    most = max((more[host] for host in hosts & more.keys()), default=0.0)
    return 0.0 if own >= OTHER_PROCESSES else most - stats.median(np.array(others))


def _of_hosts(job: Observed, found: Recurrent, halfway: int) -> dict[str, float]:
    means: dict[str, list[float]] = {}
    for first, stop in _spans(found, halfway):
        for host, value in job.of_hosts("cpu_util", first, stop).items():
            means.setdefault(host, []).append(value)
    return {host: stats.median(np.array(values)) for host, values in means.items()}


def periods(job: Observed) -> tuple[Period, ...]:
    """All periods that a job's steps show, the costliest first."""
    found = [_period(job, one) for one in recurring(job)]
    return tuple(sorted(found, key=lambda one: -one.lost_fraction))


def _period(job: Observed, one: Recurrent) -> Period:
    source, comb = source_of(job, one), one.comb
    ranks = job.line.ranks_of(one.rows)
    hosts = dict.fromkeys(host for rank in ranks if (host := job.window.host_of(rank)) is not None)
    scales = (1.0, 1e9) if comb.unit == "steps" else (1e9, 1.0)
    at = tuple(int(job.line.steps[run[0]]) for run in one.runs)
    found = Period(
        unit=comb.unit, every=comb.distance / scales[0],
        either=None if comb.either is None else comb.either / scales[1],
        hits=len(at), slots=comb.slots, chance=float(np.exp(comb.log_chance)),
        steps=(at[0], at[-1]), at=at, excess_ns=one.excess_ns, lost_fraction=one.lost_fraction,
        ranks=ranks, hosts=tuple(hosts), phase=one.phase, kernel=one.kernel,
        function=source.function, source=source.source, because=source.because,
    )  # fmt: skip
    return replace(found, says=words.summary(found), advice=words.advice(found))

"""Time that every rank of a job spends at once beside training: how much, and in which steps.

All ranks leave a step together, so what each of them spends, all lose: the least of any rank. Every
job has a little of it, so it has no right level; it must cost clearly more than is ordinary
(`account.belief`), or be there in a part of the steps alone.
Cost: two cumulative sums over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.account.belief import likely, odds, unusual_bits
from stepscope.diagnose.finding import Cause, Span, Waste
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import Spans, axis_over, union_of_rows
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.prepare.communication import communicates, loads
from stepscope.diagnose.thresholds import FAST
from stepscope.diagnose.views.unnamed import uncovered
from stepscope.window import NULL, Floats, Ints, Mask, Table, union

WITHIN = 5
"""Steps that are looked at together. Our simulator."""
LONGER = 1.2
"""A step that takes this many times as long as its neighbours does not show what is usual. Measured
on real data (the lab's evaluations take 0.4 of a step)."""

ALIKE = 0.5
"""Steps beside the stretch have clearly less if it is less than half: of one function with the same
part of all steps, sampled a few times per second, the stretch that was chosen had up to twice the
others' share. Measured on real data (6 jobs)."""
SIGMAS = 3.0
"""And by so many standard deviations of all steps: on a crowded host every eighth step takes 1.2
times as long as its neighbours, and none of them saves or evaluates. Statistics."""


@dataclass(frozen=True)
class Stretch:
    """The steps in which all ranks spend most time beside training."""

    first: int
    stop: int
    lost_ns: float
    """Per step, beyond what is spent in the other steps."""
    loss: float
    """The same as a share of these steps."""
    bits: float
    """Evidence that it is more than the usual."""


def by_all(own: Floats) -> Floats:
    """The time that every rank spends in each step, i.e. the least of any; from `[rank, step]`."""
    return np.asarray(np.fmin.reduce(own, axis=0, initial=np.nan))


@once
def idle_of_devices(job: Observed) -> Floats | None:
    """How long each device runs no kernel, `[rank, step]`; None where nothing shows it.

    A job without devices computes on its hosts: whatever these do beside training is lost. Without
    kernels, phases show it where they are those of devices.
    """
    kernels = job.window.table("kernels")
    if kernels is not None:
        return _beside(job, kernels, lambda rows: np.ones(len(rows), np.bool_))
    if job.has_devices:
        return _between_phases(job)
    return np.full(job.line.shape, np.inf)


def _between_phases(job: Observed) -> Floats | None:
    """How long no device phase runs; None where phases may be those of hosts.

    Phases are those of devices by contract, unless they come with the processor time of their
    threads. That they are is believed where they contain communication, or where operators were
    seen on devices as well: collectors of hosts record calls only.
    """
    phases = job.window.table("phases")
    if phases is None:
        return None
    names = phases.strings("phase").values
    if not phases.has("host_start_ns") and (
        phases.has("cpu_ns") or not (job.sees_devices or any(map(communicates, names)))
    ):
        return None
    return _beside(job, phases, _of_devices)


def _of_devices(phases: Table) -> Mask:
    """Which phases are those of devices."""
    names = phases.strings("phase")
    of_device = ~names.equals(*filter(loads, names.values))
    if phases.has("host_start_ns"):
        of_device &= phases.ints("host_start_ns") != NULL
    return of_device


def _beside(job: Observed, table: Table, counts: Callable[[Table], Mask]) -> Floats | None:
    """The time of each rank and step beside the rows that count; None where none does.

    A few ranks at a time: the times of all rows at once take 0.4 GB at ten thousand ranks.
    """

    def spans(part: Table) -> Spans:
        start = part.ints("start_ns")
        return start, start + part.ints("duration_ns"), counts(part)

    line = job.line
    edges = [edge for _, part in table.parts() for edge in _edges(*spans(part))]
    if not edges:
        return None
    known = (line.start_ns != NULL) & np.isfinite(line.period_ns)
    starts, lasted = line.start_ns[known], line.period_ns[known].astype(np.int64)
    axis = axis_over(len(line.ranks), np.array(edges), starts, starts + lasted)
    if axis is None:
        return np.full(line.period_ns.shape, np.nan)
    idle = uncovered(line, axis, union_of_rows(axis, line.rows, table, spans))
    return np.where(idle < line.period_ns - 1, idle, np.nan)  # of whole steps nothing was recorded


def left_of_steps(job: Observed) -> Floats | None:
    """What remains of each rank's steps beside their phases other than loading, `[rank, step]`;
    None if unknown.

    Wherever these lie: a device that is behind its host works on a step during the next one, which
    may not have been recorded. But what a step gives to do has to be done within one step time.
    """
    phases, line = job.window.table("phases"), job.line
    if phases is None:
        return None
    cell, begin, lasted = line.cells(phases), phases.ints("start_ns"), phases.ints("duration_ns")
    known = _of_devices(phases) & (cell >= 0)
    cell, begin, end = cell[known], begin[known], (begin + lasted)[known]
    axis = axis_over(line.period_ns.size, begin, end)
    if axis is None:
        return None
    busy = union(axis.at(cell, begin), axis.at(cell, end))
    first = np.arange(line.period_ns.size) * axis.span_ns
    worked = busy.within(first, first + axis.span_ns - 1).reshape(line.shape)
    return np.maximum(line.period_ns - worked, 0.0)


def _edges(start: Ints, end: Ints, counts: Mask) -> Iterator[int]:
    """The first start and the last end of the rows that count."""
    if counts.any():
        yield int(start[counts].min())
        yield int(end[counts].max())


def stretch(
    job: Observed, spent: Floats, ordinary: float, planned: bool = True, blur_ns: float = 0.0
) -> Stretch | None:
    """The steps in which the job spends most beyond the ordinary share; None if there are none.

    Args:
        spent: by all ranks in each step, in ns.
        planned: whether what makes a single step long may be planned.
        blur_ns: how far what was spent may have been counted from where it was: steps that are as
            near to a single long one do not count either.
    """
    skip = job.line.warm_up
    share = _shares(job, spent, planned, blur_ns)
    if np.isfinite(share).sum() < WITHIN:
        return _whole(share, skip, ordinary) if job.line.is_trace else None
    worst = stats.worst_stretch(_over_neighbours(share, np.nanmean)[None], ordinary)
    first, stop = int(worst.first[0]), int(worst.stop[0])
    if stop - first < WITHIN or worst.mean[0] <= ordinary:
        return None
    first, stop = _unlike(share, *_sharpened(share, first, stop))
    change = _bits_of_change(*_divided(share, first, stop), later=first > 0)
    if change <= 0:  # nothing says that the other steps differ
        first, stop = 0, share.size
    loss = _loss(share, first, stop)
    if loss <= ordinary:
        return None
    part = Stretch(first + skip, stop + skip, 0.0, loss, max(change, unusual_bits(loss, ordinary)))
    return costing(job, part, loss)


def _whole(share: Floats, skip: int, ordinary: float) -> Stretch | None:
    """All steps of a recording with too few of them to compare some with others; None if some are
    unknown, or if they lose no more than is ordinary."""
    if not share.size or not np.isfinite(share).all():
        return None
    loss = float(share.mean())
    bits = unusual_bits(loss, ordinary)
    return Stretch(skip, skip + share.size, 0.0, loss, bits) if loss > ordinary else None


def costing(job: Observed, part: Stretch, loss: float) -> Stretch:
    """The same steps with another loss."""
    lost_ns = loss * stats.median(job.line.job_period_ns[part.first : part.stop])
    return replace(part, loss=loss, lost_ns=lost_ns)


def loss_of(job: Observed, spent: Floats, part: Stretch) -> float:
    """What is spent in a stretch beyond the other steps, as a share of its steps."""
    skip = job.line.warm_up
    return _loss(_shares(job, spent, True, 0.0), part.first - skip, part.stop - skip)


def measured(job: Observed, part: Stretch, loss: float) -> float:
    """A loss in a stretch, by how much longer its steps are than the fast ones beside it.

    It is no more than that; and if it explains most of that it is all of it, because one delay may
    hide another. As it was where too few steps lie beside the stretch.
    """
    inside, outside = _sides(job, part)
    if outside.size < WITHIN:
        return loss
    level = max(stats.median(inside), 1.0)
    rise = max(level - float(np.quantile(outside, FAST)), 0.0) / level
    return rise if loss >= ALIKE * rise else loss


def _sides(job: Observed, part: Stretch) -> tuple[Floats, Floats]:
    """How long the steps of a stretch took, and those beside it."""
    period = job.line.job_period_ns
    outside = np.concatenate((period[job.line.warm_up : part.first], period[part.stop :]))
    return period[part.first : part.stop], outside[np.isfinite(outside)]


def is_symptom(job: Observed, part: Stretch, loss: float) -> bool:
    """Whether steps of a stretch are longer than the others by more than twice a loss: then all
    that ranks do takes longer meanwhile, as on a busy machine."""
    inside, outside = _sides(job, part)
    if outside.size < WITHIN:
        return False
    level = max(stats.median(inside), 1.0)
    return loss < ALIKE * (level - stats.median(outside)) / level


def _loss(share: Floats, first: int, stop: int) -> float:
    inside, outside = _divided(share, first, stop)
    usual = float(np.nanmean(outside)) if np.isfinite(outside).any() else 0.0
    return float(np.nanmean(inside)) - usual


def _shares(job: Observed, spent: Floats, planned: bool, blur_ns: float) -> Floats:
    """What is spent in each judged step, as a share of it, at most all of it: a rank may take
    longer in a step than the others; NaN in long ones."""
    skip = job.line.warm_up
    period = job.line.job_period_ns[skip:]
    share = np.minimum(spent[skip:] / np.maximum(period, 1.0), 1.0)
    return np.where(_beside_pauses(job, period, blur_ns), share, np.nan) if planned else share


def _beside_pauses(job: Observed, period: Floats, blur_ns: float) -> Mask:
    """Steps that are neither long nor near to a long one; of a short cycle those of short kinds."""
    levels = job.cycle.levels(job.line.job_period_ns)[job.line.warm_up :]
    usual = _usual(period) & (levels < LONGER * levels.min(initial=np.inf))
    return _away(~usual, blur_ns / max(job.line.typical_ns, 1.0))


def _sharpened(share: Floats, first: int, stop: int) -> Span:
    """The stretch without steps at its ends that have clearly less: it was found among means of
    neighbours, which reach half of their number beyond it."""
    known = np.flatnonzero(share[first:stop] >= ALIKE * float(np.nanmean(share[first:stop])))
    begin = min(int(known[0]), WITHIN // 2)
    end = max(int(known[-1]) + 1, stop - first - WITHIN // 2)
    return (first + begin, first + end) if end - begin >= WITHIN else (first, stop)


def _unlike(share: Floats, first: int, stop: int) -> Span:
    """The stretch, and the steps before and after it unless their share is clearly less.

    The stretch was chosen for its share, and of steps that got longer by themselves it has the
    longest.
    """
    least = ALIKE * float(np.nanmean(share[first:stop]))
    before, after = share[:first], share[stop:]
    begins = np.isfinite(before).sum() < WITHIN or float(np.nanmean(before)) >= least
    ends = np.isfinite(after).sum() < WITHIN or float(np.nanmean(after)) >= least
    return 0 if begins else first, share.size if ends else stop


def _divided(share: Floats, first: int, stop: int) -> tuple[Floats, Floats]:
    return share[first:stop], np.concatenate((share[:first], share[stop:]))


def _usual(period: Floats) -> Mask:
    """Steps that take no longer than their neighbours: an evaluation or a checkpoint is planned."""
    ratio = period / np.maximum(_over_neighbours(period, np.nanmedian), 1.0)
    return np.asarray(ratio <= max(LONGER, 1 + SIGMAS * stats.sigma(ratio)))


def _away(long: Mask, steps: float) -> Mask:
    """Steps that are not long and are not within so many steps of one that is."""
    near = min(math.ceil(steps), long.size)
    before = np.concatenate((np.zeros(near + 1), np.cumsum(long), np.full(near, long.sum())))
    return np.asarray(before[2 * near + 1 :] == before[: long.size])


def _over_neighbours(values: Floats, middle: Callable[..., Floats]) -> Floats:
    """The mean or median of each step and its neighbours, of which some may be unknown."""
    padded = np.pad(values, WITHIN // 2, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, WITHIN)
    known = np.isfinite(around).any(axis=1)
    found: Floats = np.full(values.size, np.nan)
    found[known] = middle(around[known], axis=1)
    return found


def _in_blocks(share: Floats) -> Floats:
    """The means of blocks of steps: samples of stacks are too few for single ones."""
    known = share[np.isfinite(share)]
    blocks = known[: known.size // WITHIN * WITHIN].reshape(-1, WITHIN)
    return np.asarray(blocks.mean(axis=1))


def _bits_of_change(inside: Floats, outside: Floats, later: bool) -> float:
    """Evidence that steps inside differ from those outside, less the bits to name both ends.

    By chance a block lies beyond the others' quartile once in four times: two bits each.

    Args:
        later: whether it did not begin with the first step. If it ended, steps may have become
            longer for another reason, so that the same time is a smaller share of them.
    """
    if later and (exact := _bits_of_order(inside, outside)) > 0:
        return exact
    inside, outside = _in_blocks(inside), _in_blocks(outside)
    least = min(inside.size, outside.size)
    if not least or np.quantile(inside, FAST) <= np.quantile(outside, 1 - FAST):
        return 0.0
    return max(2.0 * least - 2 * math.log2(inside.size + outside.size), 0.0)


def _bits_of_order(inside: Floats, outside: Floats) -> float:
    """The same of single steps, if each one inside has at least twice the share of any outside: of
    all ways to choose so many steps, chance has one."""
    inside, outside = inside[np.isfinite(inside)], outside[np.isfinite(outside)]
    if not outside.size or ALIKE * inside.min() <= outside.max():
        return 0.0
    steps = inside.size + outside.size
    return max(math.log2(math.comb(steps, outside.size)) - 2 * math.log2(steps), 0.0)


def found(
    job: Observed, method: str, cause: Cause, part: Stretch, loss: float, says: str, detail: str,
    ranks: tuple[int, ...] = (), phase: str | None = None, function: str | None = None,
) -> Waste:  # fmt: skip
    """The finding about a stretch, of which `loss` is explained."""
    line, sure = job.line, odds(part.bits, loss)
    return Waste(
        method, cause, detail, ranks, phase=phase, function=function,
        steps=line.span(part.first, part.stop), time_ns=line.span_ns(part.first, part.stop),
        slowdown=1 / max(1 - loss, 0.01), lost_ns=part.lost_ns, lost_fraction=loss, score=sure,
        victims=len(line.ranks) - len(ranks) if ranks else 0, says=says,
        values={"bits": part.bits, "lost_fraction": loss}, decisions=(likely(sure, part.bits),),
    )  # fmt: skip

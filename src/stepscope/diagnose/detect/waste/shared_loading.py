"""Data loading that holds a notable part of the steps of all ranks that load data.

Fault: storage, preprocessing or too few workers keep every rank waiting for its next batch, from
the first step on or for a part of the job. No rank is slower than its peers.
Paper: none. What every rank spends in its loader while its device idles is lost by all: the least
of any rank (`account.waste`) shows it. What the median rank spends is its cost, because steps wait
for the half that spends more. A few percent of it are ordinary. Loaders that fetch ahead need not
be late together: a rank whose batch is there waits for the one whose batch is not, and its loader
catches up meanwhile. So if the rank that loads longest changes from step to step, all lose what
that one spends. Who is behind stays behind for a while, since the others' loaders catch up
meanwhile; so few ranks may lead, one after another, where most are seen to wait now and then. If
only those of one host do, that host is named. Where host and device are timed apart, only what no
device phase covers counts (`views.exposed_loading`), and never more than is left of a step beside
its other phases; of the stages of a pipeline, the one that
loads longest; and no more than steps became longer by, if it began or ended. If they became longer
by more than twice as much, it is a symptom of that.
Cost: two cumulative sums over the steps. Cannot see: loading in worker processes that nobody waits
for; jobs on GPUs whose kernels were not recorded, where the device may work meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account import waste
from stepscope.diagnose.account.belief import LOADING, ORDINARY, odds
from stepscope.diagnose.detect.waste.one_source import begin_of, queue_of
from stepscope.diagnose.finding import Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads as loads_data
from stepscope.diagnose.thresholds import LEAST_SCORE
from stepscope.diagnose.views.frames import loads_data as loads_by_torch
from stepscope.diagnose.views.peers import stage_numbers
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import short_frame
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats, Ints, Mask

HANDOVER_NS = 2e6
"""A batch that a worker has ready still has to be taken from its queue and unpickled, which no
worker more makes shorter: 1.3 ms in three jobs of small batches on a crowded host. Measured on real
data."""
WORKERS = "_MultiProcessingDataLoaderIter"
"""PyTorch's iterator over batches of worker processes."""
MOSTLY = 2.0
"""Times what all ranks spend at once: less than half of the loss is then spent so. Our choice."""
LEAST_TURNS = 20
"""With fewer steps taking turns cannot be distinguished from chance: any long job has a few long
steps. Statistics."""
AGAIN = 2.0
"""Times as often as by chance that the same rank may be the longest in two steps: half of the ranks
take turns then. Our choice."""
LEFT = 0.25
"""Part of the loss that must be left in steps in which another rank loads longest than the one that
mostly does: without that one, all would lose as much again. Our choice."""
ALIKE = 0.5
"""Such steps lose as much as the others if they lose half, and a rank of a host waits as the
longest does if it loads for half as long; as `account.waste`. Measured on real data."""
NOW_AND_THEN = 0.05
"""Of the steps in which a rank must wait, and in two at least: once is a hiccup. Where all take
turns any notable wait counts: who was behind for longest depends on chance. Our choice."""
TWICE = 2
"""Waits that are no hiccup. Our choice."""
MOST_RANKS = 0.75
"""Of those that load, or of a host's. Our simulator, as `decide.join.WHOLE`."""
MOST_AGAIN = 2 / 3
"""Of the pairs of steps with the same longest rank: one of two that leads four steps in five does
not take turns. Our choice."""


class SharedLoading:
    """Data loading that holds a notable part of the steps on all ranks."""

    name = "shared-loading"
    needs = Needs("phases", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        phase = _phase(job)
        own = None if phase is None else _holding(job, phase)
        if phase is None or own is None:
            return
        loads = _of_slowest_stage(job, own)
        part = waste.stretch(job, waste.by_all(own[loads]), LOADING)
        longest = np.fmax.reduce(own[loads], axis=0, initial=np.nan)
        turns = waste.stretch(job, longest, ORDINARY)
        if turns is not None and _lacks_processors(job, turns):
            turns = None
        rows = np.zeros(0, np.int64)
        if turns is not None and _is_more(turns, part) and _is_usual(job, longest, turns):
            rows = _in_turns(job, phase, own, np.flatnonzero(loads), turns)
        if turns is not None and rows.size:
            of_all = rows.size == loads.sum()
            yield _found_in_turns(job, phase, _as_measured(job, turns, turns.loss), rows, of_all)
        elif turns is not None and (queue := queue_of(job, own, turns)).size:
            yield _found_in_queue(job, phase, own, _as_measured(job, turns, turns.loss), queue)
        elif part is not None:
            typical = waste.loss_of(job, stats.column_median(own[loads]), part)
            if waste.is_symptom(job, part, typical):
                return
            yield _found(job, phase, _as_measured(job, part, typical), loads)


def _phase(job: Observed) -> str | None:
    """The phase that loads data, as its recorder calls it; None if there is none."""
    named = [phase for phase in job.own.phases if loads_data(phase)]
    return DATA_LOAD if DATA_LOAD in named else next(iter(named), None)


def _holding(job: Observed, phase: str) -> Floats | None:
    """How long each rank loads while devices idle; None if nothing shows that, or it is never long.

    In a trace hosts are seen to load. Those that wait for the last one launch ahead meanwhile, so
    that its device alone idles: the others are held by their own loading for as long, too.
    """
    loading = job.own.of(phase)
    idle = waste.idle_of_devices(job) if _is_notable(job, loading) else None
    if idle is None:
        return None
    left = waste.left_of_steps(job)
    own = np.minimum(loading, idle if left is None else np.fmin(idle, left))
    if job.host_ns is not None:
        own = np.minimum(_lasted(job, phase), np.fmax.reduce(own, axis=0, initial=0.0))
    return np.maximum(own - HANDOVER_NS, 0.0) if _has_workers(job) else own


def _lasted(job: Observed, phase: str) -> Floats:
    """How long each rank loads in each step, also while its device computes."""
    phases = job.window.tables["phases"]
    phases = phases.take(phases.strings("phase").equals(phase))
    return job.line.sums(job.line.cells(phases), phases.ints("duration_ns"))


def _as_measured(job: Observed, part: waste.Stretch, loss: float) -> waste.Stretch:
    return waste.costing(job, part, waste.measured(job, part, loss))


def _of_slowest_stage(job: Observed, own: Floats) -> Mask:
    """The ranks that load data; of several stages that do, those of the stage in which all ranks
    spend most: the first loads samples, and the last no more than their labels."""
    loads: Mask = np.asarray(np.isfinite(own).any(axis=1))
    stage = stage_numbers(job.window, job.line.ranks)
    of_stage = [loads & (stage == one) for one in np.unique(stage[loads])]
    return max(of_stage, key=lambda rows: stats.median(waste.by_all(own[rows])), default=loads)


def _is_notable(job: Observed, loading: Floats) -> bool:
    """Whether any rank loads for long enough in any step, whatever its device does meanwhile."""
    longest = np.fmax.reduce(loading, axis=0, initial=np.nan)
    return bool((longest > min(LOADING, ORDINARY) * job.line.job_period_ns).any())


def _has_workers(job: Observed) -> bool:
    """Whether stacks show that worker processes load ahead."""
    samples = job.samples
    return samples is not None and any(WORKERS in name for name in samples.functions)


def _is_more(turns: waste.Stretch, part: waste.Stretch | None) -> bool:
    """Whether it is unusual, and mostly not what all ranks spend at once."""
    usual = odds(turns.bits, turns.loss) < LEAST_SCORE
    return not usual and _lost(turns) > MOSTLY * _lost(part)


def _is_usual(job: Observed, longest: Floats, part: waste.Stretch) -> bool:
    """Whether it is lost in most of the steps. Ranks that lose their processor now and then, on a
    crowded host, also do so while they load data."""
    inside = slice(part.first, part.stop)
    share = longest[inside] / np.maximum(job.line.job_period_ns[inside], 1.0)
    return stats.median(share[np.isfinite(share)]) > ORDINARY


def _lacks_processors(job: Observed, part: waste.Stretch) -> bool:
    """Whether all ranks wait for a processor for longer than this: then one is late with its data
    now and then, as with everything else."""
    return stats.median(job.hardware("run_delay", part.first, part.stop)) >= part.loss


def _lost(part: waste.Stretch | None) -> float:
    return 0.0 if part is None else part.lost_ns * (part.stop - part.first)


def _in_turns(job: Observed, phase: str, own: Floats, rows: Ints, part: waste.Stretch) -> Ints:
    """Those of the given ranks that take turns in loading longest: all, or those of the one host
    whose ranks wait for their loaders at all; else none."""
    nobody, inside = np.zeros(0, np.int64), slice(part.first, part.stop)
    own = own[rows, inside]
    longest = np.fmax.reduce(own, axis=0, initial=np.nan)
    usual = stats.median(longest[np.isfinite(longest)])
    lasted, least = _lasted(job, phase)[rows, inside], max(NOW_AND_THEN * longest.size, TWICE)
    waits = rows[(lasted >= ALIKE * usual).sum(axis=1) >= least]
    more = own - waste.by_all(own)  # what all spend is no turn
    left = _is_left(more)
    for of_host in (np.intersect1d(host, rows) for host in job.host_rows):
        if of_host.size < rows.size and np.isin(waits, of_host).all() and waits.size:
            whole = waits.size >= max(MOST_RANKS * of_host.size, 2)
            return of_host if left and whole else nobody
    seen = _seen_to_wait(job, phase, rows, part, least)
    all_wait = left and seen.sum() >= MOST_RANKS * rows.size
    return rows if all_wait or _by_chance(more) else nobody


def _seen_to_wait(job: Observed, phase: str, rows: Ints, part: waste.Stretch, least: float) -> Mask:
    """Which ranks wait notably for their loaders, in so many steps of the stretch, or twice in the
    warm-up after the first batch, if it lies before the stretch: until one of them falls behind,
    loaders with nothing fetched ahead show whether they keep up."""
    notable = _lasted(job, phase)[rows] >= ORDINARY * job.line.job_period_ns
    waits = notable[:, part.first : part.stop].sum(axis=1) >= least
    if part.first <= job.line.warm_up:
        waits |= notable[:, 1 : part.first].sum(axis=1) >= TWICE
    return np.asarray(waits)


def _is_left(own: Floats) -> bool:
    """Whether others lead often enough, and lose as much then, that nothing would be won if the
    rank that loads longest most often did not."""
    known = np.isfinite(own).any(axis=0)
    leader, longest = np.nanargmax(own[:, known], axis=0), np.nanmax(own[:, known], axis=0)
    others = leader != np.bincount(leader).argmax()
    if others.sum() < waste.WITHIN or longest[others].sum() < LEFT * longest.sum():
        return False
    return bool(longest[others].mean() >= ALIKE * longest[~others].mean())


def _by_chance(own: Floats) -> bool:
    """Whether each rank loads longest about as often as by chance.

    Of two steps, the same rank leads in one of as many pairs as there are ranks, if all take turns.
    Where nobody waits for long nobody leads: a loader with one slow worker is late in every second
    step, and the others' first by milliseconds in between.
    """
    longest = np.fmax.reduce(own, axis=0, initial=np.nan)
    known = np.isfinite(longest)
    known[known] = longest[known] >= ALIKE * longest[known].mean()
    led = np.bincount(np.nanargmax(own[:, known], axis=0), minlength=len(own))
    steps = int(led.sum())
    if steps < LEAST_TURNS:
        return False
    pairs = float((led * (led - 1)).sum()) / max(steps * (steps - 1), 1)
    return len(own) > 1 and pairs <= min(AGAIN / min(len(own), steps), MOST_AGAIN)


def _found_in_turns(
    job: Observed, phase: str, part: waste.Stretch, rows: Ints, of_all: bool
) -> Waste:
    host = None if of_all else job.window.host_of(int(job.line.ranks[rows[0]]))
    says = (
        f"all ranks spend {percent(part.loss)} of their steps waiting for the data of one of "
        f"{'them' if host is None else f'the ranks of {host}, in turns'}"
    )
    says += job.line.since(part.first)
    detail = (
        f"in each step one of {rows.size} ranks waits longest for data, {part.lost_ns / 1e6:.1f} "
        "ms, and not the same in all steps"
    )
    ranks = () if host is None else job.line.ranks_of(rows)
    found = waste.found(
        job, SharedLoading.name, "data_loading", part, part.loss, says, detail, ranks, phase
    )
    return replace(found, in_turns=True)


def _found_in_queue(
    job: Observed, phase: str, own: Floats, part: waste.Stretch, queue: Ints
) -> Waste:
    """The finding about one source that many wait for. It accuses none of them."""
    first = begin_of(own, part)
    part = replace(part, first=first)
    means = np.nanmean(own[queue, first : part.stop], axis=1) / 1e6
    says = (
        f"{queue.size} of {len(own)} ranks wait for data from step {job.line.steps[first]}, "
        "some longer than others: a source that they share is slow"
    )
    detail = (
        f"{name_ranks(job.line.ranks[queue].tolist())} began to wait in the same "
        f"step, for {means[-1]:.1f} to {means[0]:.1f} ms, like places in a queue"
    )
    found = waste.found(
        job, SharedLoading.name, "data_loading", part, part.loss, says, detail, (), phase
    )
    return replace(found, one_source=True)


def _found(job: Observed, phase: str, part: waste.Stretch, loads: Mask) -> Waste:
    """The finding. If few ranks load data for all, as in the first stage of a pipeline, these are
    named."""
    rank, alone = int(job.line.ranks[np.argmax(loads)]), loads.sum() == 1
    who = f"rank {rank} spends" if alone else "all ranks spend"
    says = f"{who} {percent(part.loss)} of {'its' if alone else 'their'} steps waiting for data"
    function = loading_function(job, part.first, part.stop)
    says += f", in {short_frame(function)}" if function else ""
    says += job.line.since(part.first)
    detail = f"each of {int(loads.sum())} ranks spends {part.lost_ns / 1e6:.1f} ms per step in it"
    return waste.found(
        job, SharedLoading.name, "data_loading", part, part.loss, says, detail,
        (rank,) if alone else (), phase, function,
    )  # fmt: skip


def loading_function(job: Observed, first: int, stop: int) -> str | None:
    """The user's function in which main threads spend most of the time that they load data in these
    columns; None where none does, or workers load."""
    samples = job.samples
    if samples is None:
        return None
    begin, end = job.line.span_ns(first, stop)
    inside = (samples.time_ns >= begin) & (samples.time_ns < end)
    return samples.users_within(loads_by_torch, inside) or None

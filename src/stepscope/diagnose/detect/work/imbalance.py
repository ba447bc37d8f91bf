"""Work that has been unequal from the first step on, by the job's own structure.

Fault: pipeline stages with too much work (their layers, or the loss and its vocabulary); samples of
unequal length, so that in each step a different rank has the most to do.
Paper: ByteDance, Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI
2025), sections 5.1 and 5.3, which replays operations. What differs: the step model of
`account.model`, and a prior: every job is a little uneven (`account.belief`). A rank of a job
without devices that takes longer must also use its processor for longer: ranks that wait for it in
turns, on a crowded host, look the same by their times alone.
Cost: a few passes over `[rank, step]`. Cannot see: experts, and stages of interleaved schedules.

Where replicas meet many times in a step, as for each layer of fully sharded parameters, every
meeting waits for its own slowest rank. Over a whole step those ranks may be equally fast, so own
times per step do not show it; the waiting in each operator does (`_waited_for_replicas`).
Cost: one sort of `comm_ops`. Cannot see: waiting that no collector measured (`blocked_ns`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account import waste
from stepscope.diagnose.account.belief import ORDINARY
from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.account.model import Model
from stepscope.diagnose.account.turns import changes
from stepscope.diagnose.account.work import Work, processor_part, two_passes, work
from stepscope.diagnose.detect.ranks.in_turns import LEAST_LOSS, in_one_place, lengthening
from stepscope.diagnose.detect.work.uneven import are_related, together
from stepscope.diagnose.finding import Cause, Decision, Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, match
from stepscope.diagnose.thresholds import FAST, HALF, LEAST_SCORE, OTHER_PROCESSES, PROCESSOR_TIME
from stepscope.diagnose.views.between_operators import beside_sends
from stepscope.diagnose.views.hidden_waits import BLOCKING_KINDS, WITHIN_PASSES
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import BETWEEN, KERNELS
from stepscope.diagnose.views.work_size import exchanged
from stepscope.diagnose.words.numbers import percent
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER
from stepscope.window import NULL, Floats, Ints, Window

PARTS = 4
"""Parts of the steps in each of which a stage must have more work: a change is found by half of
them. Statistics."""
BOTH_WAYS = 0.25
"""Unequal work makes some ranks faster than the median, too, by this part of what it adds to
others: lengths are skewed, stalls are all on one side. Statistics."""
FASTEST = 0.1
"""The quantile of steps in which lengths happened to be nearly equal. Our choice."""
SCATTER = 0.05
"""The same work takes longer and shorter by so much (standard deviation): the largest of n draws
exceeds the middle by about sqrt(2 log n) of it. Our simulator."""
BLOCKING = ("1f1b", "interleaved-1f1b")
"""Schedules without passes that could run during a send."""
UNEVEN = 0.1
"""Stages are cut by whole layers: unevenness by this share is ordinary. Measured on real data."""
EACH_MORE = 1.0
"""Bits against each further heavy stage: two with the same surplus are half as usual as one. Our
choice."""
LEAST_ALONE = 1.2
"""A pass that takes so many times as long alone: stages are cut by whole layers, but both of their
passes are. Our choice, twice `UNEVEN`."""
WAITED = 0.5
"""Ranks that wait for a processor for less than this part of what the job loses have another
reason. Measured on real data (0.15 in the lab, 1.1 to 2.4 on a crowded machine)."""
SAME_ONES = "in every step all ranks wait for the same ones, which"
LEAST_OTHERS = 3
"""Ranks above all of which the optimizer of a slow device must be: of two, one is above the other.
Statistics."""


class StageImbalance:
    """Pipeline stages with more work than the others, on all of their ranks."""

    name = "stage-imbalance"
    needs = Needs("phases|kernels|kernel_summaries|comm_ops", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        known, model = work(job), Model.of(job)
        if known is None or not model.staged or not len(job.line.steps):
            return
        levels = _steady(known.own, model.stages)
        if _is_partial(job):
            levels[0] = max(levels[0], levels[1:].min())
        found = _stage(job, model, known, levels)
        if found is not None and _is_heavy_anyway(job, model, levels):
            yield found


def _is_partial(job: Observed) -> bool:
    """Whether part of the work of the first stage was mistaken for waiting: it has at least that of
    the lightest of the others, as far as can be known.

    Between operators, the first stage's last backward passes have no send that shows when they end;
    collectives within the passes do.
    """
    return BETWEEN in job.own.phases and not job.window.job.groups_of_kind(*WITHIN_PASSES)


def _is_heavy_anyway(job: Observed, model: Model, levels: Floats) -> bool:
    """Whether the heavy stages are so, too, if others compute during their sends: in a schedule
    that nobody knows, such as one with passes for weights, operators alone do not show it."""
    schedule = job.window.job.schedule
    if BETWEEN not in job.own.phases or (schedule and schedule.name in BLOCKING):
        return True
    own = beside_sends(job.window, job.line)
    if own is None:
        return True
    beside = _steady(own[:, job.line.warm_up :], model.stages)
    heavy = _heavy(levels)
    return bool(beside[heavy].min() > (1 + UNEVEN) * stats.median(np.delete(beside, heavy)))


def _steady(own: Floats, stages: list[Ints]) -> Floats:
    """The work of each stage, in the part of the steps in which the heaviest exceeds least.

    What became slower on the way is no property of the model.
    """
    parts = np.array_split(np.arange(own.shape[1]), PARTS)
    levels = np.array([[_of_most(stats.row_medians(own[np.ix_(rows, part)])) for rows in stages]
                       for part in parts if part.size])  # fmt: skip
    exceeds = levels.max(axis=1) / np.maximum(np.median(levels, axis=1), 1.0)
    heaviest = np.bincount(levels.argmax(axis=1)).argmax()
    steady: Floats = levels[int(np.argmin(np.where(levels.argmax(axis=1) == heaviest, exceeds, 0)))]
    return steady


def _of_most(own: Floats) -> float:
    """The time that more than half of the ranks of a stage need; of two ranks the shorter: the
    other may be slow."""
    known = np.sort(own[np.isfinite(own)])
    return float(known[(known.size - 1) // 2]) if known.size else 0.0


def _stage(job: Observed, model: Model, known: Work, levels: Floats) -> Waste | None:
    """The stages with most work; if balanced, every stage would have the mean of all.

    Slow hosts look the same. Where the heavy stages are just the ranks of some hosts, not more than
    these stages, the cause is not known, unless their optimizer takes no longer than that of
    others; and what their ranks take longer than those of other stages is lost. Where a stage is
    one rank, what it takes longer may show that the rank is slow, and not its work more.
    """
    heavy = _heavy(levels)
    least, light = float(levels[heavy].min()), np.delete(levels, heavy)
    usual = stats.median(light)
    if not least > usual > 0:
        return None
    spread = max(stats.sigma(light), UNEVEN * usual)
    bits = (least - usual) / spread / np.log(2) - np.log2(math.comb(levels.size, heavy.size))
    bits -= EACH_MORE * (heavy.size - 1)
    rows = np.sort(np.concatenate([model.stages[at] for at in heavy]))
    hosts = _hosts_of(job, rows)
    ratio = float(levels[heavy].mean()) / usual
    if heavy.tolist() == [levels.size - 1] or len(hosts) > heavy.size:
        hosts = ()  # it has the loss, or more hosts would have to be slow at once than stages heavy
    elif hosts and _updates_as_usual(job, rows, ratio):
        hosts = ()
    of_rank = _of_rank(job, int(rows[0]), ratio) if rows.size == 1 else None
    even = known.own.copy()
    for at, members in enumerate(model.stages):
        should = min(levels[at], usual) if hosts or of_rank else levels.mean()
        even[members] *= float(should) / max(float(levels[at]), 1.0)
    ranks = job.line.ranks_of(rows)
    stages = [int(model.stage[model.stages[at][0]]) for at in heavy]
    says = f"pipeline stage {stages[0]} {of_rank}" if of_rank else _says(stages, hosts, ratio)
    cause: Cause = "compute" if of_rank else "unknown" if hosts else "load_imbalance"
    loss, everywhere = _loss(model, known, even), (job.line.warm_up, len(job.line.steps))
    part = waste.Stretch(*everywhere, 0.0, loss, float(bits))
    detail = f"{says}; it costs {percent(loss)} of the step time"
    found = waste.found(job, StageImbalance.name, cause, part, loss, says, detail, ranks)
    return replace(found, slowdown=ratio)


def _heavy(levels: Floats) -> Ints:
    """The stages above the widest gap between levels, at most half of all, for which all others
    wait: a stage that is lighter than the heaviest by more than is ordinary waits for it as well,
    as one with the loss does for one with too many layers."""
    order = np.argsort(-levels, kind="stable")
    ordered = np.maximum(levels[order], 1.0)
    gaps = ordered[:-1] / ordered[1:]
    above = 1 + int(gaps[: max(levels.size // 2, 1)].argmax())
    return np.sort(order[:above][ordered[:above] * (1 + UNEVEN) >= ordered[0]])


def _of_rank(job: Observed, row: int, ratio: float) -> str | None:
    """What a stage of one rank does if the rank, and not its work, makes it slow; else None."""
    rank = int(job.line.ranks[row])
    if _is_slow_in_all(job, row, ratio):
        return (f"takes {ratio:.1f}x as long as the other stages, also in its optimizer: the "
                f"device of rank {rank} is slow, or it has more layers")  # fmt: skip
    alone = _slow_pass(job, row)
    if alone is None:
        return None
    name, times = alone
    return (f"takes {times:.1f}x as long as the other stages in its {name} pass alone: rank {rank} "
            "computes slowly there; more layers would show in both passes")  # fmt: skip


def _slow_pass(job: Observed, row: int) -> tuple[str, float] | None:
    """The pass that is slow alone, and its ratio to the other ranks': the other pass is nearer to
    theirs, as a ratio, than to it."""
    times = {}
    for name, phase in (("forward", FORWARD), ("backward", BACKWARD)):
        (own,), others = _in_phase(job, phase, [row])
        usual = stats.median(others)
        times[name] = own / usual if usual > 0 else math.nan
    slow, other = sorted(times, key=lambda name: -times[name])
    is_alone = times[slow] >= LEAST_ALONE and times[other] < math.sqrt(times[slow])
    return (slow, times[slow]) if is_alone else None


def _is_slow_in_all(job: Observed, row: int, ratio: float) -> bool:
    """Whether a rank's optimizer is as slow as its passes: a slow device does everything slower, a
    longer pass need not have more to update. Nearer to the passes' ratio than to 1, and slower than
    that of any other rank."""
    (own,), others = _in_phase(job, OPTIMIZER, [row])
    if others.size < LEAST_OTHERS:
        return False
    return bool(own > max(math.sqrt(ratio) * stats.median(others), float(others.max())))


def _updates_as_usual(job: Observed, rows: Ints, ratio: float) -> bool:
    """Whether the optimizer of slow passes' ranks takes about as long as that of others: what slows
    down a host slows down all it does. Nearer to 1, as a ratio, than to the passes' ratio."""
    own, others = _in_phase(job, OPTIMIZER, rows)
    return bool(stats.median(own) < math.sqrt(ratio) * stats.median(others))


def _in_phase(
    job: Observed, phase: str, rows: Sequence[int] | Ints
) -> tuple[Floats, Floats]:  # fmt: skip
    """How long some ranks usually take in a phase, and how long the others do, as far as known."""
    if phase not in job.own.phases:
        return np.full(len(rows), np.nan), np.zeros(0)
    took = stats.row_medians(job.own.of(phase))
    others = np.delete(took, rows)
    return took[rows], others[np.isfinite(others)]


def _hosts_of(job: Observed, rows: Ints) -> tuple[str, ...]:
    """The hosts whose ranks are just these, if there are others."""
    everybody = set(job.line.ranks.tolist())
    units = [(host.name, everybody.intersection(host.ranks)) for host in job.window.job.hosts]
    ranks = set(job.line.ranks[rows].tolist())
    inside = [(name, own) for name, own in units if own and own <= ranks]
    whole = set().union(*(own for _, own in inside)) == ranks
    return tuple(name for name, _ in inside) if whole else ()


def _says(stages: list[int], hosts: tuple[str, ...], ratio: float) -> str:
    what = f"pipeline stage {stages[0]} has" if len(stages) == 1 else (
        f"pipeline stages {', '.join(map(str, stages[:-1]))} and {stages[-1]} have")  # fmt: skip
    if not hosts:
        return f"{what} {ratio:.1f}x the work of the other stages"
    where = f"host {hosts[0]} is" if len(hosts) == 1 else f"the {len(hosts)} hosts of these are"
    return (f"{what.rpartition(' ')[0]} {'takes' if len(stages) == 1 else 'take'} {ratio:.1f}x as "
            f"long as the other stages: {where} slow, or the work is unequal")  # fmt: skip


class UnequalWork:
    """In each step a different rank has the most to do, from the start or for a part of the job."""

    name = "unequal-work"
    needs = Needs("steps|phases|comm_ops|kernels", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        parts, model = _work(job), Model.of(job)
        if parts is None:
            return
        own = np.asarray(sum(parts))
        excess, even = np.full(own.shape, np.nan), own.copy()
        for rows in model.stages:
            middle = stats.column_median(own[rows])
            even[rows], excess[rows] = np.minimum(own[rows], middle), own[rows] - middle
        gain = np.maximum(model.step_ns(own) - model.step_ns(even), 0.0)
        if len(parts) == 1:
            gain = np.minimum(gain, _shown(job, own))
            gain = np.maximum(np.minimum(gain, _above_fastest(job)),
                              gain * _lengthens(job, model.step_ns(own)))  # fmt: skip
        waited = _waited_for_replicas(job.window, job.line)
        if waited is not None and stats.median(waited) > stats.median(gain):
            gain = waited  # replicas meet within the step, each time for another slowest
        part = waste.stretch(job, gain, ORDINARY, planned=False)
        if part is None:
            return
        inside = slice(part.first, part.stop)
        if not changes(job, excess[:, inside]):
            return
        if not (_is_work([one[:, inside] for one in parts], excess[:, inside], model.stages)
                or _is_throughout(job, excess, inside)):  # fmt: skip
            return
        if _is_crowded(job, excess, model.stages, part) or not _computes(
            job, excess, model, inside
        ):
            return
        cause, says = _who(model, even[:, inside], excess[:, inside], gain[inside])
        if cause == "unknown" and _have_more_tokens(job, excess, inside):
            cause, says = "load_imbalance", f"{SAME_ONES} exchange more tokens than the others"
        detail = f"{says}; it costs {percent(part.loss)} of the step time"
        found = waste.found(job, self.name, cause, part, part.loss, says, detail)
        yield _reported(found, len(job.line.ranks))


def _have_more_tokens(job: Observed, excess: Floats, inside: slice) -> bool:
    """Whether ranks that take longer exchange more data with other experts, as tokens are."""
    moved = exchanged(job.window, job.line, np.arange(excess.shape[1])[inside])
    longer = stats.row_medians(excess[:, inside])
    return bool((moved > 0).any()) and are_related(longer[moved > 0], moved[moved > 0])


def _reported(found: Waste, ranks: int) -> Waste:
    """The finding, with the least score of a verdict if it costs too much to call the job healthy,
    however usual it is. Of many ranks that do equal work one happens to take longer in each step.
    """
    loss = found.lost_fraction or 0.0
    least = max(LEAST_LOSS, SCATTER * math.sqrt(2 * math.log(ranks)))
    if loss <= least or found.score >= LEAST_SCORE:
        return found
    says = "every job is a little uneven, but one that loses more than this is not healthy"
    rule = Decision("costs-enough", True, loss, least, says)
    return replace(found, score=LEAST_SCORE, decisions=(rule,))


def _who(model: Model, even: Floats, excess: Floats, gain: Floats) -> tuple[Cause, str]:
    """The cause, and whether in each step other ranks have more to do or always the same.

    Always the same ones, if what each of them takes longer in nearly all of its steps would cost
    half as much alone.
    """
    always = np.nan_to_num(np.nanquantile(excess, FAST, axis=1)).clip(0.0)[:, None]
    same = model.step_ns(even + always) - model.step_ns(even)
    if stats.median(same) < HALF * stats.median(gain):
        return "load_imbalance", (
            "in each step all ranks wait for a different one that has more work to do"
        )
    return "unknown", f"{SAME_ONES} have more work to do or are slow, by different degrees"


def _work(job: Observed) -> tuple[Floats, ...] | None:
    """Own time in two passes, else in all kernels or between collectives; None if none is known."""
    whole = next((one for one in (BETWEEN, KERNELS) if one in job.own.phases), None)
    return two_passes(job) if whole is None else (job.own.of(whole),)


def _lengthens(job: Observed, needed: Floats) -> float:
    """How much longer steps get with what their slowest rank needs: where they do, nothing hides
    it, and what it needs longer than others is lost in steps that are all about as long as well."""
    skip = job.line.warm_up
    return lengthening(np.nan_to_num(job.line.job_period_ns[skip:]), needed[skip:])


def _shown(job: Observed, own: Floats) -> Floats:
    """What each step's slowest rank takes longer than the median one, as far as gaps between
    operators show it that most ranks have: the others may work behind the rest of them."""
    at = np.nan_to_num(own).argmax(axis=0), np.arange(own.shape[1])
    if job.own.in_open is None:
        return np.full(own.shape[1], np.inf)
    times = np.maximum(np.nan_to_num(job.own.in_open[at], nan=np.inf), 1.0)
    return np.asarray(own[at] * (1 - 1 / times))


def _above_fastest(job: Observed) -> Floats:
    """By how much each step is longer than the fastest: operators may hide computing, and then what
    lies between them, or kernels compute, says nothing about the length of a step."""
    period = job.line.job_period_ns
    return np.maximum(period - np.nanquantile(period[job.line.warm_up :], FASTEST), 0.0)


def _is_work(parts: Sequence[Floats], excess: Floats, groups: list[Ints]) -> bool:
    """Whether ranks have unequal work: stalls make no rank faster, and hit one pass of a step."""
    if len(parts) == 2:
        return together(parts[0], parts[1], groups)
    known = np.isfinite(excess).any(axis=0)
    above, below = np.nanmax(excess[:, known], axis=0), -np.nanmin(excess[:, known], axis=0)
    return stats.median(below) >= BOTH_WAYS * stats.median(above) > 0


def _is_throughout(job: Observed, excess: Floats, inside: slice) -> bool:
    """Whether operators alone show that the slowest ranks take longer before all of them."""
    columns = np.arange(excess.shape[1])[inside]
    columns = columns[np.isfinite(excess[:, columns]).any(axis=0)]
    rows = np.nanargmax(excess[:, columns], axis=0)
    return in_one_place(job, rows, columns, excess[rows, columns]) is False


def _is_crowded(job: Observed, excess: Floats, groups: list[Ints], part: waste.Stretch) -> bool:
    """Whether what ranks take longer is no work of theirs, but waiting for a processor, or may be.

    More work takes more processor time, unless a device does it that nobody listed: then ranks do
    not wait for a processor for as long as they lose. Where nothing of that was measured, other
    processes on the ranks' processors are as likely a reason.
    """
    if job.has_devices:
        return False
    computed = processor_part(job, excess, groups, slice(part.first, part.stop))
    delayed = job.hardware("run_delay", part.first, part.stop)
    if computed is not None:
        waited = not np.isfinite(delayed).any() or stats.median(delayed) >= WAITED * part.loss
        return computed < PROCESSOR_TIME and waited
    others = job.hardware("stranger_cpu_util", part.first, part.stop)
    return stats.median(others) >= OTHER_PROCESSES


def _computes(job: Observed, excess: Floats, model: Model, inside: slice) -> bool:
    """Whether devices compute for most of what ranks take longer, where every kernel was recorded:
    one that waits for its host has no more work."""
    if job.window.table("kernels") is None or job.breakdown is None:
        return True
    computed = device_ns(job, "compute_ns")
    for rows in model.stages:
        computed[rows] -= stats.column_median(computed[rows])
    longer, more = (np.nansum(np.maximum(one[:, inside], 0.0)) for one in (excess, computed))
    return bool(more >= HALF * longer)


def lost_by_stages(job: Observed, rows: Ints) -> float:
    """The share of the step time that the job loses because stages of which all ranks are among
    these take longer than the other stages; 0 where there are none."""
    known, model = work(job), Model.of(job)
    if known is None or not model.staged or not len(job.line.steps):
        return 0.0
    inside = np.array([bool(np.isin(members, rows).all()) for members in model.stages], np.bool_)
    if not inside.any() or inside.all():
        return 0.0
    levels = _steady(known.own, model.stages)
    usual, even = stats.median(levels[~inside]), known.own.copy()
    for at in np.flatnonzero(inside).tolist():
        even[model.stages[at]] *= min(usual / max(float(levels[at]), 1.0), 1.0)
    return _loss(model, known, even)


def _loss(model: Model, known: Work, healed: Floats) -> float:
    """The share of the measured step time that would come back."""
    gain = model.step_ns(known.own) - model.step_ns(healed)
    whole = float(np.nansum(known.lasted_ns))
    return min(max(float(np.nansum(gain)) / whole, 0.0), 1.0) if whole > 0 else 0.0


def _waited_for_replicas(window: Window, line: Timeline) -> Floats | None:
    """What the median rank waits in each step for others to arrive, in ns; None if not measured.

    The member that waits least for an operator arrived last, and waits for its transfer alone.
    """
    comm = window.table("comm_ops")
    if comm is None or not comm.has("blocked_ns"):
        return None
    within = {group.id for group in window.groups if group.kind not in BLOCKING_KINDS}
    comm = comm.take(
        (comm.ints("blocked_ns") != NULL)
        & comm.strings("group").equals(*within)
        & comm.strings("op").equals(*SYNCHRONIZING)
    )
    matched = match(comm)
    order, bounds = matched.order, matched.bounds
    if not order.size:
        return None
    blocked = comm.ints("blocked_ns")[order]
    least = np.repeat(np.minimum.reduceat(blocked, bounds[:-1]), np.diff(bounds))
    return stats.column_median(line.sums(line.cells(comm)[order], blocked - least))

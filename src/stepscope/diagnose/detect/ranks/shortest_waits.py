"""The rank of a call log that all others wait for, by the pauses between calls.

Fault: one rank is slow, by its host or its device, in a job of which only the hosts' calls were
recorded. Hosts run ahead of their devices, up to a limit, so calls do not follow the operators that
they wait for at any fixed distance, and `host_waits` decides nothing.
Paper: VenusTrace, section 3 ("two narrow waists"): calls show the state of the computation. It
compares calls with the schedule; ours needs none, and no clocks of hosts that agree either.
Ours: ranks of one program that are released together catch up with the last of them. In a pause
between two calls a rank therefore waited for at most as long as the last of its group was behind
it, and for at most as long as its pause is longer than the group's shortest:

    wait = max(0, min(last - called, pause - shortest pause))

in the group, of those it calls with and of all that run its program, that says most. Work that is
slow of itself satisfies only one of the two. Who is waited for waits least in its steps; healed, it
would give back what the next rank waits more (`gain`). A rank with more of that than all others
together, in more steps than chance would give it, is the culprit.
If the others go on the sooner after its call, the later it is, its device holds it as well: nobody
waits for it.
Clocks: ranks are closest in the call whose distances change least from step to step; there hosts
count as equal.
Cost: a few passes over the calls. Cannot see: devices that are slow while their hosts launch whole
steps ahead, released by nothing in between; whether host or device is slow; network, which holds
all members alike; which stage of a pipeline is slow, and what bubbles swallow of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import log_tail
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.host_waits import STANDARD_ERRORS, programs
from stepscope.diagnose.prepare.matching import kinds_and_operators
from stepscope.diagnose.thresholds import (
    HALF,
    LEAST_COST,
    LEAST_COST_ALONE,
    LEAST_COST_IN_GAPS,
    SUSPECT_SCORE,
)
from stepscope.diagnose.words.numbers import percent
from stepscope.window import NULL, Floats, Ints, Mask, Table, numbered, occurrence

FEWEST_RANKS = 4
"""Of one program: of three, a rank waits least in every third step. Our choice."""
FEWEST_STEPS = 10
"""Whose steps are judged. Statistics: fewer tell no habit from chance (`undecided`)."""
MOST_BY_CHANCE = 0.001
"""Chance that some rank of a healthy job waits least so often. Statistics."""
MOST_OF_ALL = 0.5
"""Part of what all ranks cost in turns that the culprit costs more than. Statistics: a majority."""
SCORE = 0.8
"""Our choice: as two alarm limits above noise (`thresholds.score`)."""
SAMPLED = 64
"""Steps by which clocks are compared. Statistics: medians of more are not much better."""
FINER = ("phases", "kernels", "kernel_summaries")


class ShortestWaits:
    """In logs of calls, the rank that waits for nobody while all others wait for it."""

    name = "shortest-waits"
    needs = Needs("comm_ops.enqueue_ns", "comm_ops.step", "comm_ops.group", ranks=FEWEST_RANKS)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        comm = job.window.tables["comm_ops"]
        recorded = comm.has("start_ns") or any(name in job.window.tables for name in FINER)
        if recorded or so_far.blamed:
            return
        found = [one for program in programs_of(job, comm) for one in _culprits(job, program)]
        if found:
            yield _finding(job, max(found, key=lambda one: one.lost))


@dataclass(frozen=True)
class Program:
    """The calls of all ranks that call the same operators in a step."""

    rows: Ints
    """Of its ranks, in the timeline."""
    called_ns: Floats
    """`[call of a step, rank, step]`, since the first call of all; NaN where a step differs."""
    hosts: Ints
    """A number for each rank's host."""
    groups: tuple[Ints, ...]
    """For each kind of group, and for all ranks together, a number for each rank's."""


@dataclass(frozen=True)
class _Culprit:
    row: int
    gain_ns: Floats
    """By how much each step would be shorter."""
    period_ns: float
    waits_ns: float
    others_ns: float
    """What it and the typical rank wait in the steps that it makes longer."""

    @property
    def lost(self) -> float:
        return float(self.gain_ns.mean()) / self.period_ns


def programs_of(job: Observed, comm: Table) -> Iterator[Program]:
    """The programs that at least a few ranks run."""
    row, column = job.line.places(comm)
    comm = comm.take((row >= 0) & (column >= 0) & (comm.ints("enqueue_ns") != NULL))
    if not len(comm):
        return
    row, column = job.line.places(comm)
    called = comm.ints("enqueue_ns")
    program = programs(comm.ints("rank"), comm.ints("step"),
                       kinds_and_operators(job.window, comm), called)  # fmt: skip
    cell = numbered(row, column)
    nth = occurrence(cell, called)
    calls = np.bincount(cell)[cell]
    for one in range(int(program.max(initial=-1)) + 1):
        mine = program == one
        rows = np.unique(row[mine])
        if len(rows) < FEWEST_RANKS:
            continue
        usual = int(np.bincount(calls[mine]).argmax())
        mine &= calls == usual
        grid = np.full((usual, len(rows), len(job.line.steps)), np.nan)
        at = np.searchsorted(rows, row[mine])
        grid[nth[mine], at, column[mine]] = called[mine] - called.min()
        yield Program(rows, grid[:, :, job.line.warm_up :], *_belonging(job, rows))


def _belonging(job: Observed, rows: Ints) -> tuple[Ints, tuple[Ints, ...]]:
    """The hosts of ranks, and their groups of each kind."""
    ranks = [int(rank) for rank in job.line.ranks[rows]]
    hosts = {rank: at for at, host in enumerate(job.window.job.hosts) for rank in host.ranks}
    kinds: dict[str, dict[int, int]] = {}
    for at, group in enumerate(job.window.job.groups):
        kinds.setdefault(group.kind, {}).update(dict.fromkeys(group.ranks, at))
    groups = [_numbers(ranks, of) for of in kinds.values()]
    return _numbers(ranks, hosts), (np.zeros(len(ranks), np.int64), *groups)


def _numbers(ranks: Sequence[int], of: dict[int, int]) -> Ints:
    """A number for what each rank belongs to; ranks that belong to nothing are alone."""
    return numbered(np.array([of.get(rank, -1 - rank) for rank in ranks], np.int64))


def _culprits(job: Observed, program: Program) -> Iterator[_Culprit]:
    """The rank of a program that all others wait for, if there is one."""
    by_call = _waits_ns(program)
    waits = by_call.sum(axis=0)
    whole = np.isfinite(waits).all(axis=0)
    if int(whole.sum()) < FEWEST_STEPS:
        return
    waits, steps = waits[:, whole], np.flatnonzero(whole)
    period = np.nanmedian(np.diff(program.called_ns[0], axis=1), axis=0)
    least, following = np.partition(waits, 1, axis=0)[:2]
    lowest = waits.argmin(axis=0)
    gain, total = following - least, float(np.nansum(period[steps[steps < len(period)]]))
    by_rank = np.bincount(lowest, gain, minlength=len(waits))
    worst = int(by_rank.argmax())
    costly = gain > LEAST_COST * stats.median(period[np.isfinite(period)])
    often = int((costly & (lowest == worst)).sum())
    chance = len(waits) * math.exp(log_tail(often, int(costly.sum()), 1 / len(waits)))
    if chance > MOST_BY_CHANCE or by_rank[worst] <= MOST_OF_ALL * by_rank.sum():
        return
    own = np.zeros(program.called_ns.shape[2])
    judged = np.zeros(own.shape, np.bool_)
    judged[steps] = lowest == worst
    if _is_held(program, worst, by_call, judged):
        return
    own[steps] = np.where(lowest == worst, gain, 0.0)
    mine = lowest == worst
    yield _Culprit(
        int(program.rows[worst]), own, total / len(steps),
        float(waits[worst, mine].mean()), float(np.median(waits[:, mine], axis=0).mean()),
    )  # fmt: skip


def _is_held(program: Program, culprit: int, waits: Floats, steps: Mask) -> bool:
    """Whether the culprit, too, is held where the others wait for longest: the later it is, the
    sooner after its call the others go on. Its lateness costs nothing then.

    Args:
        steps: those in which it waits least.
    """
    others = np.delete(program.called_ns, culprit, axis=1)
    at = int(np.nansum(np.delete(waits, culprit, axis=1), axis=(1, 2)).argmax())
    called = program.called_ns[at, culprit]
    following = others[at + 1, :, :-1] if at + 1 < len(others) else others[0, :, 1:]
    released = stats.column_median(following)
    pause, before = (released - called[:-1])[1:], called[1:-1] - released[:-1]
    known = np.isfinite(pause) & np.isfinite(before) & steps[1:-1]
    if int(known.sum()) < FEWEST_STEPS:
        return False
    pause, before = pause[known] - pause[known].mean(), before[known] - before[known].mean()
    slope = float(pause @ before) / max(float(before @ before), 1.0)
    error = math.sqrt(float(np.square(pause - slope * before).mean())
                      / max(float(before @ before), 1.0))  # fmt: skip
    return slope < -HALF and slope + STANDARD_ERRORS * error < 0


def _waits_ns(program: Program) -> Floats:
    """How long each rank waited for others after each call; NaN where a call is unknown."""
    called = program.called_ns
    ahead = _clocks_ns(program)[:, None]
    waits = np.empty_like(called)
    for at, now in enumerate(called):
        if at + 1 < len(called):
            following = called[at + 1]
        else:  # of the last step nobody knows what follows
            following = np.hstack((called[0][:, 1:], now[:, -1:]))
        pause, place = following - now, now - ahead
        waited = np.zeros_like(pause)
        for number in program.groups:
            waited = np.fmax(waited, np.minimum(
                _best(number, place, np.fmax) - place, pause - _best(number, pause, np.fmin)
            ))  # fmt: skip
        waits[at] = np.where(np.isfinite(now), waited, np.nan)
    return waits


def _best(number: Ints, values: Floats, best: np.ufunc) -> Floats:
    """For each rank the best value of its group."""
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.asarray(best.reduceat(values[order], begins, axis=0)[number])


def _clocks_ns(program: Program) -> Floats:
    """By how much the clock of each rank's host is ahead."""
    steps = program.called_ns.shape[2]
    sample = program.called_ns[:, :, :: max(1, steps // SAMPLED)]
    with np.errstate(invalid="ignore"):
        apart = sample - np.nanmedian(sample, axis=1, keepdims=True)
        usual = np.nanmedian(apart, axis=2)
        scatter = np.nanmedian(np.abs(apart - usual[:, :, None]), axis=(1, 2))
    closest = usual[int(np.nanargmin(scatter))]
    return stats.medians_of(program.hosts, closest, int(program.hosts.max()) + 1)[program.hosts]


def _finding(job: Observed, culprit: _Culprit) -> Slowdown:
    """The verdict; a suspect where its work may be unequal by nature, or in a pipeline."""
    rank, lost = int(job.line.ranks[culprit.row]), culprit.lost
    stretch = stats.worst_stretch(culprit.gain_ns[None], LEAST_COST * culprit.period_ns)
    first, stop = (job.line.warm_up + int(one[0]) for one in (stretch.first, stretch.stop))
    others, own = culprit.others_ns / 1e6, culprit.waits_ns / 1e6
    return Slowdown(
        method="shortest-waits", cause="unknown", ranks=(rank,),
        detail=f"between its calls it waits {own:.1f} ms for others in the steps that it makes "
               f"longer, the typical rank {others:.1f} ms",
        steps=job.line.span(first, stop), time_ns=job.line.span_ns(first, stop),
        slowdown=1 / max(1 - lost, 0.01), lost_fraction=lost, least_fraction=LEAST_COST_IN_GAPS,
        lost_of=job.line.span(job.line.warm_up, len(job.line.steps)),
        score=SCORE if lost >= LEAST_COST_ALONE and not _in_pipeline(job, rank) else SUSPECT_SCORE,
        says=f"all others wait for rank {rank}, by their calls for {percent(lost)} of their time"
             f"{job.line.since(first)}",
        values={"waits_ns": culprit.waits_ns, "others_wait_ns": culprit.others_ns},
    )  # fmt: skip


def _in_pipeline(job: Observed, rank: int) -> bool:
    """Whether another stage may hold the rank, or a bubble swallow what it costs."""
    return any(rank in group.ranks and len(group.ranks) > 1 for group in job.window.job.groups
               if group.kind == "pp")  # fmt: skip

"""Long steps that come back and cost the job more than any plan excuses.

Fault: checkpoints or evaluations that are too frequent or too slow; pauses of all ranks every few
steps (garbage collection, loading), which a schedule alone makes look planned.
Paper: none. A plan excuses a person, not the state of the job: whatever recurs and takes more than
a tenth of the time is reported, without a rank if it may be planned. What jobs do beside training
has no right level, so there only a cost that is clearly more than usual counts (`account.belief`):
all ranks evaluate together. Where one saves and the others wait for it, nothing is done for the
time of these. Nobody plans to save every few steps: long steps that come more often than in a tenth
of all are no plan. Where stacks show a function that neither saves nor evaluates, the ranks that
run it are named, and half as much is enough.
Cost: that of `periods`. Cannot see: fewer than three long steps; steps that are all equally slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.account.belief import ORDINARY, odds, unusual_bits
from stepscope.diagnose.detect.hosts.stopped import columns_of
from stepscope.diagnose.detect.ranks.in_turns import LEAST_LOSS
from stepscope.diagnose.detect.steps.duties import MOST_OF_LAST, SLOTS, expected
from stepscope.diagnose.detect.steps.duties import RARE as SELDOM
from stepscope.diagnose.detect.steps.periods import CAUSES, UNKNOWN, Named, source_of
from stepscope.diagnose.detect.steps.recurring import Recurrent, placed, recurring, rise
from stepscope.diagnose.detect.steps.step_time import long_steps, scheduled
from stepscope.diagnose.detect.steps.unsteady import unexplained_spikes
from stepscope.diagnose.finding import Cause, Decision, Recurring, Span
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.combs import Comb
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import is_beside_training
from stepscope.diagnose.shown import PLANNED
from stepscope.diagnose.thresholds import HALF, LEAST_COST, LEAST_SCORE, SUSPECT_SCORE
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.diagnose.words.numbers import duration, percent
from stepscope.diagnose.words.periods import ADVICE, place, taking
from stepscope.window import Floats, Ints, Mask

SCORE = 0.7
"""As of slow steps at regular distances whose source is known (`periods`). Our choice."""
RARE = 0.1
"""A phase that usually takes less than this part of what it takes in long steps is no part of
training: it saves or evaluates. Our choice."""
NOT_PLANNED = ("compilation", "garbage collection")
"""Sources that no job has by design, so that they need to cost no more than any other fault."""


class RecurringLoss:
    """Long steps that come back and cost more than a tenth of the time, planned or not; less is
    enough where their source is known and is never planned."""

    name = "recurring-loss"
    needs = Needs("steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Recurring]:
        found = _found(job, _columns(job, so_far), True)
        if not found:
            unplanned = np.array(unexplained_spikes(job), np.int64)
            found = _found(job, _without_culprits(job, unplanned, so_far), False)
        yield from found


def _found(job: Observed, columns: Ints, planned: bool) -> list[Recurring]:
    """What is lost in these long steps, if it is much; on a schedule they may be planned."""
    runs = stats.runs_of(columns)
    if len(runs) < SLOTS:
        return []
    period = np.nan_to_num(job.period_ns)
    lost_ns = _coming_back(np.maximum(period - job.line.typical_ns, 0.0), runs)
    part = lost_ns / float(period[job.line.warm_up :].sum())
    if part <= LEAST_COST:
        return []
    loss = lost_ns / float(period[slice(*_since(job, runs))].sum())
    found = _recurrent(job, runs, lost_ns / len(runs), loss)
    source = source_of(job, found)
    if part <= _least(found, source):
        return []
    known = planned or source.source in NOT_PLANNED
    sure = _sure(job, found, source) if known else _if_unusual(found)
    return [] if sure is None else [_finding(job, found, source, sure)]


def _coming_back(lost_ns: Floats, runs: list[Ints]) -> float:
    """What long steps lose together. The longest counts as the second longest does: a restart of
    minutes in one of them does not come back."""
    lost = np.sort([float(lost_ns[run].sum()) for run in runs])
    return float(lost[:-1].sum() + lost[-2])


def _least(found: Recurrent, source: Named) -> float:
    """What long steps must cost."""
    if source.source in NOT_PLANNED:
        return LEAST_COST
    known = source.source == "data loading" or _is_of_ranks(found, source)
    return MOST_OF_LAST if known else LEAST_LOSS


def _is_of_ranks(found: Recurrent, source: Named) -> bool:
    """Whether it is known which ranks run which function, and it neither saves nor evaluates."""
    return bool(found.rows and source.function) and source.source not in PLANNED


def _since(job: Observed, runs: list[Ints]) -> Span:
    """The columns in which such steps come: not what is before the first of them, or after the
    last, if several more would have come there. All of them are in it: a part cannot be more than
    the whole."""
    first, stop = job.line.warm_up, len(job.line.steps)
    begins, last = np.array([run[0] for run in runs]), int(runs[-1][-1]) + 1
    distance = stats.median(np.diff(begins).astype(np.float64))
    begin = int(begins[0]) if begins[0] - first >= SLOTS * distance else first
    ends = stop - last > SLOTS * distance
    return begin, max(int(begins[-1] + distance), last) if ends else stop


def _columns(job: Observed, so_far: SoFar) -> Ints:
    """Long steps on a schedule, planned or not, without those that culprits made long."""
    skip, steps = job.line.warm_up, job.line.steps
    long = long_steps(job.period_ns[skip:]) + skip
    known = expected(job, job.samples, long) | _spent_beside(job, long)
    if long.size >= SLOTS:
        known |= scheduled(steps[long], steps[skip:])
    columns = [long[known], *(one.columns for one in recurring(job) if not one.rows)]
    return _without_culprits(job, np.concatenate(columns), so_far)


def _without_culprits(job: Observed, columns: Ints, so_far: SoFar) -> Ints:
    """Without steps that are long because of a rank, or because a process was stopped."""
    culprits = [np.asarray(one.spikes, np.int64) for one in so_far.culprits]
    stops = [columns_of(job, one) for one in job.stops]
    theirs = np.concatenate([np.zeros(0, np.int64), *culprits, *stops])
    return np.setdiff1d(columns, np.concatenate((theirs, theirs + 1)))


def _spent_beside(job: Observed, long: Ints) -> Mask:
    """Which long steps some rank spends mostly in phases that save or evaluate by their names; two
    schedules may be interleaved, so that neither keeps an interval."""
    named = [at for at, phase in enumerate(job.own.phases) if is_beside_training(phase)]
    if not named:
        return np.zeros(long.size, np.bool_)
    spent = np.nansum(job.own.own[named][:, :, long], axis=0).max(axis=0)
    beyond = job.period_ns[long] - job.line.typical_ns
    return np.asarray(spent > HALF * beyond)


def _recurrent(job: Observed, runs: list[Ints], excess_ns: float, loss: float) -> Recurrent:
    """These steps with what is slow in them; their distance is the most frequent one.

    The step before is looked at as well: what one rank does at the end of a step makes the next one
    longer for all others.
    """
    begins = np.array([run[0] for run in runs])
    apart = np.diff(job.line.steps[begins])
    distance = int(np.bincount(apart).argmax())
    around = [np.arange(max(int(run[0]) - 1, 0), int(run[-1]) + 1) for run in runs]
    usual = np.setdiff1d(np.arange(job.line.warm_up, len(job.line.steps)), np.concatenate(around))
    comb = Comb("steps", distance, begins, len(runs), 0.0)
    return placed(job, Recurrent(comb, tuple(around), usual, excess_ns, loss))


def _sure(job: Observed, found: Recurrent, source: Named) -> float | None:
    """How sure it is that these steps cost what they need not; None: it is what jobs usually do."""
    if found.rows or not _is_beside(job, found, source):
        return SCORE
    sure = _if_unusual(found)
    if sure is None:
        return None
    planned = source == UNKNOWN and _is_regular(job, found) and (
        SELDOM * found.comb.distance >= 1)  # fmt: skip
    return SUSPECT_SCORE if planned else sure


def _if_unusual(found: Recurrent) -> float | None:
    """How sure it is that it costs more than what jobs usually lose; None: it hardly does."""
    sure = odds(unusual_bits(found.lost_fraction, ORDINARY), found.lost_fraction)
    return sure if sure >= LEAST_SCORE else None


def _is_regular(job: Observed, found: Recurrent) -> bool:
    """Whether half of the distances are the same, and together half of the way: two of four may
    be so by chance, with a long gap between them."""
    apart = np.diff(job.line.steps[found.comb.columns])
    same = apart == found.comb.distance
    return bool(same.mean() >= HALF and apart[same].sum() >= HALF * apart.sum())


def _is_beside(job: Observed, found: Recurrent, source: Named) -> bool:
    """Whether it is what jobs do beside training: it saves or evaluates, or lies in no phase that
    the other steps have, too. Where nothing is known of a step, it may be that."""
    if source != UNKNOWN:
        return source.source in PLANNED
    if found.phase is None or found.phase in UNNAMED:
        return True
    own = job.own.of(found.phase)
    usually = stats.median(np.nan_to_num(own[:, found.usual]).max(axis=0))
    return usually < RARE * float(rise(own, found).max())


def _finding(job: Observed, found: Recurrent, source: Named, sure: float) -> Recurring:
    line, events = job.line, len(found.runs)
    first, stop = _since(job, list(found.runs))
    when = f"every {found.comb.distance:.0f} steps" if _is_regular(job, found) else (
        f"in {events} of {stop - first} steps")  # fmt: skip
    where = place(found.phase)
    several = max(sum(len(run) - 1 for run in found.runs) / events, 1.0)  # each has one before it
    longer = duration(found.excess_ns / several)
    ranks = line.ranks_of(found.rows) if _is_of_ranks(found, source) else ()
    cause: Cause = "host" if ranks and source.source == "a function" else CAUSES[source.source]
    says = (
        f"{when}, {taking(ranks)} {longer} longer{where} ({source.source}), "
        f"which costs {percent(found.lost_fraction)} of the time"
    )
    says += line.since(first)
    rule = Decision("costs-enough", True, found.lost_fraction, _least(found, source),
                    "lost in such steps", gate=False)  # fmt: skip
    return Recurring(
        RecurringLoss.name, cause, source.because, ranks, phase=found.phase,
        function=source.function, kernels=(found.kernel,) if found.kernel else (),
        steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        slowdown=1 / max(1 - found.lost_fraction, 0.01), lost_ns=found.excess_ns,
        lost_fraction=found.lost_fraction, victims=0, score=sure,
        values={"every": found.comb.distance, "events": events, "source": source.source,
                "excess_ns": found.excess_ns, "lost_fraction": found.lost_fraction},
        decisions=(rule,), says=says, advises=ADVICE[source.source].format(
            function=source.function or "it"),
    )  # fmt: skip

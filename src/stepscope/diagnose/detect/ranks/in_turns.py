"""Ranks that hold up all others in turns: in each step another one takes far longer than its peers.

Fault: pauses that hit one rank here and another there (garbage collection that nobody recorded,
crowded hosts), or unequal work. No rank does it often enough to be a suspect; together they cost as
much as one that always does.
Papers: ARGUS (2026), table 6, and EROICA (2026), section 6.2, name such faults by their causes.
What differs: no cause is needed. What the last rank exceeds its peers by, beyond its own usual
excess and beyond noise, is added up over the steps. It counts as far as steps get longer with it:
what computes beside communication may take longer and cost nothing. In profiler traces, which have
few steps, it is enough that devices idle in turns because their hosts launch nothing
(`idle_devices`).
Cost: two medians of `[rank, step]`. Cannot see: ranks that wait for each other within a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.account import waste
from stepscope.diagnose.account.belief import ORDINARY
from stepscope.diagnose.account.idle_devices import idle_beyond_peers
from stepscope.diagnose.account.turns import CHANGING, stays_with_one
from stepscope.diagnose.detect.ranks.transient import SPIKE_SHARE, SPIKE_Z
from stepscope.diagnose.detect.steps.step_time import SPIKE_MADS
from stepscope.diagnose.finding import Cause, Decision, Recurring, Span
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import poisson_tail
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.thresholds import FALSE_ALARMS, HALF
from stepscope.diagnose.words.advice import SLOW, UNEVEN, name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints, Mask

LEAST_LOSS = 0.1
"""A job that loses more than this is not called healthy, whatever the reason. Contract, as
`decide.undecided`. (Of 66 healthy jobs that nobody here wrote none loses 5 % in turns.)"""
LEAST_STEPS = 10
"""Steps in which a rank must be late: with fewer, turns cannot be distinguished from chance. Our
choice."""
LEAST_IDLE = 3
"""Steps in which a device must idle: healthy ones hardly do. (Of 41 healthy traces that nobody here
wrote, what devices idle in turns is at most 0.6 % of the time.) Statistics."""
LENGTHENS = 0.5
"""Correlation of a step's length with what its last rank takes longer: then that explains more than
a quarter of the scatter. Where computing is hidden behind communication it is 0. Our choice."""
ALWAYS = 0.75
"""Where some rank is late in more than this part of the steps, they have unequal work: pauses are
rarer. Our choice."""
THROUGHOUT = 0.5
"""Halfway between all and nothing, as in `explain.elimination`."""
WHOLE = 0.75
"""Part of a host's ranks that must be late for the host to be the reason, as `decide.join.WHOLE`.
Our choice."""
LEAST_RANKS = 3
"""Ranks of one host that are late in turns although the host is not named: one or two of them may
be slow ranks, each by itself. Our choice."""
SCORE = 0.7
"""As of slow steps at regular distances whose source is known (`periods`). Our choice."""


@dataclass(frozen=True)
class Turns:
    """The columns in which some rank is far later than its peers, and what that costs."""

    columns: Ints
    rows: Ints
    """The late rank of each."""
    lost_ns: Floats
    """What each step loses."""
    loss: float
    """The same as a share of the time of all judged steps."""
    host: tuple[int, ...] = ()
    """All rows of a host, where those of other hosts are hardly ever late."""
    is_idle: bool = False
    """Whether devices of late ranks idle."""
    part: Span | None = None
    """The columns from the first of a part of the steps to after its last, if others lose less."""

    def within(self, job: Observed) -> Span:
        return self.part or (job.line.warm_up, len(job.line.steps))


class InTurns:
    """A different rank in each step that takes far longer than its peers, so that all wait."""

    name = "in-turns"
    needs = Needs("phases|comm_ops|kernels", "steps|kernels|phases|comm_ops", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Recurring]:
        turns = find_turns(job)
        if turns is not None and turns.loss > LEAST_LOSS:
            yield _found(job, turns)


def find_turns(job: Observed) -> Turns | None:
    """Ranks that are late in turns; None where one rank has most of it, or nothing gets longer."""
    return _by_own_time(job) or _by_idle_devices(job)


def _by_idle_devices(job: Observed) -> Turns | None:
    idle, skip = idle_beyond_peers(job), job.line.warm_up
    if idle is None:
        return None
    period = float(np.nansum(job.line.job_period_ns[skip:]))
    rows, last = idle[:, skip:].argmax(axis=0), idle[:, skip:].max(axis=0)
    columns = np.flatnonzero(last > SPIKE_SHARE * job.line.typical_ns)
    if columns.size < LEAST_IDLE or not period:
        return None
    rows, lost = rows[columns], last[columns]
    if stays_with_one(rows, lost):
        return None
    turns = Turns(columns + skip, rows, lost, float(lost.sum() / period), is_idle=True)
    return _of_a_host(job, turns)


def _by_own_time(job: Observed) -> Turns | None:
    skip = job.line.warm_up
    period = np.nan_to_num(job.line.job_period_ns[skip:])
    if not job.own.phases or period.size < LEAST_STEPS or not period.any():
        return None
    above = _above(job.total[:, skip:], job.groups(None))
    rows, last = above.argmax(axis=0), above.max(axis=0)
    noise = np.maximum(SPIKE_Z * _scatter(above, job.groups(None)),
                       SPIKE_SHARE * job.line.typical_ns)  # fmt: skip
    late: Mask = np.asarray(last > noise[rows])
    lost = np.where(late, last, 0.0) * lengthening(period, last)
    if late.sum() < LEAST_STEPS:
        return None
    if stays_with_one(rows, lost):
        most = np.bincount(rows, lost).argmax()
        if not _take_turns(np.delete(above, most, axis=0), np.delete(noise, most), period):
            return None
    columns = np.flatnonzero(late)
    loss = float(lost.sum() / period.sum())
    turns = Turns(columns + skip, rows[columns], lost[columns], loss)
    found = _of_a_host(job, turns)
    return found and replace(found, part=_part(job, found))


def _scatter(above: Floats, groups: list[Ints]) -> Floats:
    """By row, how far its peers scatter: ranks with another role do so by more or less."""
    found = np.full(len(above), stats.sigma(above))
    for rows in groups:
        found[rows] = stats.sigma(above[rows])
    return found


def _take_turns(above: Floats, noise: Floats, period: Floats) -> bool:
    """Whether these ranks, too, would hold up all others in turns: without the one that does it
    most often."""
    rows, last = above.argmax(axis=0), above.max(axis=0)
    lost = np.where(last > noise[rows], last, 0.0)
    enough = lost.sum() > LEAST_LOSS * period.sum()
    return bool(enough) and not stays_with_one(rows, lost)


def _part(job: Observed, turns: Turns) -> Span | None:
    """The steps in which it happens, if it is clearly less in the others."""
    lost = np.zeros(len(job.line.steps))
    lost[turns.columns] = turns.lost_ns
    part = waste.stretch(job, lost, ORDINARY, planned=False)
    return None if part is None else (part.first, part.stop)


def _of_a_host(job: Observed, turns: Turns) -> Turns | None:
    """Of one host, where its ranks have most of it and far more often than chance explains; None if
    one or two of its ranks have most of it. Of several it is not known whether it is the host."""
    units = job.host_rows
    if len(units) < 2:
        return turns
    lost = [float(turns.lost_ns[np.isin(turns.rows, unit)].sum()) for unit in units]
    worst = units[int(np.argmax(lost))]
    own = np.isin(turns.rows, worst)
    if max(lost) <= CHANGING * turns.lost_ns.sum():
        return turns
    count, ranks = int(own.sum()), np.unique(turns.rows[own]).size
    chance = poisson_tail(count, (turns.rows.size - count + 1) / (len(units) - 1))
    if chance * len(units) > FALSE_ALARMS or ranks < max(WHOLE * worst.size, 2):
        return turns if ranks >= LEAST_RANKS else None
    loss = turns.loss * float(turns.lost_ns[own].sum() / turns.lost_ns.sum())
    rows = tuple(map(int, worst))
    return replace(turns, columns=turns.columns[own], rows=turns.rows[own],
                   lost_ns=turns.lost_ns[own], loss=loss, host=rows)  # fmt: skip


def lengthening(period: Floats, last: Floats) -> float:
    """How much longer steps get with what their last rank takes longer: 0 not at all, 1 all of it.

    Steps that are long for another reason, such as checkpoints, show nothing of it: what their last
    rank takes is no longer than in other steps.
    """
    rise, more = period - stats.median(period), last - stats.median(last)
    spread = max(stats.sigma(period), stats.NOISE_FLOOR * stats.median(period))
    other = (rise > SPIKE_MADS * spread) & (more < HALF * rise)
    period, last = period[~other], last[~other]
    if period.size < LEAST_STEPS or not (np.ptp(period) and np.ptp(last)):
        return 0.0
    together = float(np.corrcoef(period, last)[0, 1])
    slope = together * float(period.std() / last.std())
    return min(slope, 1.0) if together >= LENGTHENS else 0.0


def _found(job: Observed, turns: Turns) -> Recurring:
    line, (first, stop) = job.line, turns.within(job)
    inside = (turns.columns >= first) & (turns.columns < stop)
    count = int(inside.sum())
    loss = float(turns.lost_ns[inside].sum() / np.nansum(line.job_period_ns[first:stop]))
    rows = list(turns.host) or np.unique(turns.rows)
    ranks = line.ranks_of(rows)
    cause, phase = _cause(job, turns)
    each_ns = float(turns.lost_ns[inside].mean())
    detail = (
        f"in {count} of {stop - first} steps one of {name_ranks(ranks)} takes {each_ns / 1e6:.0f} "
        f"ms longer than its peers{f', mostly in {phase}' if phase else ''}"
    )
    if turns.is_idle:
        detail = (
            f"in {count} of {stop - first} steps the device of one of {name_ranks(ranks)} idles "
            f"for {each_ns / 1e6:.0f} ms, because its host launches nothing"
        )
    what = "has more work than its peers" if cause == "load_imbalance" else "is late"
    says = (
        f"{name_ranks(ranks)} hold up all others in turns: in {count} of {stop - first} steps one "
        f"of them {what}, which costs {percent(loss)} of the time"
    )
    says += line.since(first)
    advises = UNEVEN if cause == "load_imbalance" else SLOW[cause]
    rule = Decision("costs-enough", True, turns.loss, LEAST_LOSS, "lost in turns", gate=False)
    return Recurring(
        InTurns.name, cause, detail, ranks if turns.host else (), phase=phase,
        steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        slowdown=1 / max(1 - loss, 0.01), lost_ns=each_ns, lost_fraction=loss,
        victims=None if turns.host else 0, score=SCORE,
        values={"late_steps": count, "ranks_in_turns": len(ranks), "lost_fraction": loss},
        decisions=(rule,), says=says, advises=advises, in_turns=ranks,
    )  # fmt: skip


def _cause(job: Observed, turns: Turns) -> tuple[Cause, str | None]:
    """Why, and the phase with most of it: pauses that were recorded, loading, work if some rank is
    late in most steps and in all of them; else whatever stops a process on its host."""
    phase = _phase(job, turns)
    if _is_most(turns, job.pauses):
        return "gc", phase
    if turns.is_idle:
        return "host", None
    if loads(phase):
        return "data_loading", phase
    first, stop = turns.within(job)
    late = ((turns.columns >= first) & (turns.columns < stop)).sum()
    in_place = in_one_place(job, turns.rows, turns.columns, turns.lost_ns)
    if turns.host or in_place or _is_most(turns, idle_beyond_peers(job)):
        return "host", phase
    return ("load_imbalance" if late > ALWAYS * (stop - first) else "host"), phase


def _is_most(turns: Turns, spent: Floats | None) -> bool:
    """Whether it is most of what late ranks take longer: pauses, or waiting of their devices."""
    at, lost = (turns.rows, turns.columns), turns.lost_ns
    return spent is not None and bool(np.minimum(spent[at], lost).sum() >= HALF * lost.sum())


def in_one_place(job: Observed, rows: Ints, columns: Ints, longer_ns: Floats) -> bool | None:
    """Whether late ranks are late between two operators and not in the rest of their step: a pause
    is in one place, more work in all of them. Known of operators alone, else None.

    Args:
        longer_ns: what each of them takes longer than its peers, beside its rank and step.
    """
    if job.own.elsewhere is None:
        return None
    at = rows, columns
    longer = job.total[at] / np.maximum(job.total[at] - longer_ns, 1.0) - 1
    return stats.median(job.own.elsewhere[at] - 1) < THROUGHOUT * stats.median(longer)


def _phase(job: Observed, turns: Turns) -> str | None:
    excess = [_above(own, job.groups(phase))[turns.rows, turns.columns].sum()
              for phase, own in job.own.items()]  # fmt: skip
    at = int(np.argmax(excess))
    whole = float(np.maximum(excess, 0.0).sum())
    return job.own.phases[at] if excess[at] >= HALF * whole > 0 else None


def _above(own: Floats, groups: list[Ints]) -> Floats:
    above = np.nan_to_num(above_peers(own, groups))
    return np.asarray(above - stats.row_medians(above)[:, None])

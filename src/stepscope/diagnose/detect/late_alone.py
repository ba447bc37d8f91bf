"""The ranks for which alone all others wait, where nothing recorded shows why.

Fault: whatever slows a rank, or all ranks of a host, where that does not show as their own time:
their passes may hide waiting, a thread works that no recorder follows, or it lasts for few steps.
Papers: Holmes (2025) and VenusTrace (2025), section 4, follow the longest operators. Here the last
arrival counts (`views.arrivals`).
Rule: of the operators of a step that one counts in which the others wait for longest: ranks that do
not wait in between are late for all of them. Lateness in turns is noise and cancels out: what some
cause beyond any others is a loss. Ranks that are late together, as those of a host or of a group
within the model, make nobody wait as single ranks, so each of these units is looked at. In a
group's own operators lateness adds up, and shows which member holds up the others. Where no clocks
could be aligned, ranks are compared within their hosts only. Calls that return at once show only
by how much a rank is later than usual, and suspects.
Cost: a few passes over the arrivals. Cannot see: ranks that others held up in operators that were
not recorded; jobs whose ranks have several roles, of which one waits for the other by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.step_time import scheduled
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST, SUSPECT_SCORE
from stepscope.diagnose.views.arrivals import Arrivals
from stepscope.diagnose.views.hidden_waits import BLOCKING_KINDS
from stepscope.diagnose.views.peers import across_stages, stages
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints, Mask

LEAST_LATE = 0.05
"""Of the time that all others wait for some alone, beyond what they wait for any others. Of 209
healthy jobs of simulators that nobody here wrote none exceeds 3.3 %. Measured on these."""
SCORE = 0.6
"""Of 21 such findings in jobs of simulators that nobody here wrote, 18 were right. Measured."""
LEAST_STEPS = 3
"""In which they are late: single pauses happen to any rank, as in `transient`. Our simulator."""
LEAST_OF_FEW = 0.1
"""Of the time, that pauses in fewer steps cost for a suspicion: more is not healthy (contract)."""
HALF = 0.5
"""Of what a larger unit causes, a smaller one has to cause to be named. Statistics."""


class LateAlone:
    """Ranks for which alone all others wait, where nothing else was found."""

    name = "late-alone"
    needs = Needs("comm_ops", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        judged = len(job.line.steps) - job.line.warm_up
        if so_far.blamed or job.arrivals is None or judged < 1 or job.has_roles:
            return
        found = (_latest(job, job.arrivals, unit) for unit in _units(job))
        late = [one for one in found if one is not None]
        most = max((one.lost for one in late), default=0.0)
        if most >= LEAST_LATE:
            yield _finding(job, job.arrivals, next(one for one in late if one.lost >= HALF * most))


def _is_known(job: Observed) -> bool:
    """Whether it is known when operators ended: where only calls were recorded that return at once,
    hosts run ahead of their devices, each as far as it likes."""
    comm = job.window.table("comm_ops")
    return comm is not None and comm.knows("end_ns")


@dataclass(frozen=True)
class _Late:
    rows: Ints
    """Of the timeline."""
    beyond_ns: Floats
    """By step, how much longer the others wait for these than for any others."""
    lost: float
    """The share of the time, net of what any others cause."""
    is_host: bool
    steps: int
    """In which the others wait for these."""


@dataclass(frozen=True)
class _Unit:
    """A division of the ranks: by themselves, groups within the model, hosts."""

    number: Ints
    """By row."""
    is_host: bool = False


def _units(job: Observed) -> Iterator[_Unit]:
    """All divisions, the finest first."""
    yield _Unit(np.arange(len(job.line.ranks)))
    window = job.window
    for kind in BLOCKING_KINDS:
        groups = [np.array(group.ranks) for group in window.job.groups
                  if group.kind == kind and len(group.ranks) > 1]  # fmt: skip
        if len(groups) > 1:
            yield _Unit(_numbers(job, [job.line.rows(ranks) for ranks in groups]))
    if len(job.host_rows) > 1 and _is_aligned(job):
        yield _Unit(_numbers(job, job.host_rows), is_host=True)


def _numbers(job: Observed, parts: list[Ints]) -> Ints:
    """A number for the part of each row; what is in none is a part by itself."""
    number = len(parts) + np.arange(len(job.line.ranks))
    for at, rows in enumerate(parts):
        number[rows[rows >= 0]] = at
    return np.unique(number, return_inverse=True)[1]


def _is_aligned(job: Observed) -> bool:
    return len(job.host_rows) < 2 or (job.has_ends and _is_known(job))


def _latest(job: Observed, arrivals: Arrivals, unit: _Unit) -> _Late | None:
    """What is late alone of a division."""
    if unit.number.max() == 0:
        return None
    judged = (arrivals.step >= 0) & _meet_at_work(job, arrivals)
    clocks = np.zeros(len(job.line.ranks), np.int64)
    if not _is_aligned(job):
        clocks = _numbers(job, job.host_rows)
    caused = arrivals.made_wait(unit.number, clocks, judged, len(job.line.steps))
    if not _is_known(job):
        usual = stats.row_medians(caused[:, job.line.warm_up :])
        caused = np.maximum(caused - usual[:, None], 0.0)
    mean = caused[:, job.line.warm_up :].mean(axis=1)
    at = int(mean.argmax())
    net_ns = mean[at] - np.partition(mean, -2)[-2]
    beyond = caused[at] - np.delete(caused, at, axis=0).max(axis=0)
    lost = float(net_ns) / max(job.line.typical_ns, 1.0)
    steps = int((beyond[job.line.warm_up :] > LEAST_COST * job.line.typical_ns).sum())
    if steps < LEAST_STEPS and (lost < LEAST_OF_FEW or not _is_known(job)):
        return None
    return _Late(np.flatnonzero(unit.number == at), beyond, lost, unit.is_host, steps)


def _meet_at_work(job: Observed, arrivals: Arrivals) -> Mask:
    """Operators whose members do the same work: stages of a pipeline come one after the other."""
    if not is_staged(job.window):
        return np.ones(arrivals.step.size, np.bool_)
    apart, known = across_stages(job.window), stages(job.window)
    alike = [group.id for group in job.window.job.groups
             if group.id not in apart and known.keys() >= set(group.ranks)]  # fmt: skip
    return arrivals.group.equals(*alike)


def _finding(job: Observed, arrivals: Arrivals, late: _Late) -> Slowdown:
    line, skip = job.line, job.line.warm_up
    rows = _member(job, arrivals, late)
    ranks, together = line.ranks_of(rows), _is_one_group(job, line.ranks_of(rows))
    least_ns = LEAST_COST * line.typical_ns
    stretch = stats.worst_stretch(late.beyond_ns[None, skip:], least_ns)
    first, stop = (skip + int(one[0]) for one in (stretch.first, stretch.stop))
    says = f"all others wait for {name_ranks(ranks)}, for {percent(late.lost)} of their time"
    says += f"{line.since(first)}{', and one of these holds up the rest' if together else ''}"
    planned = _is_planned(job, np.flatnonzero(late.beyond_ns > least_ns))
    sure = _is_known(job) and not (together or planned or late.steps < LEAST_STEPS)
    return Slowdown(
        LateAlone.name, "host" if late.is_host and len(ranks) > 1 and not together else "unknown",
        f"in the collectives for which they wait longest, the others wait for {name_ranks(ranks)} "
        f"alone, {late.lost * line.typical_ns / 1e6:.1f} ms longer per step than for any others",
        ranks, steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        slowdown=1 / max(1 - late.lost, 0.01), lost_fraction=late.lost,
        lost_of=line.span(skip, len(line.steps)), score=SCORE if sure else SUSPECT_SCORE,
        says=says, values={"late": late.lost},
    )  # fmt: skip


def _member(job: Observed, arrivals: Arrivals, late: _Late) -> Ints:
    """The one of these ranks for which the others of them wait in their own operators, by most of
    what it costs; else all of them."""
    ranks, skip = set(job.line.ranks_of(late.rows)), job.line.warm_up
    inside = [group.id for group in job.window.job.groups if ranks.issuperset(group.ranks)]
    own = (arrivals.step >= skip) & arrivals.group.equals(*inside)
    caused = stats.sums(arrivals.last_rank[own], arrivals.alone_ns[own], len(job.line.ranks))
    following, most = np.partition(caused, -2)[-2:]
    lost_ns = late.lost * job.line.typical_ns * (len(job.line.steps) - skip)
    shows = most - following >= HALF * lost_ns
    return np.array([caused.argmax()]) if shows else late.rows


def _is_planned(job: Observed, late: Ints) -> bool:
    """Whether they are late in steps on a schedule: they may save or evaluate for all."""
    steps = job.line.steps
    return bool(late.size and scheduled(steps[late], steps).mean() >= HALF)


def _is_one_group(job: Observed, ranks: tuple[int, ...]) -> bool:
    """Whether ranks work on the same layers: one slow device holds up all of them."""
    groups = job.window.job.groups_of_kind(*BLOCKING_KINDS)
    return len(ranks) > 1 and any(set(ranks) <= set(group.ranks) for group in groups)

"""How long a step takes by what ranks do themselves: the what-if of jobs without a step graph.

Replicas meet at the end of a step, so it lasts as long as its latest replica. Within a replica,
stages work in turn on one microbatch, and the slowest stage is passed once more for each of the
other microbatches: (m - 1) times the slowest stage plus the sum of the stages. Ranks of one stage
(tensor parallel) wait for the slowest of them.

Source: ByteDance, Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI
2025), replays every operation instead; the formula is that of a 1F1B pipeline (Narayanan et al.,
2021, section 2.2) with unequal stages.
Cost: linear in ranks and steps. Cannot see: overlap of communication, interleaved stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import communicates, is_work
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.hidden_waits import WAIT_FREE, receives_apart
from stepscope.diagnose.views.peers import stage_numbers
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.unnamed import KERNELS, UNNAMED, is_staged
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER
from stepscope.window import NULL, Floats, Ints, Window

ABOUT, BEYOND = 8, 5.0
"""Steps before and after one that show whether steps became longer there, and by how many standard
deviations of a single step they must. As in `decide.cost`."""


@dataclass(frozen=True)
class Model:
    """Where ranks are, and how their work adds up to a step."""

    stage: Ints
    """By row of the grid, the index in its pipeline."""
    replica: Ints
    microbatches: float

    @classmethod
    def of(cls, job: Observed) -> Model:
        row = {int(rank): at for at, rank in enumerate(job.line.ranks)}
        stage = stage_numbers(job.window, job.line.ranks)
        replica = np.zeros(len(row), np.int64)
        for at, ranks in enumerate(job.replicas):
            replica[[row[int(rank)] for rank in ranks if int(rank) in row]] = at
        model = cls(stage, replica, _microbatches(job, stage))
        return model if model.microbatches > 1 or not model.staged else _as_long_as(job, model)

    @property
    def staged(self) -> bool:
        """Whether several stages were recorded."""
        return bool(self.stage.size) and bool((self.stage != self.stage[0]).any())

    @property
    def stages(self) -> list[Ints]:
        """The rows of each stage."""
        return [np.flatnonzero(self.stage == at) for at in np.unique(self.stage)]

    def step_ns(self, own: Floats) -> Floats:
        """How long each step takes, from own times `[rank, step]`; an unknown time counts as the
        median."""
        known = np.isfinite(own)
        typical = np.nanmedian(np.where(known.any(axis=0), own, 0.0), axis=0)
        work = np.zeros((self.replica.max() + 1, self.stage.max() + 1, own.shape[1]))
        np.maximum.at(work, (self.replica, self.stage), np.where(known, own, typical))
        m = self.microbatches
        each = ((m - 1) * work.max(axis=1) + work.sum(axis=1)) / m
        return np.asarray(each.max(axis=0))


def _as_long_as(job: Observed, model: Model) -> Model:
    """The same with as many microbatches as measured steps require at least.

    What a rank of the slowest stage does not compute in a step, it waits, moves data, or stands in
    the bubble of the other stages' work on one microbatch. The bubble is no longer than all of it.
    """
    computed = _computed(job)
    if computed is None:
        return model
    own, period = computed[:, job.line.warm_up :], job.line.job_period_ns[job.line.warm_up :]
    levels = stats.row_medians(own)
    stages = np.array([stats.median(levels[rows]) for rows in model.stages])
    rest = stats.median(period) - stages.max()
    if not np.isfinite(rest):
        return model
    bubbles = float(stages.sum() - stages.max()) / max(rest, 1.0)
    return replace(model, microbatches=max(bubbles, 1.0))


def _computed(job: Observed) -> Floats | None:
    """What each rank computes, `[rank, step]`, if no waiting for other stages is in it: kernels, or
    phases where receiving has phases of its own; else None."""
    if KERNELS in job.own.phases:
        return job.total
    rows = phase_rows(job.window, job.line)
    if rows is None or not receives_apart(rows):
        return None
    names = [name for name in rows.names.values if is_work(name)]
    return np.asarray(rows.grids(rows.duration, names).sum(axis=0))


def _microbatches(job: Observed, stage: Ints) -> int:
    """As the schedule or the phases say; else as often as the first stage sends to the second in a
    step: in interleaved schedules, where each chunk is sent, stages wait for as much less."""
    known = job.window.job.schedule.microbatches if job.window.job.schedule else 1
    phases = job.window.table("phases")
    if phases is not None and phases.has("microbatch") and len(phases):
        known = max(known, int(phases.ints("microbatch").max()) + 1)
    return known if known > 1 else max(_sent_on(job, stage), 1)


def _sent_on(job: Observed, stage: Ints) -> int:
    """How often a rank of the first stage usually sends to the second in a step; 0: unknown."""
    comm, line = job.window.table("comm_ops"), job.line
    if comm is None or not comm.has("peer", "step"):
        return 0
    sends = comm.take(comm.strings("op").equals("Send"))
    row, peer = line.rows(sends.ints("rank")), line.rows(sends.ints("peer"))
    column = line.columns(sends.ints("step"))
    known = (row >= 0) & (peer >= 0) & (column >= 0)
    row, peer, column = row[known], peer[known], column[known]
    on = (stage[row] == 0) & (stage[peer] == 1)
    counts = np.bincount(row[on] * len(line.steps) + column[on])
    return int(np.median(counts[counts > 0])) if on.any() else 0


def unknown_excess_ns(job: Observed, one: Suspect, usual_ns: float) -> float:
    """How much longer a rank takes if it is as slow in the rest of the step as in what is known of
    its own time, where that is less than half of the step: transfers beside its work hide it.

    0 unless steps became longer when the rank did, beyond noise. Nobody loads data in the rest.
    """
    known = stats.median(job.total[:, job.line.warm_up :])
    works = [phase for phase in one.phases if is_work(phase)]
    if one.spikes or not works or known >= HALF * usual_ns or one.first < ABOUT:
        return 0.0
    period = job.line.job_period_ns
    before, after = period[one.first - ABOUT : one.first], period[one.first : one.first + ABOUT]
    rise = stats.median(after) - stats.median(before)
    return (one.slowdown - 1) * usual_ns if rise > BEYOND * stats.sigma(before) else 0.0


def device_excess_ns(job: Observed, one: Suspect) -> float:
    """How much longer per step a slow device computes, also in passes that hide waiting.

    Peers that wait within a pass, beside operators that run on, are in it for as long as the rank
    they wait for, so that a comparison of passes shows only where they differ. How many times as
    long the device takes is measured in phases without waiting, the optimizer among them, and the
    last rank itself waits for nobody: of its passes it takes that part longer. Of passes whose
    waiting was measured it is known what they take longer. 0 where it is slow in nothing but the
    optimizer (it may have a larger part of its state), and in pipelines and with experts, where
    slow ranks wait as well.
    """
    passes = job.own.hidden_phases.union(_unmarked_passes(job.window))
    apart = [phase for phase in job.own.phases
             if is_work(phase) and phase not in {*passes, *UNNAMED}]  # fmt: skip
    slow_within = {phase for phase in one.phases if is_work(phase)} - {OPTIMIZER, *UNNAMED}
    if not slow_within or (OPTIMIZER not in apart and len(apart) < 2):
        return 0.0
    if is_staged(job.window) or job.has_experts:
        return 0.0
    # by others' names nobody knows which phases are the device's
    works = [phase for phase in apart if phase in WAIT_FREE or OPTIMIZER not in apart]
    longer = 1.0 - 1.0 / min(_times_as_long(job, one, phase) for phase in works)
    excess = [longer * time for time in _as_slow(job, one, passes)]
    if longer > 0 and job.own.hidden_phases:
        excess += [job.excess_of(phase, one.row)[one.columns] for phase in apart
                   if phase in slow_within]  # fmt: skip
    return max(stats.median(np.nansum(excess, axis=0)), 0.0) if excess else 0.0


def _as_slow(job: Observed, one: Suspect, passes: frozenset[str]) -> list[Floats]:
    """How long a rank is in its optimizer and in each pass that may hide waiting, in its steps."""
    own, hidden = job.own, sorted(job.own.hidden_phases)
    phases = [phase for phase in own.phases if phase in {OPTIMIZER, *passes}.difference(hidden)]
    rows = phase_rows(job.window, job.line) if hidden else None
    lasted = [own.of(phase) for phase in phases]
    if rows is not None:
        lasted += [*rows.grids(rows.duration, hidden)]
    return [time[one.row, one.columns] for time in lasted]


def _unmarked_passes(window: Window) -> frozenset[str]:
    """Passes that may hide waiting of which nobody says anything.

    Not those of which it was measured or marked; nor any if communication has phases of its own:
    who times it apart from the passes times these without it.
    """
    passes, phases = frozenset((FORWARD, BACKWARD)), window.table("phases")
    if phases is None:
        return passes
    names = phases.strings("phase")
    if phases.has("waits") or any(communicates(name) for name in names.values):
        return frozenset()
    return passes - names.named(phases.ints("wait_ns") != NULL) if phases.has("wait_ns") else passes


def _times_as_long(job: Observed, one: Suspect, phase: str) -> float:
    """How many times as long as its peers a rank usually takes in a phase; 1 if unknown."""
    own, peers = job.own.of(phase)[:, one.columns], job.peers_of(one.row, phase)
    if not peers.size:
        return 1.0
    times = own[one.row] / np.maximum(stats.column_median(own[peers]), 1.0)
    known = times[np.isfinite(times)]
    return max(stats.median(known), 1.0) if known.size else 1.0

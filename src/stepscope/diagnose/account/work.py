"""How much work each rank did, by the best measure that was recorded: passes, kernels, or time
between operators.

The passes are own time by step, and so are the compute kernels that a profiler saw. Summaries of
kernels show them by window, which is not the same time on hosts whose clocks differ. Where only
operators were recorded, sends and receives among them, what is left of a step is work.

Where passes hide who waits for whom, ranks that meet within the pass of one microbatch wait only
for each other in it, because its input was there when it began. So the pass of the one that takes
the least of it is work of all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.linked import connected
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.hidden_waits import (
    WITHIN_PASSES,
    is_whole,
    passes_alone,
    receives_apart,
)
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.unnamed import BETWEEN, KERNELS, UNNAMED, is_staged
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER, WEIGHT
from stepscope.window import Floats, Ints


@dataclass(frozen=True)
class Work:
    """Work of `[rank, part]` in ns, and how long each part of the job lasted."""

    own: Floats
    lasted_ns: Floats


def work(job: Observed) -> Work | None:
    """The work of all ranks without warm-up; None where it cannot be distinguished from waiting."""
    skip, passes = job.line.warm_up, two_passes(job)
    lasted = job.line.job_period_ns[skip:]
    if job.line.is_trace and job.kernels is not None:  # graphs replay passes without operators
        return Work(job.kernels.spent_ns(is_computing), job.kernels.length_ns)
    own = together_in_passes(job) if passes is None else passes[0] + passes[1]
    if own is not None and passes is not None and WEIGHT in job.own.phases:
        own = own + job.own.of(WEIGHT)
    if own is None and KERNELS in job.own.phases:
        own = job.own.of(KERNELS)
    if own is not None:
        return Work(own[:, skip:], lasted)
    if job.kernels is not None:
        return Work(job.kernels.spent_ns(is_computing), job.kernels.length_ns)
    comm = job.window.table("comm_ops")
    if comm is None or BETWEEN not in job.own.phases:
        return None
    if not comm.strings("op").equals(*POINT_TO_POINT).any():
        return None
    own = job.own.of(BETWEEN)[:, skip:]
    return Work(np.asarray(own), lasted)


def two_passes(job: Observed) -> tuple[Floats, Floats] | None:
    """Own time in the forward and the backward pass; None where they are not known, or where of a
    stage only what some ranks do behind others is.

    Under other names they are the two phases with the most own time.
    """
    passes = _passes(job)
    if passes is None:
        return None
    excesses = any(job.own.phases[at] in job.own.lasted for at in passes)
    if excesses and is_staged(job.window):
        return None
    return job.own.own[passes[0]], job.own.own[passes[1]]


def hidden_passes(job: Observed, whole: bool = False) -> Floats | None:
    """How long each rank is in hidden passes of one microbatch, `[rank, step]`; None where there
    are none, or some are passes of a whole step, which may also wait for other stages, unless
    receiving from these has phases of its own.

    Args:
        whole: those of a whole step count as well.
    """
    rows = phase_rows(job.window, job.line) if job.own.hidden else None
    if rows is None:
        return None
    passes = passes_alone(rows) or {*rows.passes, WEIGHT}
    names = sorted(job.own.hidden_phases & passes)
    if not names:
        return None
    if not (whole or receives_apart(rows)) and (rows.names.equals(*names) & is_whole(rows)).any():
        return None
    return np.asarray(rows.grids(rows.duration, names).sum(axis=0))


def together_in_passes(job: Observed) -> Floats | None:
    """The work in hidden passes of all that meet within them, `[rank, step]`, by the one that takes
    the least; None where it is unknown, or all replicas meet: then one slow rank holds them all."""
    spent = hidden_passes(job)
    if spent is None:
        return None
    groups = [job.line.rows(np.array(group.ranks, np.int64))
              for group in job.window.job.groups_of_kind(*WITHIN_PASSES)]  # fmt: skip
    alone = np.arange(len(spent))[:, None].tolist()
    units = connected([*alone, *(rows[rows >= 0].tolist() for rows in groups)])
    for rows in units:
        spent[rows] = spent[rows].min(axis=0)
    stage = job.window.job.stage_by_rank
    of_unit = [stage.get(int(job.line.ranks[rows[0]]), 0) for rows in units]
    return spent if min(np.bincount(of_unit)) > 1 else None


def processor_part(
    job: Observed, excess: Floats, groups: Sequence[Ints], part: slice
) -> float | None:
    """How much of the time for which each step's rank with most work exceeds its peers is processor
    time; None where a device does the work, or nobody measured it.

    Args:
        excess: above the middle of the group, `[rank, step]`, of all steps.
        part: the steps in question.
    """
    passes = _passes(job)
    if job.has_devices or passes is None:
        return None
    cpu = job.own.cpu[passes[0]] + job.own.cpu[passes[1]]
    for rows in groups:
        cpu[rows] -= stats.column_median(cpu[rows])
    columns = np.arange(excess.shape[1])[part]
    columns = columns[np.isfinite(excess[:, columns]).any(axis=0)]
    at = np.nanargmax(excess[:, columns], axis=0), columns
    known = np.isfinite(cpu[at])
    whole = float(excess[at][known].sum())
    return float(cpu[at][known].sum()) / whole if whole > 0 else None


def _passes(job: Observed) -> tuple[int, int] | None:
    """Where the two passes are among the phases."""
    known = job.own.phases
    if FORWARD in known and BACKWARD in known:
        return known.index(FORWARD), known.index(BACKWARD)
    named = [at for at, phase in enumerate(known) if phase not in (*UNNAMED, DATA_LOAD, OPTIMIZER)]
    largest = sorted(named, key=lambda at: -float(np.nansum(job.own.own[at])))[:2]
    if len(largest) < 2:
        return None
    return largest[0], largest[1]

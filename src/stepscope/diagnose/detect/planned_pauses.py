"""Long steps that belong to the job: checkpoints and evaluations, which no schedule shows yet.

What recurs every so many steps `l1.scheduled` sees; of the first or only one it cannot know. Two
things tell: all ranks together stand between two steps, where frameworks save and evaluate, and not
in a step; or stacks show a rank to save or evaluate meanwhile.
Lossy: a job that stalls between steps on all ranks alike is not said to jitter.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.stacks import Samples
from stepscope.window import Floats, Ints, Mask

MOST = 0.8
"""Of a long step's excess must lie between it and the next."""
ALL_RANKS = 0.9
"""Of the ranks; a few rows may be lost."""
RARE = 0.1
"""Share of the steps that may be long in this way: nobody saves every few steps."""
MEANWHILE = 0.5
"""Of the time of a long step some rank must be seen to save."""
SAVING = ("save", "_save", "evaluat", "validat")
"""How functions that save and evaluate begin. `checkpoint` alone is activation checkpointing."""


def expected(job: Observed, samples: Samples | None, columns: Ints) -> Mask:
    """Which long steps, given by their columns, belong to the job."""
    if columns.size > max(RARE * len(job.line.steps), 1):
        return np.zeros(columns.size, np.bool_)
    between = _between_steps(job, columns)
    return between if samples is None else between | _while_saving(job, samples, columns)


def _between_steps(job: Observed, columns: Ints) -> Mask:
    """Where nearly all ranks took the time after the step's end and before the next's beginning."""
    line = job.line
    after = (line.period_ns - line.duration_ns)[:, columns]
    excess = line.job_period_ns[columns] - line.typical_ns
    known = np.isfinite(after)
    waits = known & (after >= MOST * excess)
    return np.asarray(waits.sum(axis=0) >= ALL_RANKS * np.maximum(known.sum(axis=0), 1))


def _while_saving(job: Observed, samples: Samples, columns: Ints) -> Mask:
    saves = np.array([name.lower().startswith(SAVING) for name in samples.functions], np.bool_)
    holds = np.zeros(samples.stacks, np.bool_)
    holds[samples.pair_stack[saves[samples.pair_function]]] = True
    at = job.line.column_at(samples.time_ns)
    saving = np.where(holds[samples.code], samples.weight, 0.0)
    return np.array([_share(samples, saving, at == column) >= MEANWHILE for column in columns],
                    np.bool_)  # fmt: skip


def _share(samples: Samples, saving: Floats, inside: Mask) -> float:
    """The largest part of the time that any rank was seen to save."""
    row = samples.row[inside]
    whole = stats.sums(row, samples.weight[inside], 1)
    part = stats.sums(row, saving[inside], 1) / np.maximum(whole, 1.0)
    return float(part.max())

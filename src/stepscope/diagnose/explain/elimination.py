"""The remaining cause when no measurement shows one, by where the time goes.

Fault: any slow rank.
Paper: none.
What differs: data loading, saving, copies and experts are causes by their phase. Otherwise most of
the excess is processor time (`compute`) or not (`host`); without processor times, time outside
phases, a late host, or kernels that take as long as the peers' mean `host`. Of operators alone, a
rank that takes longer before one of them only has an `unknown` cause.
A rank that takes longer now and then, and most of it in one of several passes of a step, was
stopped there: a device does not become slow for one microbatch. Its cause is `host`.
Where kernels take as long as the peers' and the host keeps ahead of its device in a pass, neither
takes longer, and the cause is `unknown`.
Cost: means over a range. Cannot see: why the host or the device is slow.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.explain import tokens
from stepscope.diagnose.explain.cpu import Use, processor_evidence, use_of_excess
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs, Strength
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import copies, loads, saves
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import FAST, HALF, PROCESSOR_TIME
from stepscope.diagnose.views.peers import is_expert
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.unnamed import BETWEEN, GAPS, OUTSIDE, UNNAMED
from stepscope.diagnose.words.advice import SAVING
from stepscope.window import Ints

SEVERAL = 3
"""Passes of a phase in a step, of which one alone can be long. Statistics: of two, either may."""
THROUGHOUT = 0.5
"""A rank that is slow throughout is by this part of its excess ratio in other gaps than the one in
which it takes the most longer: halfway between all and nothing."""


class Elimination:
    """The cause that is left when none was measured, by the slow phase and its processor time."""

    name = "elimination"
    causes: tuple[Cause, ...] = (
        "compute", "memory_copy", "host", "data_loading", "load_imbalance", "unknown",
    )  # fmt: skip
    needs = Needs()

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        cause, strength = plain_cause(job, suspect)
        evidence = processor_evidence(job, suspect)
        if _is_saving(suspect):
            saving = Evidence(SAVING, "it takes longer in a phase that saves: its host writes then")
            evidence = (*evidence, saving)
        elif cause == "host" and _kernels_are_alike(job, suspect):
            alike = Evidence(self.name, "its device computes no longer than its peers'")
            evidence = (*evidence, alike)
        return Explained(cause, strength, evidence)


def plain_cause(job: Observed, suspect: Suspect) -> tuple[Cause, Strength]:
    """The cause that the suspect's phase suggests, or else its use of the processor."""
    if loads(suspect.phase):
        return "data_loading", "measured"
    if _is_saving(suspect):
        return "host", "measured"
    if suspect.phase and is_expert(suspect.phase) and job.has_experts:
        slow = tokens.is_slow_device(job, suspect)
        slow = slow or tokens.too_many(job, suspect, suspect.phase)
        return ("compute", "residual") if slow else ("load_imbalance", "measured")
    use = use_of_excess(job, suspect)
    if copies(suspect.phase):
        return "memory_copy", "residual"
    if use.computed is None:
        return _without_processor_time(job, suspect, use), "residual"
    return ("compute" if use.computed >= PROCESSOR_TIME else "host"), "residual"


def _is_saving(suspect: Suspect) -> bool:
    """Whether it takes longer now and then in a phase that saves. In all steps that may be the
    checkpointing of activations."""
    return saves(suspect.phase) and bool(suspect.spikes or suspect.all_runs)


def _without_processor_time(job: Observed, suspect: Suspect, use: Use) -> Cause:
    alike = _kernels_are_alike(job, suspect)
    if alike and use.keeps_ahead and suspect.phase not in UNNAMED:
        return "unknown"  # neither its device nor its host: what it waits for
    if alike or use.is_late or suspect.phase in (OUTSIDE, GAPS) or _is_stopped(job, suspect):
        return "host"
    is_partly_slow = use.ahead is None and not _is_slow_throughout(job, suspect)
    return "unknown" if is_partly_slow else "compute"


def _is_slow_throughout(job: Observed, suspect: Suspect) -> bool:
    """Whether it takes longer in all that it does, as slow devices do, or nothing shows the parts.

    Of operators alone no one can tell what a rank does between them. If it takes longer before one
    operator only, it may load, save or wait for its host as well as compute. So may a rank that is
    slow now and then, where the parts are not known, as in pipelines.
    """
    if suspect.phase != BETWEEN:
        return True
    if job.own.elsewhere is None:
        return not suspect.spikes and suspect.worst is None
    ratio = stats.median(job.own.elsewhere[suspect.row, suspect.columns])
    return bool(ratio - 1 >= THROUGHOUT * (suspect.slowdown - 1))


def _is_stopped(job: Observed, suspect: Suspect) -> bool:
    """Whether most of what it takes longer now and then is in one of several passes of a step."""
    whole = suspect.all_runs or suspect
    rows = phase_rows(job.window, job.line) if whole.spikes else None
    if rows is None:
        return False
    own = np.flatnonzero((rows.rank == whole.row) & np.isin(rows.column, whole.spikes))
    column, code, lasted = rows.column[own], rows.names.codes[own], rows.duration[own]
    phases = [rows.names.values.index(name) for name in whole.phases if name in rows.names.values]
    longer = [max((_longest_beyond(lasted[(column == at) & (code == one)]) for one in phases),
                  default=0.0) for at in whole.spikes]  # fmt: skip
    excess = stats.median(job.excess_of(None, whole.row)[list(whole.spikes)])
    return stats.median(np.array(longer)) >= HALF * excess > 0


def _longest_beyond(passes_ns: Ints) -> float:
    """How much longer the longest of several passes is than the median one."""
    if passes_ns.size < SEVERAL:
        return 0.0
    return float(passes_ns.max() - np.median(passes_ns))


def _is_within_a_window(job: Observed, suspect: Suspect) -> bool:
    """Whether it was slow for less than a window of kernels, in which its excess is diluted."""
    begin_ns, end_ns = job.line.span_ns(suspect.first, suspect.stop)
    return job.kernels is not None and end_ns - begin_ns < stats.median(job.kernels.length_ns)


def _kernels_are_alike(job: Observed, suspect: Suspect) -> bool:
    """Whether its device does not compute longer than its peers' in any window, though the rank
    takes longer; false where no kernels were recorded, or for longer at a time than it was slow.

    Kernels may be recorded for a part of the time only: then they take as many times as long as its
    peers' as the rank does, but not by as much of the time.
    """
    busy = job.device_busy
    if busy is None or suspect.excess_ns <= 0 or _is_within_a_window(job, suspect):
        return False
    peers = job.peers_of(suspect.row, suspect.phase)
    usual = stats.column_median(busy[peers[peers != suspect.row]])
    seen = np.isfinite(busy[suspect.row]) & (usual > 0)
    if not seen.any():
        return False
    busier, usual = busy[suspect.row][seen] - usual[seen], usual[seen]
    work_ns = float(np.nanmedian(job.total[peers][:, job.line.warm_up :]))
    more_ns = (busier * job.line.typical_ns, busier / usual * work_ns)
    return max(float(np.quantile(one, 1 - FAST)) for one in more_ns) < HALF * suspect.excess_ns

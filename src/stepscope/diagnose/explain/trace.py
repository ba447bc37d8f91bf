"""What a suspect spends more time on than its peers, where a trace shows every kernel or operator.

Fault: slow kernels, slow copies, a late host, or more work than the others have.
Paper: none; the parts are those of `breakdown`. KAIR (2026), section 4, explains a rank by its
divergent kernels.
What differs: durations and numbers of kernels are compared separately, because more kernels of the
usual length are more work and no bad device (blame rule 5). A kernel that runs in place of a usual
one is not more work.
Cost: sums over `kernels` or `host_ops`. Cannot see: shapes, so that a matrix product over more rows
looks like a slower one; and why the host is late, which stacks show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.detect.profiled.odd_patterns import LONGER
from stepscope.diagnose.explain.function import evidence_of, slow_function
from stepscope.diagnose.explain.kernels import NAMED
from stepscope.diagnose.explain.more_data import MoreData
from stepscope.diagnose.explain.tokens import MoreTokens
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.frames import compiles
from stepscope.diagnose.views.lost import lost_operators
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Mask, Strings, Table

LEAST_SHARE = 0.1
"""Of the excess: a part or kernel that carries less is not named. Our simulator."""

_PARTS: dict[str, tuple[Cause, tuple[str, ...]]] = {
    "computing": ("compute", ("compute_ns",)),
    "copying": ("memory_copy", ("copy_ns",)),
    "waiting for the host": ("host", ("host_wait_ns", "other_ns")),
}


@dataclass(frozen=True)
class Traced:
    """The cause that a trace shows, and the kernels that carry most of the excess."""

    cause: Cause
    kernels: tuple[str, ...]
    evidence: Evidence


@dataclass(frozen=True)
class _Totals:
    """Per rank and kernel, over all steps in question."""

    names: tuple[str, ...]
    count: Floats
    time_ns: Floats


def traced_cause(job: Observed, suspect: Suspect) -> Traced | None:
    """What the suspect spends more time on than its peers; None if no trace shows it."""
    parts = _parts(job, suspect)
    if parts is None or not sum(parts.values()) > 0:
        return None
    whole = sum(parts.values())
    part = max(parts, key=lambda name: parts[name])
    if parts[part] < HALF * max(whole, suspect.excess_ns):  # the rest is before its first kernel
        return None
    cause = _PARTS[part][0]
    said = ", ".join(f"{value / 1e6:.1f} ms {name}" for name, value in parts.items()
                     if value >= LEAST_SHARE * whole)  # fmt: skip
    values = {f"{name.replace(' ', '_')}_ns": value for name, value in parts.items()}
    detail = f"per step it spends more time than its peers: {said}"
    if cause != "compute":
        return Traced(cause, (), Evidence(SlowTrace.name, detail, values))
    totals = _totals(job, suspect)
    more, kernels = _more_work(totals, job, suspect)
    if more >= HALF:
        cause = "load_imbalance"
        detail += f"; {percent(more)} of it is more work, not slower work"
    if kernels:
        detail += f"; mostly in {', '.join(kernels)}"
    on_device = job.window.table("kernels") is not None
    evidence = Evidence(SlowTrace.name, detail, {**values, "more_work": more})
    return Traced(cause, kernels if on_device else (), evidence)


def _parts(job: Observed, suspect: Suspect) -> dict[str, float] | None:
    """Excess per step of each part over the median of the peers, never negative; idle time counts
    only where no communication was lost."""
    if job.breakdown is None:
        return None
    inside, out = slice(suspect.first, suspect.stop), {}
    lost = lost_operators(job.window, job.line)[suspect.row, inside].any()
    for name, (cause, columns) in _PARTS.items():
        if lost and cause == "host":
            continue
        spent = np.sum([device_ns(job, column)[:, inside] for column in columns], axis=0)
        mean = stats.row_means(spent)
        usual = stats.median(mean[job.peers_of(suspect.row, suspect.phase)])
        out[name] = max(float(mean[suspect.row]) - usual, 0.0)
    return out if all(np.isfinite(value) for value in out.values()) else None


def _totals(job: Observed, suspect: Suspect) -> _Totals:
    table, names = _work(job)
    row, column = job.line.places(table)
    keep = (row >= 0) & (column >= suspect.first) & (column < suspect.stop) & _computes(names)
    shape = (len(job.line.ranks), len(names.values))
    cell = (row * shape[1] + names.codes)[keep]
    duration = table.floats("duration_ns")[keep]
    count = np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.float64)
    return _Totals(
        names.values, count.reshape(shape),
        stats.sums(cell, duration, shape[0] * shape[1]).reshape(shape),
    )  # fmt: skip


def _work(job: Observed) -> tuple[Table, Strings]:
    kernels = job.window.table("kernels")
    if kernels is not None:
        return kernels, kernels.strings("kernel")
    operators = job.window.tables["host_ops"]
    return operators, operators.strings("name")


def _computes(names: Strings) -> Mask:
    chosen = np.array([is_computing(name) for name in names.values], np.bool_)
    return (names.codes >= 0) & chosen[names.codes]


def _more_work(totals: _Totals, job: Observed, suspect: Suspect) -> tuple[float, tuple[str, ...]]:
    """The share of the excess that is more work of the usual length, and the costliest kernels."""
    peers = job.peers_of(suspect.row, suspect.phase)
    if not peers.size:  # a single rank, compared with its own steps
        return 0.0, ()
    usual_count = np.median(totals.count[peers], axis=0)
    usual_time = np.median(totals.time_ns[peers], axis=0)
    count, time = totals.count[suspect.row], totals.time_ns[suspect.row]
    more = _known_more(count, time, usual_count, usual_time)
    more += _new(count, time, usual_count, usual_time)
    excess = time - usual_time
    whole = float(excess.sum())
    order = [int(at) for at in np.argsort(-excess)[:NAMED] if excess[at] >= LEAST_SHARE * whole]
    share = more / whole if whole > 0 else 0.0
    return max(share, 0.0), tuple(totals.names[at] for at in order)


def _known_more(count: Floats, time: Floats, usual_count: Floats, usual_time: Floats) -> float:
    """Time of the kernels that it runs more often than its peers, less those it runs less often.

    Further runs may be longer ones, as the last layer of a pipeline is: all the time counts that
    the usual runs do not take on a device which is as slow in what it runs as often as its peers.
    """
    each = usual_time / np.maximum(usual_count, 1.0)
    alike, often = count == usual_count, (count > usual_count) & (usual_count > 0)
    usual = float(usual_time[alike].sum())
    more = (count - usual_count) * each
    if usual > 0:
        slower = max(float(time[alike].sum()) / usual, 1.0)
        longer = np.minimum(time - usual_time * slower, LONGER * more)
        more[often] = np.maximum(more, longer)[often]
    return float(more[usual_count > 0].sum())


def _new(count: Floats, time: Floats, usual_count: Floats, usual_time: Floats) -> float:
    """Time of kernels that no peer runs, without those that replace usual ones.

    As many as it lacks of the usual kernels replace them (another algorithm was chosen): of these
    only the usual length counts as work.
    """
    new = usual_count == 0
    added = float(count[new].sum())
    lacking = np.where(new, 0.0, np.maximum(usual_count - count, 0.0))
    lacks = float(lacking.sum())
    if added == 0:
        return 0.0
    replaced = min(added, lacks)
    each = usual_time / np.maximum(usual_count, 1.0)
    usual = float((lacking * each).sum()) * replaced / lacks if lacks > 0 else 0.0
    return float(time[new].sum()) * (added - replaced) / added + usual


def _has_more_rows(job: Observed, suspect: Suspect) -> bool:
    """Whether its kernels take longer because experts get more tokens there."""
    return any(one.explain(job, suspect) is not None for one in (MoreData(), MoreTokens()))


class SlowTrace:
    """Kernels, copies or gaps that take longer than on the peers, in a trace of every operator."""

    name = "trace"
    causes: tuple[Cause, ...] = ("compute", "memory_copy", "host", "load_imbalance", "jit_compile")
    needs = Needs("host_ops", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        traced = None if loads(suspect.phase) else traced_cause(job, suspect)
        if traced is None:
            return None
        if traced.cause == "compute" and _has_more_rows(job, suspect):
            return None
        slow = slow_function(job, suspect)
        if slow is None:
            return Explained(
                traced.cause, "measured", (traced.evidence,), kernels=traced.kernels
            )  # fmt: skip
        cause = "jit_compile" if compiles(slow.function) else traced.cause
        evidence = (traced.evidence, evidence_of(slow))
        return Explained(
            cause, "measured", evidence, function=slow.function, kernels=traced.kernels
        )  # fmt: skip

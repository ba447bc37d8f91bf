"""Overview of where time goes: the parts of each rank's step, and the last arrivals in collectives.

Members of a group that belong to different pipeline stages arrive when their stage is done. There
the last arrival is last by design, so such groups are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import Latecomer, RankPhase, RankTime
from stepscope.diagnose.views.arrivals import Arrivals
from stepscope.diagnose.views.peers import across_stages
from stepscope.window import Ints, Table

LATE_SHARE = 0.01
"""Waiting that costs a smaller share of the step time is not listed. Our simulator."""
_PARTS = (
    "compute_ns", "exposed_ns", "hidden_ns", "copy_ns",
    "host_wait_ns", "kernel_wait_ns", "other_ns",
)  # fmt: skip


def rank_times(job: Observed) -> tuple[RankTime, ...]:
    """Means over the steps of each rank; over the whole recording if there are no steps."""
    found = job.breakdown
    if found is None:
        return ()
    table = found.steps if len(found.steps) else found.ranks
    return tuple(_of_rank(rank, rows) for rank, rows in table.per_rank())


def _of_rank(rank: int, rows: Table) -> RankTime:
    return RankTime(rank, *(int(rows.ints(part).mean()) for part in _PARTS))


def rank_phases(job: Observed) -> Iterator[RankPhase]:
    """The median own time, in whole nanoseconds, of each rank and phase that has one."""
    for phase, own in job.own.items():
        medians = np.mean([stats.row_medians(own[:, at]) for at in job.cycle.kinds], axis=0)
        known = np.isfinite(medians)
        ranks, times = job.line.ranks[known].tolist(), medians[known].astype(np.int64).tolist()
        yield from map(RankPhase, ranks, repeat(phase), times)


def last_arrivals(job: Observed) -> tuple[Latecomer, ...]:
    """The rank whose late arrivals cost the most, per group and operator; the costliest first."""
    arrivals = job.arrivals
    if arrivals is None or not len(job.line.steps):
        return ()
    kinds = arrivals.group.codes.astype(np.int64) * len(arrivals.op.values) + arrivals.op.codes
    kinds = np.where(arrivals.group.equals(*across_stages(job.window)), -1, kinds)
    found = [_latest(job, arrivals, np.flatnonzero(kinds == kind))
             for kind in np.unique(kinds) if kind >= 0]  # fmt: skip
    least = LATE_SHARE * job.line.typical_ns
    costly = [one for one in found if one.caused_ns >= least]
    return tuple(sorted(costly, key=lambda one: -one.caused_ns))


def _latest(job: Observed, arrivals: Arrivals, operators: Ints) -> Latecomer:
    ranks = len(job.line.ranks)
    last = arrivals.last_rank[operators]
    caused = np.bincount(last, weights=arrivals.alone_ns[operators], minlength=ranks)
    row, first = int(np.argmax(caused)), int(operators[0])
    return Latecomer(
        group=arrivals.group[first] or "", op=arrivals.op[first] or "",
        rank=int(job.line.ranks[row]), last=int((last == row).sum()), operators=int(last.size),
        caused_ns=int(caused[row] / len(job.line.steps)),
    )  # fmt: skip

"""Ranks whose host takes longer for a step than the hosts of their peers, in a profiler's trace.

Fault: a busy or throttled processor, too few cores, the GIL, slow Python, where kernels are so
short that devices wait for their hosts.
Paper: none. There own time on the device says little of who is slow: hosts that wait for a slow one
launch ahead meanwhile, each as far as its place in the job allows, so devices of equal hosts idle
for times that differ several times over. What a host does by itself does not depend on the others
(`host_time`), so it is compared as own time is in `straggler_brief`.
What it costs is limited twice: by what the host takes longer, and by how long its device waits for
it. A host that its device never waits for costs nothing.
Cost: as `straggler_brief`, for one phase. Cannot see: what the host does then, which stacks show.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.detect.hosts.host_time import most_lost, waited_for
from stepscope.diagnose.detect.ranks import straggler_brief as brief
from stepscope.diagnose.detect.ranks.straggler import Straggler
from stepscope.diagnose.detect.ranks.straggler_ranks import is_brief
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.thresholds import HALF, score
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.words.advice import name_ranks
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats, Ints


class SlowHosts:
    """Ranks whose hosts take longer than their peers', while their devices wait for them."""

    name = "slow-hosts"
    needs = Needs("steps.host_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        if job.host_ns is None or not is_brief(job):
            return
        skip, ranks = job.line.warm_up, len(job.line.ranks)
        for one in brief.stragglers(job.host_ns[:, skip:], job.groups(None),
                                    job.line.typical_ns, None, ranks):  # fmt: skip
            if int(job.line.ranks[one.row]) not in so_far.blamed:
                yield _finding(job, one, np.arange(one.first + skip, one.stop + skip))


def _finding(job: Observed, one: Straggler, part: Ints) -> Slowdown:
    own, peers = _typical(job, np.asarray(job.host_ns), one.row, part)
    rank, period_ns = int(job.line.ranks[one.row]), job.line.job_period_ns[part]
    lost = min(most_lost(job, one.row, part, period_ns) or 0.0, waited_for(job, one.row, part))
    first, stop = int(part[0]), int(part[-1]) + 1
    loading, usual = _typical(job, _loading(job), one.row, part)
    is_loading = loading - usual >= HALF * (own - peers)
    what = "load data and launch" if is_loading else "launch"
    return Slowdown(
        SlowHosts.name, "data_loading" if is_loading else "host",
        f"its host takes {own / 1e6:.1f} ms for a step, those of its peers {peers / 1e6:.1f} ms, "
        "without calls that wait for the device"
        + (f", and {loading / 1e6:.1f} ms of these to load data" if is_loading else ""),
        (rank,), phase=DATA_LOAD if is_loading else None,
        steps=job.line.span(first, stop), time_ns=job.line.span_ns(first, stop),
        slowdown=own / max(peers, 1.0), lost_fraction=lost, score=score(one.z - one.needed),
        says=f"the host of {name_ranks([rank])} takes {own / max(peers, 1.0):.1f} times as long "
        f"as its peers' to {what} a step{job.line.since(first)}",
        values={"host_ns": own, "peers_ns": peers, "z": one.z},
    )  # fmt: skip


def _loading(job: Observed) -> Floats:
    """How long each host loads data in each step, `[rank, step]`, also beside its busy device."""
    lasted, rows = np.zeros(job.line.shape), phase_rows(job.window, job.line)
    if rows is not None:
        loading = rows.names.equals(*filter(loads, rows.names.values))
        at = (rows.rank[loading], rows.column[loading])
        np.add.at(lasted, at, rows.duration[loading])
    return lasted


def _typical(job: Observed, took_ns: Floats, row: int, part: Ints) -> tuple[float, float]:
    """How long a host takes in a step, and those of its peers."""
    means: Floats = stats.row_means(took_ns[:, part])
    return float(means[row]), stats.median(means[job.peers_of(row, None)])

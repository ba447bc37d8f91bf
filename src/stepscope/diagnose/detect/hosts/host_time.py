"""What a late host costs: how much longer it works on its steps than the hosts of its peers.

A device that runs dry shows that its host is late, but not by how much: hosts of ranks that wait
for a late one launch ahead meanwhile, and their own work is hidden. Without the late host all would
be as fast as the others' hosts, not as fast as their devices. In models with short kernels, whose
hosts are the bottleneck, some rank is always last, and who began to record last stays so: that
costs nothing if its host takes no longer than others.

Hosts are late for a moment now and then, and in a few steps some rank has more of that than others.
So a host takes longer only if it exceeds its peers by more than these differ among themselves, as
any rank in a few steps has to (`detect.straggler_brief`).

How long a host works on a step, without calls in which it waits for its device, is in the steps of
a profiler's trace (`host_ns`).

Cost: a mean of each rank. Cannot see: whether the device would have been idle anyway; this is a
limit, and the replay of the steps shows the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.detect.ranks.straggler_brief import (
    ENOUGH,
    PAIR_EFFECT,
    PERSISTENCE,
    SUSPECTS,
    above_all,
)
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, LEAST_COST, LEAST_COST_OF_PAUSES
from stepscope.window import Floats, Ints

CAUSES = ("host", "data_loading", "gc", "jit_compile")
"""Of a host that is late. Contract."""

SEVERAL = 2
"""Late hosts that may be late in the same steps."""


def most_lost(job: Observed, row: int, part: Ints, period_ns: Floats) -> float | None:
    """The share of a time that would come back if the host of a rank worked as long on some steps
    as its peers' do; None where no trace shows how long they work.

    Means are compared: a host that is late for a moment in one step is not in the next. What most
    steps do not show are pauses, which have to cost more.
    """
    if job.host_ns is None or not part.size:
        return None
    means, peers = stats.row_means(job.host_ns[:, part]), job.peers_of(row, None)
    excess_ns = float(means[row] - stats.median(means[peers]))
    whole_ns = float(np.nansum(period_ns))
    if not np.isfinite(excess_ns) or whole_ns <= 0:
        return None
    lost = max(part.size * excess_ns / whole_ns, 0.0)
    is_enough = lost >= least_cost(job, row, part)
    return lost if is_enough and _is_beyond(job, row, np.log(means)) else 0.0


def least_cost(job: Observed, row: int, part: Ints) -> float:
    """The least cost of a host that takes longer on some steps: more if that is not in most of
    them, by half of the average, as in `straggler_brief`."""
    each = job.excess(np.asarray(job.host_ns), None, row)[part]
    known = each[np.isfinite(each)]
    high = np.mean(known >= HALF * known.mean()) if known.size else 1.0
    return LEAST_COST if high >= PERSISTENCE else LEAST_COST_OF_PAUSES


def waited_for(job: Observed, row: int, part: Ints) -> float:
    """The share of the time in which the device of a rank waits for its host."""
    waited = float(np.nansum(device_ns(job, "host_wait_ns")[row, part]))
    return waited / max(float(np.nansum(job.line.job_period_ns[part])), 1.0)


def together(job: Observed, found: Sequence[Slowdown]) -> list[Slowdown]:
    """The findings; late hosts cost no more together than the latest one of each step is late."""
    late = [one for one in found if one.cause in CAUSES and one.suspect is not None and one.columns]
    if job.host_ns is None or len(late) < SEVERAL:
        return list(found)
    most_ns, lost_ns = np.zeros(len(job.line.steps)), 0.0
    for one in late:
        part = np.array(sorted(one.columns))
        row = int(job.line.rows(np.array(one.ranks[:1]))[0])
        excess = np.nan_to_num(job.excess(job.host_ns, None, row))[part]
        most_ns[part] = np.maximum(most_ns[part], excess)
        lost_ns += (one.lost_fraction or 0.0) * float(np.nansum(job.line.job_period_ns[part]))
    part_of = min(float(most_ns.sum()) / max(lost_ns, 1.0), 1.0)
    return [replace(one, lost_fraction=part_of * (one.lost_fraction or 0.0)) if one in late else one
            for one in found]  # fmt: skip


def _is_beyond(job: Observed, row: int, logs: Floats) -> bool:
    """Whether a host takes longer than its peers by more than hosts differ anyway."""
    effect = float(logs[row] - stats.median(logs[job.peers_of(row, None)]))
    usual = ~job.slow_side(None) & (np.arange(len(logs)) != row)
    others = [group[usual[group]] for group in job.groups(None)]
    apart = [above_peers(logs[one][:, None], [np.arange(one.size)])[:, 0]
             for one in others if one.size > 1]  # fmt: skip
    distances = np.sort(np.abs(np.concatenate([np.zeros(0), *apart])))
    distances = distances[np.isfinite(distances)]
    if distances.size < ENOUGH:
        return bool(effect >= np.log1p(PAIR_EFFECT))
    spread = float(distances[-1 - distances.size // SUSPECTS])
    return effect >= above_all(len(logs)) * spread

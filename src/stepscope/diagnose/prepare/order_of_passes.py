"""Whether a model is split into pipeline stages, by the order of passes, where no job.json says so.

The first stage begins the passes of several microbatches before the first backward pass comes back
to it, and the last stage turns round at once. So if ranks pass through the microbatches of a step
in different orders, they are stages, and what lies between their passes may be waiting for each
other.
Cost: the phases of one step. Cannot see: schedules in which all stages have one order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.groups import of_middle_step
from stepscope.window import Table, Window


def with_stages(window: Window) -> Window:
    """The window whose job says how many orders there are, as stages (`pp`), if there are several
    and it does not know of stages."""
    job = window.job
    if job.groups_of_kind("pp") or job.parallelism.get("pp", 1) > 1:
        return window
    stages = _orders(window.table("phases"))
    if stages < 2:
        return window
    return Window(replace(job, parallelism={**job.parallelism, "pp": stages}), window.tables)


def _orders(phases: Table | None) -> int:
    """How many different numbers of passes ranks begin before the first one of the other kind."""
    if phases is None or not phases.has("step", "microbatch", "start_ns"):
        return 0
    rows = of_middle_step(phases)
    rows = rows.take((rows.strings("phase").codes >= 0) & (rows.ints("microbatch") >= 0))
    names = rows.strings("phase")
    spent = stats.sums(names.codes.astype(np.int64), rows.ints("duration_ns"), len(names.values))
    if np.count_nonzero(spent) < 2:
        return 0
    passes = np.argsort(-spent)[:2]
    rows = rows.take(np.isin(names.codes, passes))
    order = np.lexsort((rows.ints("start_ns"), rows.ints("rank")))
    rank, code = rows.ints("rank")[order], rows.strings("phase").codes[order]
    leads = set()
    for own in np.split(code, np.flatnonzero(np.diff(rank)) + 1):
        turns = np.flatnonzero(own != own[0])
        if turns.size:
            leads.add(int(turns[0]))
    return len(leads)

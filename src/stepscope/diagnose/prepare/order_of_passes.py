"""Whether a model is split into pipeline stages, by the order of passes, where no job.json says so.

The first stage begins the passes of several microbatches before the first backward pass comes back
to it, and the last stage turns round at once. So if ranks pass through the microbatches of a step
in different orders, they are stages, and what lies between their passes may be waiting for each
other. If each of the last stages' replicas begins with one forward pass, those before with two, and
so on, in the order of their numbers, it is known which rank is in which stage. Where only kernels
were recorded, the same shows in how many of them a rank runs before the first one of the kind that
takes longest, if all run as many, and as many ranks have each order.
Cost: the phases, or the kernels, of one step. Cannot see: schedules in which all stages have one
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.groups import as_numbered, of_middle_step
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import Table, Window


def with_stages(window: Window) -> Window:
    """The window whose job says how many orders there are, as stages (`pp`), if there are several
    and it does not know of stages."""
    job = window.job
    if job.groups_of_kind("pp") or job.parallelism.get("pp", 1) > 1:
        return window
    phases = window.table("phases")
    leads = {} if phases is None else _leads(phases)
    kernels = None if phases is not None else window.table("kernels")
    stages = max(len(set(leads.values())), _orders_of_kernels(kernels))
    if stages < 2:
        return window
    job = replace(job, parallelism={**job.parallelism, "pp": stages})
    if not job.groups and _is_numbered(leads, job.world_size, stages):
        sizes = {"pp": stages, "dp": job.world_size // stages}
        job = replace(job, groups=tuple(as_numbered(replace(job, parallelism=sizes))))
    return Window(job, window.tables)


def _is_numbered(leads: Mapping[int, int], ranks: int, stages: int) -> bool:
    """Whether as many ranks are in each stage, one after another, and the last stage turns round
    after one forward pass, the one before after two, and so on (1F1B)."""
    usual = np.repeat(np.arange(stages, 0, -1), ranks // stages)
    return [*leads] == [*range(ranks)] and [*leads.values()] == usual.tolist()


def _orders_of_kernels(kernels: Table | None) -> int:
    """How many different numbers of kernels ranks run before the first one of the longest kind, on
    the stream with most kernels; 0 where they do not run as many, or some order is rarer."""
    if kernels is None or not kernels.has("step", "stream", "start_ns", "duration_ns"):
        return 0
    rows = of_middle_step(kernels)
    streams, count = np.unique(rows.ints("stream"), return_counts=True)
    if not streams.size:
        return 0
    named = rows.strings("kernel").codes >= 0
    rows = rows.take(named & (rows.ints("stream") == streams[count.argmax()]))
    if not len(rows):
        return 0
    names = rows.strings("kernel")
    spent = stats.sums(names.codes.astype(np.int64), rows.ints("duration_ns"), len(names.values))
    order = np.lexsort((rows.ints("start_ns"), rows.ints("rank")))
    rank, longest = rows.ints("rank")[order], (names.codes == spent.argmax())[order]
    own = np.split(longest, np.flatnonzero(np.diff(rank)) + 1)
    if len({each.size for each in own}) > 1 or not all(each.any() for each in own):
        return 0
    leads, alike = np.unique([int(each.argmax()) for each in own], return_counts=True)
    return int(leads.size) if np.ptp(alike) == 0 and alike[0] > 1 else 0


def _leads(phases: Table) -> dict[int, int]:
    """How many passes each rank begins before the first one of the other kind."""
    if not phases.has("step", "microbatch", "start_ns"):
        return {}
    rows = of_middle_step(phases)
    rows = rows.take((rows.strings("phase").codes >= 0) & (rows.ints("microbatch") >= 0))
    passes = _passes(rows)
    rows = rows.take(np.isin(rows.strings("phase").codes, passes))
    if len(passes) < 2 or not len(rows):
        return {}
    order = np.lexsort((rows.ints("start_ns"), rows.ints("rank")))
    rank, code = rows.ints("rank")[order], rows.strings("phase").codes[order]
    leads, cuts = {}, np.flatnonzero(np.diff(rank)) + 1
    for who, own in zip(rank[np.append(0, cuts)].tolist(), np.split(code, cuts), strict=True):
        turns = np.flatnonzero(own != own[0])
        if turns.size:
            leads[who] = int(turns[0])
    return leads


def _passes(rows: Table) -> list[int]:
    """The codes of the forward and the backward pass: under other names the two phases with most
    time."""
    names = rows.strings("phase")
    spent = stats.sums(names.codes.astype(np.int64), rows.ints("duration_ns"), len(names.values))
    known = names.equals(FORWARD, BACKWARD) & (rows.ints("duration_ns") > 0)
    named = np.unique(names.codes[known]).tolist()
    longest = [int(at) for at in np.argsort(-spent)[:2] if spent[at]]
    return named if len(named) > 1 else longest

"""How long recorded ranks wait in collectives for members of their groups that nobody recorded.

All leave a collective together, so what lies between the last recorded arrival and the first end is
the transfer, and waiting for a later rank. A transfer takes as long as the fastest one of its group
and operator, by size; where all of them wait, no longer than one at `SLOW_BYTES_PER_S`.
Cost: one sort of `comm_ops`.
Cannot see: a slow network, which looks the same; groups whose members are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, Matched, arrivals, match
from stepscope.diagnose.views.unnamed import covered
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Floats, Ints, Table, numbered

SLOW_BYTES_PER_S, LATENCY_NS = 1e8, 1e6
"""A transfer that is slower than 1 Gbit/s and a millisecond waits for something. Our choice."""


def unrecorded_ranks(job: Observed) -> frozenset[int]:
    """Ranks of the job of which nothing was recorded, where it is known which were."""
    known = job.window.job.recorded_ranks
    return frozenset() if known is None else frozenset(range(job.window.job.world_size)) - {*known}


def wait_ns(job: Observed) -> Floats:
    """By step, how long even the recorded rank that waits least waits for unrecorded ones."""
    return _least_ns(job, lambda table, took: took - _transfer_ns(table, took))


def exposed_ns(job: Observed) -> Floats:
    """The same with the transfers, which may all wait: for a rank that is late in all of them."""
    return _least_ns(job, lambda _, took: took)


def _least_ns(job: Observed, waits: Callable[[Table, Ints], Floats | Ints]) -> Floats:
    absent = unrecorded_ranks(job)
    calls = _calls(job, [one for one in job.window.groups if absent & set(one.ranks)])
    matched = None if calls is None else match(calls)
    if matched is None or not matched.order.size:
        return np.zeros(len(job.line.steps))
    waited = _waited(job, matched, waits)
    idle = np.nan_to_num(job.line.job_period_ns - job.total, nan=np.inf)
    least = np.fmin.reduce(np.clip(np.minimum(waited, idle), 0, None), axis=0)
    return np.asarray(np.nan_to_num(least))  # gauges know ranks that nobody recorded otherwise


def together_ns(job: Observed, groups: Sequence[ProcessGroup]) -> Floats | None:
    """How long each rank is in collectives of these groups, `[rank, step]`, with the transfers;
    None if there are none, or no ends were recorded."""
    calls = _calls(job, groups)
    if calls is None or not len(calls):
        return None
    ended = calls.take(calls.ints("end_ns") != NULL)
    row = job.line.rows(ended.ints("rank"))
    return covered(job.line, row, arrivals(ended), ended.ints("end_ns"))


def _calls(job: Observed, groups: Sequence[ProcessGroup]) -> Table | None:
    """The calls of collectives of these groups; None if there are no groups or no ends."""
    comm = job.window.table("comm_ops")
    if comm is None or not groups or not comm.has("end_ns") or not len(job.line.steps):
        return None
    wanted = comm.strings("op").equals(*SYNCHRONIZING)
    wanted &= comm.strings("group").equals(*(one.id for one in groups))
    return comm.take(wanted & (job.line.rows(comm.ints("rank")) >= 0))


def _waited(
    job: Observed, matched: Matched, waits: Callable[[Table, Ints], Floats | Ints]
) -> Floats:
    """The same of each rank in each step, without what it may have computed meanwhile."""
    table, order, begins = matched.table, matched.order, matched.bounds[:-1]
    ends = np.where(table.ints("end_ns") == NULL, np.iinfo(np.int64).max, table.ints("end_ns"))
    last = np.maximum.reduceat(arrivals(table)[order], begins)
    first_end = np.minimum.reduceat(ends[order], begins)
    took = np.where(first_end < np.iinfo(np.int64).max, first_end - last, 0).clip(0)
    until = last + waits(table.take(order[begins]), took).astype(np.int64)
    number = np.repeat(np.arange(begins.size), np.diff(matched.bounds))
    row = job.line.rows(table.ints("rank"))[order]
    return covered(job.line, row, last[number], until[number])


def _transfer_ns(operators: Table, took: Ints) -> Floats:
    """What each operator takes without waiting, at most what it took."""
    kind = numbered(*(operators.strings(name).codes.astype(np.int64) for name in ("group", "op")))
    size = operators.ints("bytes") if operators.has("bytes") else np.full(took.size, NULL)
    known = size > 0
    per_byte = np.where(known, took / np.where(known, size, 1), np.inf)
    latency, rate = (np.full(int(kind.max()) + 1, np.inf) for _ in range(2))
    np.minimum.at(latency, kind, took.astype(np.float64))
    np.minimum.at(rate, kind, per_byte)
    by_size = np.where(known, np.where(known, size, 0) * np.where(known, rate[kind], 0.0), 0.0)
    slow = LATENCY_NS + np.where(known, size / SLOW_BYTES_PER_S * 1e9, 0.0)
    return np.asarray(np.minimum(np.minimum(latency[kind] + by_size, slow), took))

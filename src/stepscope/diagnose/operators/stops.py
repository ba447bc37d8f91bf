"""When processes were stopped and went on: by a signal, a debugger, a frozen control group.

Fault: none by itself; the processes' states as the kernel reports them (`proc_stopped`).
A stop counts from the first sample that found it to the last, so a single sample, such as one that
meets py-spy's own brief stop, lasts no time. Stops that have not ended are hangs.
Cost: one sort of the samples. Cannot see: what is shorter than two samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.liveness import STOPPED
from stepscope.window import Table, Window

METRIC = "proc_stopped"


@dataclass(frozen=True)
class Stop:
    """Processes that were stopped at once; they went on at `end_ns`, or shortly before."""

    ranks: tuple[int, ...]
    begin_ns: int
    last_ns: int
    """The last sample that found all of them stopped."""
    end_ns: int


def ended_stops(window: Window) -> list[Stop]:
    """All stops that ended, in their order; those that overlap are one of several ranks."""
    hardware = window.table("hardware")
    if hardware is None:
        return []
    samples = hardware.take(hardware.strings("metric").equals(METRIC))
    single = [one for rank, own in samples.per_rank() if rank >= 0 for one in _of_rank(rank, own)]
    merged: list[Stop] = []
    for one in sorted(single, key=lambda stop: stop.begin_ns):
        overlaps = bool(merged) and one.begin_ns < merged[-1].end_ns
        merged.append(_joined(merged.pop(), one) if overlaps else one)
    return merged


def _of_rank(rank: int, samples: Table) -> Iterator[Stop]:
    order = np.argsort(samples.ints("ts_ns"), kind="stable")
    times = samples.ints("ts_ns")[order]
    halted = samples.floats("value")[order] >= STOPPED
    edges = np.flatnonzero(np.diff(halted.astype(np.int8), prepend=0))
    for first, after in zip(edges[::2], edges[1::2], strict=False):  # the last may not have ended
        if times[after - 1] > times[first]:
            yield Stop((rank,), int(times[first]), int(times[after - 1]), int(times[after]))


def _joined(one: Stop, other: Stop) -> Stop:
    ranks = tuple(sorted({*one.ranks, *other.ranks}))
    last, end = max(one.last_ns, other.last_ns), max(one.end_ns, other.end_ns)
    return Stop(ranks, min(one.begin_ns, other.begin_ns), last, end)

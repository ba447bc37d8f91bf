"""When the host launched what the device executed, and in which step that counts.

A trace begins while the device still executes what was launched before: calls of the host are
recorded from the first step on, but the device may be a hundred milliseconds behind. Such kernels
belong to no step. Counted in the first one, they would shift all collectives of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, named
from stepscope.formats.kineto.steps import Steps
from stepscope.trace.kernels import is_communication, of_library
from stepscope.window import NULL, Ints, Mask, Table, distinct

QUEUED_NS = 1_000_000
"""A kernel that starts later than this after its launch waited for the device: without a queue it
takes 5 to 20 us; hosts are 11 to 199 ms ahead in four of six real traces. Measured on real data."""
COPIES = ("Memcpy", "Memset")


@dataclass(frozen=True)
class Launched:
    """Of each row of `device`."""

    launch_ns: Ints
    """When the host launched it; NULL if the call was not recorded."""
    counted_ns: Ints
    """The time whose step it belongs to; NULL if it was launched before the recording."""


def launched(recorded: Recording) -> Launched:
    launch = launches(recorded)
    return Launched(launch, counted_at(recorded.device, launch))


def launches(recorded: Recording) -> Ints:
    """When the host launched each row of `device`; NULL if the call was not recorded."""
    wanted, ids = recorded.device.ints("correlation"), recorded.runtime.ints("correlation")
    if not ids.size:
        return np.full(wanted.shape, NULL)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
    row = order[at]
    return np.where(
        (ids[row] == wanted) & (wanted != NULL), recorded.runtime.ints("start_ns")[row], NULL
    )


def launched_by(device: Table, launch_ns: Ints) -> Ints:
    """When the host had launched each row of `device` at the latest.

    Ids of calls grow. So where a launch was not recorded, the first kernel that began of those
    launched later is the bound. By their starts alone, kernels of two streams would change places
    on a rank that is late in one of them.
    """
    start, ids = device.ints("start_ns"), device.ints("correlation")
    known = np.flatnonzero(ids != NULL)
    order = known[np.lexsort((start[known], ids[known]))]
    bound = start.copy()
    bound[order] = np.minimum.accumulate(start[order][::-1])[::-1]
    return np.where(launch_ns == NULL, bound, np.minimum(launch_ns, start))


def counted_at(device: Table, launch_ns: Ints) -> Ints:
    """The time whose step each row of `device` belongs to; NULL if it was launched before the
    recording.

    A stream executes in the order of launches. So a row without a launch was launched after the
    row before it; if there is none with a launch, before the recording. Where no launches were
    recorded, the device's own times decide.
    """
    start, known = device.ints("start_ns"), launch_ns != NULL
    if not known.any():
        return start
    first = start[known].min()
    found = launch_ns.copy()
    for rows in _streams(device):
        # NULL is the smallest number
        found[rows] = np.maximum.accumulate(launch_ns[rows])
        if not known[rows].any():
            found[rows] = np.where(start[rows] < first, NULL, start[rows])
    return found


def _streams(device: Table) -> list[Ints]:
    """The rows of each stream, in order of time."""
    streams = device.ints("stream")
    return [np.flatnonzero(streams == stream) for stream in distinct(streams).tolist()]


def communication_kernels(device: Table) -> Mask:
    """The communication kernels, by their names."""
    return _by_name(device, is_communication)


def library_kernels(device: Table) -> Mask:
    """Those of a library that process groups call, by their names."""
    return _by_name(device, of_library)


def _by_name(device: Table, holds: Callable[[str], bool]) -> Mask:
    names = device.strings("name")
    hits = np.array([holds(value) for value in names.values] or [False], np.bool_)
    return hits[names.codes]


def began(recorded: Recording, steps: Steps, of: Launched) -> int:
    """When a rank began to execute its first step: when its host did, or when the device was free,
    whichever is later."""
    begin, inside = int(steps.start_ns[0]), steps.of(of.counted_ns) != NULL
    device = recorded.device
    works = np.flatnonzero(inside & ~named(device, *COPIES))
    if not works.size:
        return begin
    start, first = device.ints("start_ns"), works[0]
    # communication may begin while the device still executes the step before
    computes = works[~communication_kernels(device)[works]]
    met = int(start[computes[0] if computes.size else first])
    before = ~inside & (start < met)
    if before.any():
        return max(begin, min(int(ends(device)[before].max()), met))
    # what a device did before the recording need not be recorded; a copy waits for it in its stream
    first = np.flatnonzero(inside & np.isin(device.ints("stream"), device.ints("stream")[works]))[0]
    waited = of.launch_ns[first] != NULL and start[first] - of.launch_ns[first] > QUEUED_NS
    return max(begin, int(start[first])) if waited else begin

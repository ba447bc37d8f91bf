"""What one job says about each device that it used: the record that the ledger keeps of a job."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepscope.devices.blame import Blame, blames
from stepscope.devices.constants import SHOWS, SHOWS_MOVING, healthy_log_odds
from stepscope.devices.used import BETWEEN_HOSTS, MOVING, TRANSFERRED, Used, of_ranks, used_devices
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.operators.liveness import now_ns
from stepscope.trace.host import UNNAMED, host_name
from stepscope.window import NULL, Window

FIRST_DATE_NS = 946_684_800 * 10**9
"""The year 2000: earlier times are those of a clock that counts from a start."""
TIMED = ("steps", "phases", "comm_ops", "kernels")
ENDED_NS = 300 * 10**9
"""A job of which nothing was recorded for five minutes has ended. Our choice."""


@dataclass(frozen=True)
class Healthy:
    """Devices that nothing was found at, and what that says about each of them."""

    log_odds: float
    devices: tuple[Used, ...]


@dataclass(frozen=True)
class JobEvidence:
    """One job's evidence for and against its devices. It replaces what the job said before."""

    job: str
    writer: str
    """The host that wrote it."""
    written_ns: int
    from_ns: int
    until_ns: int
    """When the job was observed, by its own clock, or up to when it was written."""
    ranks: int
    state: str
    blames: tuple[Blame, ...]
    healthy: tuple[Healthy, ...]
    unjudged: tuple[Used, ...]
    """Devices that it used and says nothing about."""
    ended: bool = True
    """Whether the job had ended; else more may be recorded of it."""


def evidence_of(
    window: Window, diagnosis: Diagnosis, job: str, *, ended: bool | None = None,
    now: int | None = None,
) -> JobEvidence:  # fmt: skip
    """The evidence of one job under the name of its folder. A job whose hosts have no names says
    nothing about devices, which could not be recognised in another job.

    Args:
        ended: whether it is known to have ended; else it has if nothing was recorded lately.
        now: the time in nanoseconds since 1970, for tests.
    """
    written = time.time_ns() if now is None else now
    begin, end = observed(window)
    until = end if FIRST_DATE_NS <= end <= written else written
    unnamed = any(host.name.startswith(UNNAMED) for host in window.job.hosts)
    used = () if unnamed else used_devices(window)
    found = () if unnamed else blames(window, diagnosis, used)
    well = _well(window, diagnosis, used, found)
    spared = {one.key for one in well}
    named = {one.device.key for blame in found for one in blame.candidates}
    return JobEvidence(
        job, host_name(), written, until - (end - begin), until, diagnosis.ranks, diagnosis.state,
        found, healthy(well, (end - begin) / 1e9),
        tuple(one for one in used if one.key not in spared and one.key not in named),
        written - until > ENDED_NS if ended is None else ended,
    )  # fmt: skip


def observed(window: Window) -> tuple[int, int]:
    """Begin and end of what was recorded, by the job's clock; twice 0 if no times were."""
    end = now_ns(window)
    begins = []
    for name in TIMED:
        table = window.table(name)
        column = "start_ns" if table is None or table.has("start_ns") else "enqueue_ns"
        if table is None or not table.has(column):
            continue
        times = table.ints(column)
        begins += [int(times[times != NULL].min())] if np.any(times != NULL) else []
    if end is None or not begins:
        return 0, 0
    return min(*begins, end), end


def healthy(devices: Iterable[Used], seconds: float) -> tuple[Healthy, ...]:
    """What a job of this length says about devices that nothing was found at."""
    kinds: dict[bool, list[Used]] = {}
    for one in devices:
        kinds.setdefault(one.type in MOVING, []).append(one)
    return tuple(
        Healthy(round(healthy_log_odds(seconds, SHOWS_MOVING if moving else SHOWS), 4), tuple(some))
        for moving, some in sorted(kinds.items())
    )


def _well(
    window: Window, diagnosis: Diagnosis, used: tuple[Used, ...], found: tuple[Blame, ...]
) -> tuple[Used, ...]:
    """The devices that the job shows to be well.

    None, if too little was recorded to call the job healthy. The other devices of accused ranks are
    not among them, because the fault may have been theirs, and those of the network only if
    transfers were recorded.
    """
    if diagnosis.state == "unknown":
        return ()
    doubtful = {one.device.key for blame in found for one in blame.candidates}
    ranks = {rank for verdict in diagnosis.verdicts for rank in verdict.ranks}
    beside = of_ranks(window, tuple(sorted(ranks)))
    transferred = any(window.table(name) is not None for name in TRANSFERRED)
    return tuple(
        one for one in used
        if one.key not in doubtful and one.name not in beside
        and (transferred or one.type not in (*BETWEEN_HOSTS, "nvlink"))
    )  # fmt: skip

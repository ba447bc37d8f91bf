"""A device that its own gauges single out, where times do not show who is slow.

Fault: a GPU, or the GPUs of one host or rack, that heat or power holds down; a network adapter that
goes down or counts errors while steps are long. Passes may contain waiting that nobody measured,
and then times tell too little.
Paper: none. ARGUS (2026), section 9.5, warns that counters mislead: here they make a suspect only,
and only if time is lost with it.
Ours: a clock counts if the device is held down in all steps, alone or with all others of its hosts,
and if its rank takes longer in some phase; where only calls or steps were recorded, nothing can
contradict it. A counter counts if few ranks show it, if it rises with the long steps, and if the
two begin or end together, which chance does in one job of ten.
Of 57 jobs with gauges of 16 to 512 devices, of a simulator that nobody here wrote, only faulty
devices have a clock below 0.95 of the median (healthy ones 0.997 and more) or a counter at all.
Real rooms are less even, hence suspects.
Cost: means of samples. Cannot see: devices of which several are odd for reasons of their own;
gauges that say the same all the time, but for clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from stepscope.diagnose.detect.ranks.straggler import LEAST_STEPS
from stepscope.diagnose.detect.steps.step_time import LEAST_RISE
from stepscope.diagnose.finding import Cause, Decision, Device, Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.counters import OWN, RaisedCounter, raised_counters
from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.thresholds import FAST, HALF, LEAST_COST, SUSPECT_SCORE
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints, Mask

LOW = 0.95
"""Of the peers' clock. Devices under one load differ by two or three steps of 15 in 1980 MHz; five
percent is the smallest slowdown that is looked for. Our simulator."""
LONGER = 1.05
"""A phase of a rank is longer than the median rank's, as `straggler.EFFECT`."""
COINCIDENCE = 10.0
"""How much likelier than by chance a counter must begin and end with the long steps: one job of ten
that loses time and has a counter on some device would be suspected wrongly. Statistics."""


class OddGauges:
    """A device with a low clock or a rising counter, where times do not show who is slow."""

    name = "odd-gauges"
    needs = Needs("hardware", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        yield from _by_clock(job)
        yield from _by_counters(job)


def held_down(job: Observed, first: int, stop: int) -> Mask:
    """The rows whose devices run at a low clock, and not because they have nothing to do: where it
    was recorded, heat or power must hold them down."""
    clocks = job.hardware("sm_clock_mhz", first, stop)
    held = job.hardware("clock_held_down", first, stop)
    low = clocks < LOW * stats.median(clocks)
    return np.asarray(low & ~(held == 0))


def _by_clock(job: Observed) -> Iterator[Slowdown]:
    first, stop = job.line.warm_up, len(job.line.steps)
    rows = np.flatnonzero(held_down(job, first, stop))
    if not rows.size or rows.size > HALF * len(job.line.ranks) or not _are_one(job, rows):
        return
    if job.own.phases and not job.own.hidden and stop - first >= LEAST_STEPS:
        return  # its own time is known, and tells
    longer = _longer_phases(job, rows)
    if longer is None:
        return
    clocks = job.hardware("sm_clock_mhz", first, stop)
    ratio = stats.median(clocks[rows]) / stats.median(clocks)
    ranks = job.line.ranks_of(rows)
    own = "its device runs" if len(ranks) == 1 else "their devices run"
    said = f"{own} at {percent(ratio)} of the usual clock, held down by heat or power"
    says = f"{name_ranks(ranks)} may hold up the others: {said}"
    detail = said + (f"; {longer}" if longer else "; times do not show who waits for whom")
    yield _finding(job, "compute", ranks, (first, stop), None, says, detail, 1 / ratio)


def _are_one(job: Observed, rows: Ints) -> bool:
    """Whether it is one device, or all of the hosts of one switch, or of one host."""
    if rows.size == 1:
        return True
    hosts = [one for one in job.host_rows if np.isin(one, rows).any()]
    if not all(np.isin(one, rows).all() for one in hosts):
        return False
    names = {one.name for one in job.window.job.hosts
             if set(one.ranks) & set(job.line.ranks_of(rows))}  # fmt: skip
    fabric = job.window.job.fabric
    switches = () if fabric is None else fabric.switches
    above = [{child.partition("/")[0] for child in one.children} for one in switches]
    return len(hosts) == 1 or any(names <= below for below in above)


def _longer_phases(job: Observed, rows: Ints) -> str | None:
    """Which phases take longer on these ranks; None if none does, empty where none is known."""
    known = phase_rows(job.window, job.line)
    if known is None:
        return ""
    names = [one for one in known.names.values if not communicates(one)]
    lasted = known.grids(known.duration, names)
    ratios = {name: _ratio(job, one, rows) for name, one in zip(names, lasted, strict=True)}
    longer = {name: ratio for name, ratio in ratios.items() if ratio >= LONGER}
    if not longer:
        return None
    order = sorted(longer, key=lambda name: -longer[name])
    return ", ".join(f"{name} takes {longer[name]:.2f} times as long as on the median rank"
                     for name in order)  # fmt: skip


def _ratio(job: Observed, lasted: Floats, rows: Ints) -> float:
    medians = stats.row_medians(lasted[:, job.line.warm_up :])
    return stats.median(medians[rows]) / max(stats.median(medians), 1.0)


def _by_counters(job: Observed) -> Iterator[Slowdown]:
    skip, period = job.line.warm_up, job.period_ns
    if len(period) - skip < 1:
        return
    fast = float(np.nanquantile(period[skip:], FAST))
    slow = np.nan_to_num(period) > LEAST_RISE * fast
    slow[:skip] = False
    if not slow.any():
        return
    lost_ns = float((period[slow] - fast).sum())
    lost = lost_ns / max(float(np.nansum(period[skip:])), 1.0)
    for sign in raised_counters(job, slow) if lost >= LEAST_COST else ():
        if sign.coincidence >= COINCIDENCE and (found := _device_of(job, sign)) is not None:
            yield _counted(job, sign, found, slow, lost)


def _device_of(job: Observed, sign: RaisedCounter) -> Device | None:
    """The one device that the counter is of, or else the host; None if neither is known."""
    kind = next((kind for word, kind, _ in OWN if sign.metric.startswith(word)), None)
    devices, ranks = Devices(job.window), job.line.ranks_of(sign.rows)
    if kind == "nic" and (name := _only(map(devices.nic, ranks))):
        return Device("nic", name, SUSPECT_SCORE)
    if kind == "nvlink" and (name := _only(map(devices.nvlink, ranks))):
        return Device("nvlink", name, SUSPECT_SCORE)
    if kind == "pcie" and (name := _only(map(devices.pcie, ranks))):
        return Device("pcie", name, SUSPECT_SCORE)
    host = _only(map(devices.host, ranks))
    return Device("host", host, SUSPECT_SCORE) if kind and host else None


def _only(names: Iterable[str | None]) -> str | None:
    found = set(names)
    return found.pop() if len(found) == 1 else None


def _counted(
    job: Observed, sign: RaisedCounter, device: Device, slow: Mask, lost: float
) -> Slowdown:
    ranks = job.line.ranks_of(sign.rows)
    columns = np.flatnonzero(slow)
    phase, grown = _grown(job, slow)
    cause: Cause = "memory_copy" if device.type == "pcie" else "network"
    said = f"{sign.metric} of {device.name} rises while steps are long"
    where = f"; {phase} takes {grown / 1e6:.0f} ms longer in them" if phase else ""
    detail = (
        f"{said}, in {len(columns)} steps, and on no other device{where}; that both begin or end "
        f"together is {sign.coincidence:.0f} times as likely as by chance"
    )
    span = (int(columns[0]), int(columns[-1]) + 1)
    says = f"{device.name} may hold up all ranks: {said}"
    return _finding(job, cause, ranks, span, device, says, detail, None, lost, phase, columns)


def _grown(job: Observed, slow: Mask) -> tuple[str | None, float]:
    """The phase that takes the median rank longer in the slow steps than in others, by the most."""
    rows = phase_rows(job.window, job.line)
    if rows is None:
        return None, 0.0
    names, judged = list(rows.names.values), np.arange(slow.size) >= job.line.warm_up
    usual = [stats.column_median(one) for one in rows.grids(rows.duration, names)]
    rises = [stats.median(one[slow]) - stats.median(one[judged & ~slow]) for one in usual]
    best = int(np.argmax(np.nan_to_num(rises)))
    return (names[best], rises[best]) if rises[best] > 0 else (None, 0.0)


def _finding(
    job: Observed, cause: Cause, ranks: tuple[int, ...], span: tuple[int, int],
    device: Device | None, says: str, detail: str, slowdown: float | None,
    lost: float | None = None, phase: str | None = None, columns: Ints | None = None,
) -> Slowdown:  # fmt: skip
    line = job.line
    return Slowdown(
        OddGauges.name, cause, detail, ranks, devices=(device,) if device else (), phase=phase,
        steps=line.span(*span), time_ns=line.span_ns(*span), slowdown=slowdown,
        lost_ns=(lost or 0.0) * line.typical_ns, lost_fraction=lost, score=SUSPECT_SCORE, says=says,
        columns=frozenset(range(*span) if columns is None else columns.tolist()),
        decisions=(Decision("gauge", True, says=detail, gate=False),),
    )  # fmt: skip

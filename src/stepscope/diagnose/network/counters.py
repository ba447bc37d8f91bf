"""Hardware counters that rise while data moves slowly: evidence, never a verdict by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.network.topology import Kind, PathDevice
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.window import Floats, Ints, Mask, Table, joined

TROUBLE = ("error", "down", "replay", "retrans", "discard", "drop", "crc", "timeout")
"""Words in names of counters that stay constant as long as nothing goes wrong. Our simulator."""
OWN: tuple[tuple[str, Kind, float], ...] = (
    ("nic_pcie", "pcie", 20.0), ("nic_", "nic", 20.0), ("nic_", "link", 5.0),
    ("pcie", "pcie", 20.0), ("nvlink", "nvlink", 20.0),
)  # fmt: skip
"""Beginning of a counter's name (the first that fits counts), the kind of device that it speaks
against, and its likelihood factor. A NIC's port also counts errors of its cable. Twenty to one is
the weight of a sign that shows in most such faults and on one in thirty healthy devices. These are
our own numbers, because no such counts are published. Our simulator."""
OF_ADAPTER = re.compile(r"(nic_\w+)\.([\w-]+)")
"""The counter of a single NIC of a host, as processors name it: `nic_errors.mlx5_3`."""
OF_NETWORK = "nic_link_gb_per_s"
LINKS = ("nic_pcie_gb_per_s", "pcie_link_gb_per_s", OF_NETWORK)
"""Metrics of the speed that a link negotiated (trained)."""
LOST = 0.6
"""A link below this share of the median speed is degraded: it falls back to half of its lanes, or
to a generation of half the speed. Our simulator."""
TIMES = 2.0
"""A counter stands out at twice its value in other steps and on other ranks. Our simulator."""
FEW = 0.1
"""If a larger share of the ranks shows a counter, and more than those of a host, it does not point
to one device. Our simulator."""


WITHIN, MOST_COINCIDENCE = 3, 50.0
"""Steps within which a counter begins or ends to rise with the slowness, one sample before or
after; and the most that such coincidences count for together, because other faults make counters
rise as well. Our choice."""


@dataclass(frozen=True)
class RaisedCounter:
    """A counter that rises on few ranks while data moves slowly."""

    metric: str
    rows: Mask
    """The ranks, as rows of the grid."""
    coincidence: float = 1.0
    """How many times likelier than by chance it begins and ends with the slowness."""


def raised_counters(job: Observed, steps: Mask) -> list[RaisedCounter]:
    """Error counters and degraded links that stand out in the given steps.

    Args:
        steps: columns in which data moved slowly.
    """
    table = job.window.table("hardware")
    if table is None or not steps.any():
        return []
    names = {_plain(name) for name in table.strings("metric").values}
    found = [(name, _standing_out(job, name, steps)) for name in sorted(names) if _speaks(name)]
    found += [(name, _trained_low(job, name, steps)) for name in LINKS if name in names]
    return [
        RaisedCounter(name, rows, 1.0 if name in LINKS else _coincidence(job, name, rows, steps))
        for name, rows in found if 0 < rows.sum() <= _few(job)
    ]  # fmt: skip


def _plain(metric: str) -> str:
    """The name of a counter without the name of the NIC."""
    found = OF_ADAPTER.fullmatch(metric)
    return metric if found is None else found[1]


def _speaks(metric: str) -> bool:
    return any(word in metric for word in TROUBLE) and not metric.endswith("_per_s")


def _standing_out(job: Observed, metric: str, steps: Mask) -> Mask:
    row, column, value = _by_rank(job, metric)
    # an event in a step shows in the first sample after it
    slow = steps | np.concatenate(([False], steps[:-1]))
    fast = ~slow & (np.arange(slow.size) >= job.line.warm_up)  # those before were not judged
    during, else_ = (
        stats.sums(row[part], value[part], len(job.line.ranks)) / max(int(count), 1)
        for part, count in ((slow[column], slow.sum()), (fast[column], fast.sum()))
    )
    usual = max(stats.median(during), 0.0)
    return np.asarray(during > TIMES * np.maximum(else_, usual))


def _coincidence(job: Observed, metric: str, rows: Mask, slow: Mask) -> float:
    """How many times likelier than by chance a counter rises from the first slow step on, and until
    the last: chance puts either anywhere among the judged steps."""
    row, column, value = _by_rank(job, metric)
    first, stop = job.line.warm_up, len(slow)
    ours, theirs = np.flatnonzero(slow), np.unique(column[rows[row] & (value > 0)])
    inner = [at for at in ((ours[0], theirs[0]), (ours[-1], theirs[-1]))
             if first + WITHIN <= at[0] < stop - WITHIN] if theirs.size else []  # fmt: skip
    met = [abs(int(mine) - int(its)) <= WITHIN for mine, its in inner]
    times = (max(stop - first, 1) / (2 * WITHIN + 1)) ** sum(met)
    return float(min(max(times, 1.0), MOST_COINCIDENCE))


def _trained_low(job: Observed, metric: str, steps: Mask) -> Mask:
    """Links that run slower than those of most, in the given steps."""
    row, column, value = _by_rank(job, metric)
    inside, ranks = steps[column], len(job.line.ranks)
    count = np.bincount(row[inside], minlength=ranks)
    carries = stats.sums(row[inside], value[inside], ranks)
    mean = np.divide(carries, count, out=np.full(ranks, np.nan), where=count > 0)
    return np.asarray(np.nan_to_num(mean, nan=np.inf) < LOST * stats.median(mean))


def _few(job: Observed) -> float:
    """The most ranks that may be behind one device: a host's counter is that of all its ranks."""
    sizes = [len(host.ranks) for host in job.window.job.hosts]
    return max(FEW * len(job.line.ranks), 1, *(sizes if len(sizes) > 1 else ()))


def lasting_slowdown(job: Observed) -> Floats:
    """`[rank]`: how many times slower each rank's network link runs than most, if it never ran as
    fast in the window; else 1."""
    ranks = len(job.line.ranks)
    table, times = job.window.table("hardware"), np.ones(ranks)
    if table is None or OF_NETWORK not in {*map(_plain, table.strings("metric").values)}:
        return times
    row, _, value = _by_rank(job, OF_NETWORK)
    speed = np.full(ranks, np.nan)
    np.fmax.at(speed, row, value)
    usual = stats.median(speed)
    slow = (speed > 0) & (np.nan_to_num(speed, nan=np.inf) < LOST * usual)
    if slow.sum() <= _few(job):
        times[slow] = usual / speed[slow]
    return times


def _by_rank(job: Observed, metric: str) -> tuple[Ints, Ints, Floats]:
    """Row, column and value of the samples of a counter in steps; those of a NIC are repeated for
    each rank that sends through it."""
    table = job.window.tables["hardware"]
    names = table.strings("metric")
    found = [table.take(names.equals(metric))]
    for name in names.values:
        if name != metric and _plain(name) == metric and table.has("host"):
            found += _spread(job, table.take(names.equals(name)), name.rpartition(".")[2])
    columns = ("rank", "ts_ns", "value")
    samples = joined([Table({name: one.columns[name] for name in columns}) for one in found])
    row, column = job.line.rows(samples.ints("rank")), job.line.column_at(samples.ints("ts_ns"))
    keep = (row >= 0) & (column >= 0)
    return row[keep], column[keep], samples.floats("value")[keep]


def _spread(job: Observed, samples: Table, adapter: str) -> Iterator[Table]:
    """The samples of one NIC on each host, repeated for each of its ranks; for all if unknown."""
    devices, hosts = Devices(job.window), samples.strings("host")
    for host in job.window.job.hosts:
        own = samples.take(hosts.equals(host.name))
        known = {rank: devices.nic(rank) for rank in host.ranks} if len(own) else {}
        behind = [rank for rank, nic in known.items() if nic == f"{host.name}/{adapter}"]
        for rank in behind or [rank for rank, nic in known.items() if nic is None]:
            yield own.with_column("rank", np.full(len(own), rank))


def likelihood_factors(
    job: Observed, signs: Sequence[RaisedCounter], devices: Sequence[PathDevice]
) -> Floats:  # fmt: skip
    """The factor by which the counters make each device more likely to be at fault."""
    factors = np.ones(len(devices))
    for sign in signs:
        ranks = frozenset(job.line.ranks[sign.rows].tolist())
        fits = next((word for word, _, _ in OWN if sign.metric.startswith(word)), None)
        for word, kind, factor in OWN:
            if word == fits:
                times = factor * sign.coincidence
                factors *= [times if one.kind == kind and ranks.intersection(one.ranks) else 1.0
                            for one in devices]  # fmt: skip
    return factors

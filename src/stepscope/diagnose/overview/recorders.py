"""What recording cost, in CPU cores and internal faults, and what was not recorded: recorders died
while the job ran, or refused a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.trace.names import FAULTS
from stepscope.trace.signals import signal_name
from stepscope.window import NULL, Table, Window

CLAIMED = "also claimed by "
"""How the reason begins if several live processes claimed a rank."""
MOST_SHOWN = 8
"""Ranks of a note. Our choice."""
_REFUSED = "rank_claims_refused"
OURS = "stepscope_"
"""Begins our own metrics."""
OWN_THREADS = (
    "stepscope_sender_cpu_ns", "stepscope_cupti_cpu_ns", "stepscope_cupti_worker_cpu_ns",
    "stepscope_nccl_cpu_ns",
)  # fmt: skip
"""CPU time counters of our threads in a rank: the Python one, and those of native libraries."""


def not_recorded(window: Window) -> Iterator[Skipped]:
    yield from _dead_recorders(window)
    yield from _refused_processes(window)
    yield from _not_profiled(window)


def losses(window: Window) -> dict[str, int]:
    """The number of rows of each table that are known to be lost."""
    table = window.table("losses")
    if table is None:
        return {}
    names, rows = table.strings("table"), table.ints("rows")
    return {name: int(rows[names.equals(name)].sum()) for name in names.values
            if names.equals(name).any()}  # fmt: skip


def _dead_recorders(window: Window) -> Iterator[Skipped]:
    """One note for each processor whose death is recorded in `exits`."""
    table = window.table("exits")
    if table is None:
        return
    for row in (table.ints("rank") < 0).nonzero()[0].tolist():
        host = table.strings("host")[row] if table.has("host") else None
        moment = datetime.fromtimestamp(int(table.ints("ts_ns")[row]) / 1e9, timezone.utc)
        why = f"{_how(table, row)} at {moment:%Y-%m-%d %H:%M:%S} UTC; rows of the seconds before "
        yield Skipped(f"recorder on {host or 'a host'}", why + "may be missing")


def _refused_processes(window: Window) -> Iterator[Skipped]:
    """One note for each rank that more than one live process claimed at the same time."""
    table = window.table("hardware")
    if table is None:
        return
    rows = table.take(table.strings("metric").equals(_REFUSED) & (table.ints("rank") >= 0))
    most: dict[int, float] = {}
    for rank, number in zip(rows.ints("rank").tolist(), rows.floats("value"), strict=True):
        most[rank] = max(number, most.get(rank, 1.0))
    for rank, number in sorted(most.items()):
        others = "1 other live process" if number <= 1 else f"{number:.0f} other live processes"
        why = f"{CLAIMED}{others}, not recorded; two runs under one job name, or a rank started "
        yield Skipped(f"rank {rank}", why + "twice")


def _not_profiled(window: Window) -> Iterator[Skipped]:
    """One note for each reason why ranks did not profile steps that they were asked to."""
    table = window.table("profiles")
    if table is None:
        return
    found: dict[tuple[str, str], set[int]] = {}
    windows, troubles = table.strings("window"), table.strings("trouble")
    for row, rank in enumerate(table.ints("rank").tolist()):
        trouble = troubles[row]
        if trouble is not None:
            found.setdefault((windows[row] or "?", trouble), set()).add(rank)
    for (name, trouble), ranks in sorted(found.items()):
        shown = ", ".join(map(str, sorted(ranks)[:MOST_SHOWN]))
        more = f" and {len(ranks) - MOST_SHOWN} more" if len(ranks) > MOST_SHOWN else ""
        of = "rank" if len(ranks) == 1 else "ranks"
        yield Skipped(f"profile {name} of {of} {shown}{more}", trouble)


def _how(table: Table, row: int) -> str:
    number, status = (int(table.ints(name)[row]) for name in ("signal", "status"))
    if number != NULL:
        return f"killed ({signal_name(number)})"
    return "vanished" if status == NULL else f"exited with status {status}"


def own_cost(window: Window) -> dict[str, float]:
    """Cores that the processor of the busiest host (with py-spy) and our threads in the costliest
    rank use, and the number of internal faults in the rank with the most, if there were any: all of
    them, and by place."""
    hardware = window.table("hardware")
    if hardware is None:
        return {}
    cost: dict[str, float] = {}
    cores = _mean_by_host(hardware, "stepscope_processor_cpu")
    if cores:
        cost["processor_cpu"] = max(cores)
    rates: Counter[int] = Counter()
    for metric in OWN_THREADS:
        rates.update(_rates_by_rank(hardware, metric))
    if rates:
        cost["sender_cpu"] = max(rates.values())
    return cost | _internal_faults(hardware)


def _internal_faults(hardware: Table) -> dict[str, float]:
    """The highest count of each of these metrics: the total, and `…:PLACE`."""
    metrics = hardware.strings("metric")
    return {
        name.removeprefix(OURS): float(hardware.floats("value")[metrics.equals(name)].max())
        for name in sorted(metrics.named(np.ones(len(hardware), np.bool_)))
        if name.startswith(FAULTS)
    }


def _mean_by_host(hardware: Table, metric: str) -> list[float]:
    part = hardware.take(hardware.strings("metric").equals(metric))
    hosts = part.strings("host").codes
    return [float(part.floats("value")[hosts == host].mean()) for host in np.unique(hosts)]


def _rates_by_rank(hardware: Table, metric: str) -> dict[int, float]:
    """The growth rate of a counter on each rank, if the same process read it twice."""
    rates = {}
    for rank, part in hardware.take(hardware.strings("metric").equals(metric)).per_rank():
        times, values = part.ints("ts_ns"), part.floats("value")
        order = np.argsort(times, kind="stable")
        grown, passed = np.diff(values[order]), np.diff(times[order])
        kept = (grown >= 0) & (passed > 0)  # a restarted process counts from zero again
        if kept.any():
            rates[rank] = float(grown[kept].sum() / passed[kept].sum())
    return rates

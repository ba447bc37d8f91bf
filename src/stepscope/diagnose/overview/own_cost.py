"""The cost of stepscope itself, in CPU cores and internal faults, from samples that it records."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.trace.names import FAULTS
from stepscope.window import Mask, Table, Window

OURS = "stepscope_"
"""Begins our own metrics."""
OWN_THREADS = (
    "stepscope_sender_cpu_ns", "stepscope_cupti_cpu_ns", "stepscope_cupti_worker_cpu_ns",
    "stepscope_nccl_cpu_ns",
)  # fmt: skip
"""CPU time counters of our threads in a rank: the Python one, and those of native libraries."""


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
        name.removeprefix(OURS): float(hardware.floats("value")[_rows(hardware, name)].max())
        for name in sorted(metrics.named(np.ones(len(hardware), np.bool_)))
        if name.startswith(FAULTS)
    }


def _rows(hardware: Table, metric: str) -> Mask:
    return hardware.strings("metric").equals(metric)


def _mean_by_host(hardware: Table, metric: str) -> list[float]:
    part = hardware.take(_rows(hardware, metric))
    hosts = part.strings("host").codes
    return [float(part.floats("value")[hosts == host].mean()) for host in np.unique(hosts)]


def _rates_by_rank(hardware: Table, metric: str) -> dict[int, float]:
    """The growth rate of a counter on each rank, if the same process read it twice."""
    rates = {}
    for rank, part in hardware.take(_rows(hardware, metric)).per_rank():
        times, values = part.ints("ts_ns"), part.floats("value")
        order = np.argsort(times, kind="stable")
        grown, passed = np.diff(values[order]), np.diff(times[order])
        kept = (grown >= 0) & (passed > 0)  # a restarted process counts from zero again
        if kept.any():
            rates[rank] = float(grown[kept].sum() / passed[kept].sum())
    return rates

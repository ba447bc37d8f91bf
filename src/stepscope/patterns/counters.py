"""The use of resources, from the counters in tables `hardware` and `phases`."""

from __future__ import annotations

import re

import numpy as np

from stepscope.patterns.use import Series, in_order
from stepscope.window import NULL, Ints, Mask, Table

CPU, SM, PCIE_TX, PCIE_RX = "cpu", "sm", "pcie_tx", "pcie_rx"
_GPU = re.compile(r"\.gpu(\d+)$")
_LINK = "pcie_link_gb_per_s"


def counter_series(hardware: Table, rank: int) -> list[Series]:
    """The counters of a rank and its GPU.

    What has no known capacity (NVLink, the adapters of a host) is left out: its use is unknown.
    """
    of = _Counters(hardware, rank)
    found = [of.series(SM, "sm_active", 1.0)]
    link = of.last(_LINK)
    if link is not None and link > 0:
        found += [of.series(one, f"{one}_bytes_per_s", link * 1e9) for one in (PCIE_TX, PCIE_RX)]
    found.append(of.series(CPU, "cpu_util", 1.0))
    return [series for series in found if series.use.size]


def phase_series(phases: Table, rank: int) -> list[Series]:
    """The use of the processor by the training thread in each phase."""
    if not phases.has("cpu_ns", "start_ns"):
        return []
    start, length, own = (phases.ints(name) for name in ("start_ns", "duration_ns", "cpu_ns"))
    known = (phases.ints("rank") == rank) & (length > 0) & (own >= 0) & (start != NULL)
    start, length, own = start[known], length[known], own[known]
    series = in_order(Series(CPU, start, start + length, own / np.maximum(length, 1)))
    return [series] if series.use.size else []


class _Counters:
    """The rows of one rank: its own, and those of its GPU."""

    def __init__(self, hardware: Table, rank: int) -> None:
        self._table = hardware
        self._own: Mask = hardware.ints("rank") == rank
        self._gpu = self._gpu_of()

    def series(self, resource: str, metric: str, full: float) -> Series:
        """Samples of a metric as shares of its largest possible value."""
        rows = self._rows(metric)
        end = self._table.ints("ts_ns")[rows]
        use = self._table.floats("value")[rows] / full
        return in_order(Series(resource, end - self._period(rows), end, use))

    def last(self, metric: str) -> float | None:
        rows = self._rows(metric)
        if not rows.size:
            return None
        latest = rows[np.argmax(self._table.ints("ts_ns")[rows])]
        return float(self._table.floats("value")[latest])

    def _rows(self, metric: str) -> Ints:
        metrics = self._table.strings("metric")
        chosen = self._own & metrics.equals(metric)
        if self._gpu is not None:
            chosen |= metrics.equals(f"{metric}.gpu{self._gpu}")
        return np.flatnonzero(chosen)

    def _period(self, rows: Ints) -> Ints:
        if not self._table.has("period_ns"):
            return np.zeros(rows.size, np.int64)
        return np.maximum(self._table.ints("period_ns")[rows], 0)

    def _gpu_of(self) -> int | None:
        """The GPU that the rank was seen on, else the only one."""
        metrics = self._table.strings("metric")
        seen = np.flatnonzero(self._own & metrics.equals("gpu_index"))
        if seen.size:
            return int(self._table.floats("value")[seen[-1]])
        numbers = {int(found[1]) for name in metrics.values if (found := _GPU.search(name))}
        return numbers.pop() if len(numbers) == 1 else None

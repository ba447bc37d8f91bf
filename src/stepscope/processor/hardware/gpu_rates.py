"""Averages and rates of a GPU from NVML, each with the period it really covers.

Drivers update most values slower or faster than they are read: utilisation and power every sixth of
a second to every second, byte counters at irregular times. So averages carry the interval of the
driver's own samples, rates the time between two changes of their counter. From Hopper on, GPM
measures over the time between two calls; metrics that it provides are not read otherwise. While
CUPTI samples the GPU's counters they are left alone, because GPM may need the same ones.

Cost: six calls per GPU. None of them blocks, unlike `nvmlDeviceGetPcieThroughput`, which takes
20 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic_ns, time_ns
from typing import Any

import pynvml

SHORTEST_GPM_NS = 100_000_000
"""GPM samples closer together are not meaningful (NVML's documentation)."""
STILL_NS = 10_000_000_000
"""A counter unchanged for this long has a rate of 0; before that it may just be updated slowly."""
_KIB, _MIB = 1 << 10, 1 << 20
_ALL_LINKS = 0xFFFFFFFF
_PCIE_TX_BYTES, _PCIE_RX_BYTES = 197, 198
"""NVML_FI_DEV_PCIE_COUNT_TX_BYTES and …_RX_BYTES of nvml.h: in pynvml since 12.555."""
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union, in the order of nvmlValueType_t."""


@dataclass(frozen=True)
class Reading:
    """One value of one metric of one GPU."""

    metric: str
    value: float
    period_ns: int | None = None
    """The averaging period; None: a value of the moment."""


@dataclass(frozen=True)
class _Average:
    kind: int
    factor: float
    otherwise: Callable[[Any], float]
    """Used if the driver keeps no samples: an average over at most a second."""


_AVERAGES: Mapping[str, _Average] = {
    "sm_active": _Average(
        pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0.01,
        lambda gpu: float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    ),
    "gpu_power_w": _Average(
        pynvml.NVML_TOTAL_POWER_SAMPLES, 0.001,
        lambda gpu: float(pynvml.nvmlDeviceGetPowerUsage(gpu)),
    ),
}  # fmt: skip
_OTHERWISE_NS = 1_000_000_000

_COUNTERS: Mapping[str, tuple[tuple[int, int], int]] = {
    "nvlink_tx_bytes_per_s": ((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS), _KIB),
    "nvlink_rx_bytes_per_s": ((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS), _KIB),
    "pcie_tx_bytes_per_s": ((_PCIE_TX_BYTES, 0), 1),
    "pcie_rx_bytes_per_s": ((_PCIE_RX_BYTES, 0), 1),
}
"""Field and scope of each counter, and its unit in bytes."""

_OF_GPM: Mapping[str, tuple[int, float]] = {
    "sm_active": (pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "dram_active": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "tensor_active": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "nvlink_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
    "nvlink_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
    "pcie_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
    "pcie_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
}
"""GPM metric ids and factors: GPM reports percent, and MiB per second."""


class Rates:
    """The averages and rates of one GPU."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._seen_us = dict.fromkeys(_AVERAGES, 0)
        self._counted: dict[str, tuple[int, int]] = {}
        self._samples = _gpm_samples(gpu)
        self._sampled_ns: int | None = None
        self.counters_in_use = False
        """Whether CUPTI samples this GPU's counters, more exactly than NVML does."""

    def sample(self) -> Iterator[Reading]:
        """New readings since the last call."""
        if self.counters_in_use:
            self._sampled_ns = None
            yield from self._average("gpu_power_w", _AVERAGES["gpu_power_w"])
            return
        from_gpm = set()
        for one in self._of_gpm():
            from_gpm.add(one.metric)
            yield one
        for metric in _AVERAGES.keys() - from_gpm:
            yield from self._average(metric, _AVERAGES[metric])
        yield from (one for one in self._rates() if one.metric not in from_gpm)

    def _average(self, metric: str, of: _Average) -> Iterator[Reading]:
        before = self._seen_us[metric]
        try:
            kind, samples = pynvml.nvmlDeviceGetSamples(self._gpu, of.kind, before)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:  # NOT_FOUND: no samples since then
                yield from _without_samples(self._gpu, metric, of)
            return
        new = [one for one in samples if one.timeStamp > before]
        if not new:
            return
        newest = self._seen_us[metric] = max(one.timeStamp for one in new)
        since = before or min(one.timeStamp for one in new)
        steps = len(new) if before else len(new) - 1
        if steps:
            mean = sum(_value(kind, one.sampleValue) for one in new) / len(new)
            yield Reading(metric, mean * of.factor, 1000 * (newest - since) // steps)

    def _rates(self) -> Iterator[Reading]:
        fields = [field for field, _ in _COUNTERS.values()]
        values = _attempt(pynvml.nvmlDeviceGetFieldValues, self._gpu, fields) or ()
        for (metric, (_, unit)), one in zip(_COUNTERS.items(), values, strict=False):
            if one.nvmlReturn == pynvml.NVML_SUCCESS:
                at_ns = 1000 * one.timestamp or time_ns()
                count = int(_value(one.valueType, one.value))
                yield from self._rate(metric, count, unit, at_ns)

    def _rate(self, metric: str, count: int, unit: int, at_ns: int) -> Iterator[Reading]:
        """The rate since the counter last changed; one that fell was reset."""
        before, since_ns = self._counted.setdefault(metric, (count, at_ns))
        period_ns = at_ns - since_ns
        if period_ns <= 0 or (count == before and period_ns < STILL_NS):
            return
        self._counted[metric] = (count, at_ns)
        if count >= before:
            yield Reading(metric, (count - before) * unit * 1e9 / period_ns, period_ns)

    def _of_gpm(self) -> Iterator[Reading]:
        if self._samples is None:
            return
        now_ns, since_ns = monotonic_ns(), self._sampled_ns
        if since_ns is not None and now_ns - since_ns < SHORTEST_GPM_NS:
            return
        before, after = self._samples
        if _attempt(pynvml.nvmlGpmSampleGet, self._gpu, after) is None:
            return
        self._samples, self._sampled_ns = (after, before), now_ns
        if since_ns is not None:
            yield from _between(before, after, now_ns - since_ns)


def _without_samples(gpu: Any, metric: str, of: _Average) -> Iterator[Reading]:
    value = _attempt(of.otherwise, gpu)
    if value is not None:
        yield Reading(metric, value * of.factor, _OTHERWISE_NS)


def _gpm_samples(gpu: Any) -> tuple[Any, Any] | None:
    """Two sample buffers; None if the GPU has no GPM."""
    support = _attempt(pynvml.nvmlGpmQueryDeviceSupport, gpu)
    if support is None or not support.isSupportedDevice:
        return None
    places = _attempt(pynvml.nvmlGpmSampleAlloc), _attempt(pynvml.nvmlGpmSampleAlloc)
    return None if None in places else places


def _between(before: Any, after: Any, period_ns: int) -> Iterator[Reading]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(_OF_GPM)
    asked.sample1, asked.sample2 = before, after
    for at, (number, _) in enumerate(_OF_GPM.values()):
        asked.metrics[at].metricId = number
    if _attempt(pynvml.nvmlGpmMetricsGet, asked) is None:
        return
    for at, (metric, (_, factor)) in enumerate(_OF_GPM.items()):
        one = asked.metrics[at]
        if one.nvmlReturn == pynvml.NVML_SUCCESS:
            yield Reading(metric, one.value * factor, period_ns)


def _value(kind: int, value: Any) -> float:
    return float(getattr(value, _VALUES[kind]))


def _attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls NVML; None if this GPU or this driver does not support the call."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None

"""GPU metrics from NVML; none without an NVIDIA driver.

Gauges are values of the moment, rates (`gpu_rates`) are averages over a period. Counts are errors
since the last sample; zero gives no row, so an error that is not counted on a GPU and one that
never happens look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pynvml

from stepscope.processor.hardware.gpu_rates import Rates, Reading

GB_PER_S_OF_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCI Express: generation to the rate of one lane in one direction, without encoding."""
HELD_DOWN = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)
"""Throttle reasons that are faults: heat and the power supply. Idleness, configured limits and the
board's power cap, which a busy GPU reaches all the time, are not."""


class Gpus:
    """The GPUs of this host. Metrics end in `.gpu<N>`."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._rates: list[Rates] = []
        self.uuids: tuple[str, ...] = ()
        """What their maker calls the GPUs, in the same order; none if one is unknown."""
        self._counted: dict[tuple[int, str], int] = {}
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except pynvml.NVMLError:
            return
        self._rates = [Rates(handle) for handle in self._handles]
        uuids = [_read(pynvml.nvmlDeviceGetUUID, handle) for handle in self._handles]
        self.uuids = tuple(map(str, uuids)) if all(uuids) else ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"gpu-{index}" for index in range(len(self._handles)))

    def leave_counters(self, gpus: Collection[int]) -> None:
        """Stops reading counters of exactly these GPUs, which CUPTI samples now."""
        for index, rates in enumerate(self._rates):
            rates.counters_in_use = index in gpus

    def sample(self) -> Iterator[Reading]:
        """Gauges of each GPU now, and its rates and counts since the last sample."""
        for index in range(len(self._handles)):
            for one in self._sample(index):
                yield replace(one, metric=f"{one.metric}.gpu{index}")

    def _sample(self, index: int) -> Iterator[Reading]:
        handle = self._handles[index]
        for metric, read in _GAUGES.items():
            value = _read(read, handle)
            if value is not None:
                yield Reading(metric, float(value))
        yield from self._rates[index].sample()
        for metric, read in _COUNTS.items():
            more = self._more(index, metric, _read(read, handle))
            if more:
                yield Reading(metric, float(more))

    def processes(self) -> Mapping[int, frozenset[int]]:
        """The pids that compute on each GPU, as seen by the host; in a container they differ."""
        return {
            index: frozenset(
                one.pid for one in _read(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            )
            for index, handle in enumerate(self._handles)
        }

    def _more(self, index: int, metric: str, now: int | None) -> int:
        """By how much a count grew; it restarts at zero when the driver is reloaded."""
        if now is None:
            return 0
        before = self._counted.get((index, metric), now)
        self._counted[index, metric] = now
        return max(now - before, 0)


def _read(read: Callable[[Any], Any], handle: Any) -> Any:
    """Calls NVML; None if this GPU has no such sensor or this driver no such call."""
    try:
        return read(handle)
    except pynvml.NVMLError:
        return None


def _pcie_gb_per_s(gpu: Any) -> float | None:
    """The rate of the PCIe link as trained now; an idle link may be slower to save power."""
    generation = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)
    lane = GB_PER_S_OF_LANE.get(generation)
    return None if lane is None else lane * pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)


def _held_down(gpu: Any) -> float:
    return float(bool(_clock_reasons(gpu) & HELD_DOWN))


def _clock_reasons(gpu: Any) -> int:
    """NVML's bits of what limits the clock (`nvmlClocksEventReasons`)."""
    return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _ecc(kind: int) -> Callable[[Any], int]:
    volatile = pynvml.NVML_VOLATILE_ECC
    return lambda gpu: int(pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, volatile))


def _pcie_replays(gpu: Any) -> int:
    return int(pynvml.nvmlDeviceGetPcieReplayCounter(gpu))


def _nvlink_errors(gpu: Any) -> int | None:
    """The sum over all links; None if the GPU has none."""
    fields = pynvml.nvmlDeviceGetFieldValues(gpu, list(_NVLINK_ERRORS))
    known = [one.value.ullVal for one in fields if one.nvmlReturn == pynvml.NVML_SUCCESS]
    return sum(known) if known else None


_NVLINK_ERRORS = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)

_GAUGES: dict[str, Callable[[Any], Any]] = {
    "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "gpu_temp_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "mem_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
    "pcie_link_gb_per_s": _pcie_gb_per_s,
    "clock_held_down": _held_down,
    "clock_reasons": _clock_reasons,
}

_COUNTS: dict[str, Callable[[Any], int | None]] = {
    "ecc_sbe": _ecc(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "ecc_dbe": _ecc(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "pcie_replays": _pcie_replays,
    "nvlink_errors": _nvlink_errors,
}

"""GPU counters through NVML, where there is an NVIDIA driver; silent where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pynvml


class Gpus:
    """The GPUs of this host. Metrics end in `.gpu<N>`."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except pynvml.NVMLError:
            return

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"gpu-{index}" for index in range(len(self._handles)))

    def sample(self) -> Iterator[tuple[str, float]]:
        for index, handle in enumerate(self._handles):
            for metric, read in _METRICS.items():
                try:
                    yield f"{metric}.gpu{index}", float(read(handle))
                except pynvml.NVMLError:
                    continue  # this GPU does not have that sensor


_METRICS: dict[str, Callable[[Any], float]] = {
    "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "gpu_temp_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "gpu_power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "sm_active": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
}

"""Averages and rates of a GPU, from a fake driver that updates its values irregularly."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from stepscope.processor.hardware import gpu_rates
from stepscope.processor.hardware.gpu_rates import Rates
from stepscope.processor.hardware.sampler import HardwareSampler

SECOND_US = 1_000_000
NVLINK_TX, PCIE_RX = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF),
    (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
)


class Driver:
    """One GPU. It refuses what it has not been given."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_us = 50 * SECOND_US
        self.samples: dict[int, list[tuple[int, int]]] = {}
        self.counters: dict[tuple[int, int], int] = {}
        self.rates: dict[int, float] = {}
        for name in dir(pynvml):
            if name.startswith(("nvmlDeviceGet", "nvmlGpm")):
                patch.setattr(pynvml, name, _refuse)
        patch.setattr(pynvml, "nvmlDeviceGetSamples", self._samples)
        patch.setattr(pynvml, "nvmlDeviceGetFieldValues", self._fields)
        patch.setattr(pynvml, "nvmlGpmSampleAlloc", SimpleNamespace)
        patch.setattr(pynvml, "nvmlGpmSampleGet", lambda _, sample: sample)
        patch.setattr(pynvml, "nvmlGpmMetricsGet", self._gpm)
        patch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", lambda _: SimpleNamespace(
            isSupportedDevice=bool(self.rates)))  # fmt: skip
        patch.setattr(pynvml, "c_nvmlGpmMetricsGet_t", lambda: SimpleNamespace(
            metrics=[SimpleNamespace() for _ in range(16)]))  # fmt: skip
        patch.setattr(gpu_rates, "monotonic_ns", lambda: 1000 * self.now_us)

    def _samples(self, _: Any, kind: int, since_us: int) -> tuple[int, list[Any]]:
        if kind not in self.samples:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=value))
            for at, value in self.samples[kind]
            if at > since_us
        ]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, found

    def _fields(self, _: Any, fields: Sequence[tuple[int, int]]) -> list[Any]:
        kind, known = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, self.counters
        return [
            SimpleNamespace(
                nvmlReturn=pynvml.NVML_SUCCESS if one in known else pynvml.NVML_ERROR_NOT_SUPPORTED,
                timestamp=self.now_us, valueType=kind,
                value=SimpleNamespace(ullVal=known.get(one, 0)),
            )
            for one in fields
        ]  # fmt: skip

    def _gpm(self, asked: Any) -> Any:
        for one in asked.metrics[: asked.numMetrics]:
            known = one.metricId in self.rates
            one.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            one.value = self.rates.get(one.metricId, 0.0)
        return asked


def _refuse(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def told(rates: Rates) -> dict[str, Any]:
    return {one.metric: (pytest.approx(one.value), one.period_ns) for one in rates.sample()}


def test_an_average_has_the_period_of_the_drivers_samples(driver: Driver) -> None:
    kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
    driver.samples[kind] = [(1_000_000, 40), (1_200_000, 60)]
    rates = Rates(0)
    assert told(rates) == {"sm_active": (0.5, 200_000_000)}
    assert told(rates) == {}, "nothing is new"
    driver.samples[kind] += [(1_400_000, 80), (1_600_000, 90), (1_800_000, 100)]
    assert told(rates) == {"sm_active": (0.9, 200_000_000)}


def test_a_driver_without_samples_means_a_second_at_the_most(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 412_000)
    assert told(Rates(0)) == {"gpu_power_w": (412.0, 1_000_000_000)}


def test_a_rate_is_meant_over_the_time_in_which_its_counter_changed(driver: Driver) -> None:
    """It is read every second and renewed every other."""
    rates, seen = Rates(0), []
    for second in range(6):
        driver.now_us = (100 + second) * SECOND_US
        driver.counters = {NVLINK_TX: 4000 * (second // 2)}
        seen.append(told(rates))
    rate = {"nvlink_tx_bytes_per_s": (2000 * 1024, 2_000_000_000)}
    assert seen == [{}, {}, rate, {}, rate, {}]


def test_a_counter_that_stands_says_so(driver: Driver) -> None:
    rates = Rates(0)
    for second in range(21):
        driver.now_us = (100 + second) * SECOND_US
        driver.counters = {PCIE_RX: 77}
        found = told(rates)
        still = {"pcie_rx_bytes_per_s": (0.0, 10_000_000_000)}
        assert found == (still if second in (10, 20) else {})


def test_a_counter_that_was_reset_gives_no_rate(driver: Driver) -> None:
    rates, seen = Rates(0), []
    for second, count in enumerate((500, 900, 100, 300)):
        driver.now_us = (100 + second) * SECOND_US
        driver.counters = {PCIE_RX: count}
        seen.append(told(rates).get("pcie_rx_bytes_per_s", (None,))[0])
    assert seen == [None, 400.0, None, 200.0]


def test_what_gpm_counts_is_not_asked_for_elsewhere(driver: Driver) -> None:
    driver.rates = {pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 70.0, pynvml.NVML_GPM_METRIC_SM_UTIL: 90.0}
    driver.samples[pynvml.NVML_GPU_UTILIZATION_SAMPLES] = [(1, 10), (2, 20)]
    rates = Rates(0)
    assert "dram_active" not in told(rates), "two samples are needed"
    driver.now_us += SECOND_US // 20
    driver.samples = {}
    assert told(rates) == {}, "they are too near to each other"
    driver.now_us += 2 * SECOND_US
    period_ns = 2_050_000_000
    assert told(rates) == {"dram_active": (0.7, period_ns), "sm_active": (0.9, period_ns)}


def test_periods_are_a_column_of_the_table(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    driver.samples[pynvml.NVML_TOTAL_POWER_SAMPLES] = [(1_000_000, 1), (1_100_000, 1)]
    rows = HardwareSampler("host-0").sample().rows_of("job")
    periods = dict(zip(rows["metric"], rows["period_ns"], strict=True))
    assert periods["gpu_power_w.gpu0"] == 100_000_000
    assert periods["load1"] is None


def test_counters_in_use_are_not_read(driver: Driver) -> None:
    """GPM begins anew when they are free again: what was between is told by others."""
    driver.rates = {pynvml.NVML_GPM_METRIC_SM_UTIL: 90.0}
    driver.counters = {PCIE_RX: 1}
    driver.samples[pynvml.NVML_TOTAL_POWER_SAMPLES] = [(1_000_000, 1000), (1_100_000, 3000)]
    rates = Rates(0)
    rates.counters_in_use = True
    assert told(rates) == {"gpu_power_w": (2.0, 100_000_000)}
    rates.counters_in_use, driver.samples = False, {}
    assert "sm_active" not in told(rates)
    driver.now_us += SECOND_US
    assert told(rates)["sm_active"] == (0.9, 1_000_000_000)

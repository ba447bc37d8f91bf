"""GPU metrics from a fake driver: gauges, counts, and the processes on each GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from stepscope.processor.hardware.nvml import Gpus
from stepscope.processor.hardware.sampler import HardwareSampler

STRANGER = 2**22 + 1
JOB = "job"
"""No process of Linux has so high a number."""


class Driver:
    """Two GPUs: what each sensor says, by GPU; what is not here, the driver refuses."""

    def __init__(self) -> None:
        self.uuids = ["GPU-3f", "GPU-4a"]
        self.clock = [1980, 990]
        self.reasons = [pynvml.nvmlClocksThrottleReasonSwPowerCap,
                        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown]  # fmt: skip
        self.generation, self.width = [5, 1], [16, 4]
        self.corrected = [7, 7]
        self.pids: list[list[int]] = [[], []]

    def install(self, patch: Callable[[str, Any], None]) -> None:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": self._uuid,
            "nvmlDeviceGetClockInfo": lambda gpu, _: self.clock[gpu],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: self.reasons[gpu],
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: self.generation[gpu],
            "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: self.width[gpu],
            "nvmlDeviceGetTotalEccErrors": self._ecc,
            "nvmlDeviceGetComputeRunningProcesses":
                lambda gpu: [SimpleNamespace(pid=pid) for pid in self.pids[gpu]],
        }  # fmt: skip
        for name in dir(pynvml):
            if name.startswith(("nvmlDeviceGet", "nvmlGpm")) or name in answers:
                patch(name, answers.get(name, _refuse))

    def _uuid(self, gpu: int) -> str:
        if not self.uuids[gpu]:
            _refuse()
        return self.uuids[gpu]

    def _ecc(self, gpu: int, kind: int, _: int) -> int:
        return self.corrected[gpu] if kind == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 0


def _refuse(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    one = Driver()
    one.install(lambda name, answer: monkeypatch.setattr(pynvml, name, answer))
    return one


def values(gpus: Gpus) -> dict[str, float]:
    return {one.metric: one.value for one in gpus.sample()}


def test_gauges_of_sensors_that_are_there(driver: Driver) -> None:
    assert values(Gpus()) == {
        "sm_clock_mhz.gpu0": 1980.0, "sm_clock_mhz.gpu1": 990.0,
        "mem_clock_mhz.gpu0": 1980.0, "mem_clock_mhz.gpu1": 990.0,
        "clock_reasons.gpu0": 4.0, "clock_reasons.gpu1": 64.0,
        "pcie_link_gb_per_s.gpu0": pytest.approx(63.0, abs=0.1),
        "pcie_link_gb_per_s.gpu1": 1.0,
        "clock_held_down.gpu0": 0.0, "clock_held_down.gpu1": 1.0,
    }  # fmt: skip


def test_gpus_have_uuids_if_all_are_known(driver: Driver) -> None:
    assert Gpus().uuids == ("GPU-3f", "GPU-4a")
    driver.uuids[1] = ""
    assert Gpus().uuids == ()


def test_counts_are_reported_when_they_grow(driver: Driver) -> None:
    gpus = Gpus()
    values(gpus)
    driver.corrected = [7, 10]
    assert values(gpus)["ecc_sbe.gpu1"] == 3.0
    assert "ecc_sbe.gpu0" not in values(gpus)
    assert "ecc_sbe.gpu1" not in values(gpus)
    driver.corrected = [0, 0]  # the driver was loaded anew
    assert "ecc_sbe.gpu1" not in values(gpus)


def of_gpus(sampler: HardwareSampler) -> set[tuple[int, str, float]]:
    rows = sampler.sample().rows_of(JOB)
    found = zip(rows["rank"], rows["metric"], rows["value"], strict=True)
    return {one for one in found if one[1].startswith(("gpu_index", "gpu_strangers"))}


def test_who_computes_on_which_gpu(driver: Driver) -> None:
    driver.pids = [[], [os.getpid(), STRANGER]]
    sampler = HardwareSampler("host-0")
    sampler.watch(JOB, 5, os.getpid(), 0)
    assert of_gpus(sampler) == {(5, "gpu_index", 1.0), (-1, "gpu_strangers.gpu1", 1.0)}
    assert of_gpus(sampler) == set(), "is looked at now and then only"


def test_a_driver_with_other_pids_gives_no_users(driver: Driver) -> None:
    driver.pids = [[STRANGER], [STRANGER + 1]]
    sampler = HardwareSampler("host-0")
    sampler.watch(JOB, 5, os.getpid(), 0)
    assert of_gpus(sampler) == set()


def test_parents_and_children_of_ranks_are_not_other_processes(driver: Driver) -> None:
    driver.pids = [[os.getpid(), os.getppid()], []]
    sampler = HardwareSampler("host-0")
    sampler.watch(JOB, 5, os.getpid(), 0)
    assert of_gpus(sampler) == {(5, "gpu_index", 0.0), (-1, "gpu_strangers.gpu0", 0.0)}


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", _refuse)
    gpus = Gpus()
    assert (gpus.names, list(gpus.sample()), gpus.processes()) == ((), [], {})

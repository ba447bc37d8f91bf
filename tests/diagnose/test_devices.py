"""The devices of ranks, and which of them a verdict names."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Cause, Slowdown
from stepscope.diagnose.network.devices import Devices, culprit_devices
from stepscope.trace import Host, Job
from stepscope.window import Ints, Strings, Table, Window

HOSTS = (Host("a", (0, 1), ("nic-0", "nic-1"), ("gpu-0", "gpu-1")), Host("b", (2, 3)))


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def a_window(**tables: Table) -> Window:
    on_gpus = {"kernels": Table({"rank": ints(0)})}
    return Window(Job("job", 4, HOSTS), {**on_gpus, **tables})


def accused(window: Window, cause: Cause, *ranks: int, function: str | None = None) -> list[str]:
    finding = Slowdown("argus-l2", cause, "", ranks, function=function, score=0.9)
    return [device.name for device in culprit_devices(window, finding, ("a",))]


@pytest.mark.parametrize(
    ("cause", "names"),
    [("compute", ["a/gpu-1", "b/gpu-0"]), ("memory_copy", ["a/pcie-1", "b/pcie-0"]),
     ("host", ["a/cpu"]), ("contention", ["a/cpu"]), ("load_imbalance", [])],
)  # fmt: skip
def test_the_devices_of_slow_ranks(cause: Cause, names: list[str]) -> None:
    assert accused(a_window(), cause, 1, 2) == names


def test_a_slow_function_blames_no_device() -> None:
    assert accused(a_window(), "compute", 1, function="forward (model.py:7)") == []


def test_a_job_without_gpus_blames_none() -> None:
    assert accused(Window(Job("job", 4, HOSTS)), "compute", 1) == []
    assert accused(a_window(), "compute", 9) == []  # nobody knows its host


def test_nics_are_those_of_the_recorded_work_requests() -> None:
    seen = Table({"rank": ints(1, 1, 1, 3), "nic": Strings.of(["nic-0", "nic-0", "nic-1", "x"])})
    devices = Devices(a_window(transfers=seen))
    assert [devices.nic(rank) for rank in range(4)] == ["a/nic-0", "a/nic-0", None, "b/x"]


def test_nvlink_exists_if_counters_show_it() -> None:
    assert Devices(a_window()).nvlink(0) is None
    counted = Table({"rank": ints(0), "metric": Strings.of(["nvlink_tx_bytes_per_s"])})
    assert Devices(a_window(hardware=counted)).nvlink(0) == "a/nvlink"

"""RDMA adapters from files like those of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.processor.hardware.ports import Ports, rdma_adapters


def put(sysfs: Path, adapter: str, **files: object) -> None:
    for name, value in files.items():
        path = sysfs / adapter / "ports" / "1" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="ascii")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for number in (0, 10, 9):
        put(tmp_path, f"mlx5_{number}", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)",
            counters__symbol_error=5, hw_counters__out_of_sequence=100)  # fmt: skip
    put(tmp_path, "mlx5_2", state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    return tmp_path


def test_adapters_that_are_up_in_order(sysfs: Path) -> None:
    assert rdma_adapters(sysfs) == ("mlx5_0", "mlx5_9", "mlx5_10")


def test_what_ports_count_since_the_last_sample(sysfs: Path) -> None:
    ports = Ports(sysfs)
    links = {f"nic_link_gb_per_s.mlx5_{number}": 50.0 for number in (0, 9, 10)}
    assert dict(ports.sample()) == links
    put(sysfs, "mlx5_9", counters__symbol_error=8, hw_counters__out_of_sequence=140)
    counted = {"nic_errors.mlx5_9": 3.0, "nic_retrans.mlx5_9": 40.0}
    assert dict(ports.sample()) == links | counted
    assert dict(ports.sample()) == links


def test_a_port_that_goes_down_is_reported_and_one_that_was_never_up_is_not(sysfs: Path) -> None:
    ports = Ports(sysfs)
    list(ports.sample())
    put(sysfs, "mlx5_0", state="1: DOWN", counters__link_downed=1)
    down = dict(ports.sample())
    assert down["nic_port_down.mlx5_0"] == 1.0 and down["nic_errors.mlx5_0"] == 1.0
    assert not [metric for metric in down if metric.endswith("mlx5_2")]


def test_the_link_between_adapter_and_host(sysfs: Path) -> None:
    """PCIe 5 x16 carries 63 GB/s; it falls back to eight lanes."""
    device = sysfs / "mlx5_9" / "device"
    device.mkdir()
    (device / "current_link_speed").write_text("32.0 GT/s PCIe\n", encoding="ascii")
    (device / "current_link_width").write_text("16\n", encoding="ascii")
    (device / "aer_dev_correctable").write_text("RxErr 2\nTOTAL_ERR_COR 2\n", encoding="ascii")
    ports = Ports(sysfs)
    first = dict(ports.sample())
    assert first["nic_pcie_gb_per_s.mlx5_9"] == pytest.approx(63.0, rel=0.001)
    assert not [
        metric for metric in first if "pcie_errors" in metric or "pcie_gb_per_s.mlx5_0" in metric
    ]
    (device / "current_link_width").write_text("8\n", encoding="ascii")
    (device / "aer_dev_correctable").write_text("RxErr 9\nTOTAL_ERR_COR 9\n", encoding="ascii")
    second = dict(ports.sample())
    assert second["nic_pcie_gb_per_s.mlx5_9"] == pytest.approx(31.5, rel=0.001)
    assert second["nic_pcie_errors.mlx5_9"] == 7.0


def test_a_host_without_such_adapters(tmp_path: Path) -> None:
    assert rdma_adapters(tmp_path / "none") == ()
    assert list(Ports(tmp_path / "none").sample()) == []

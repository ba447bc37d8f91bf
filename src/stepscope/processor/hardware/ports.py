"""RDMA adapters from sysfs: error counts and state of their ports, and their PCIe links.

NCCL moves data between hosts through these if a host has them. Counts are errors since the last
sample; zero gives no row. A port that was never up is ignored. Names of counters: Linux,
Documentation/ABI/stable/sysfs-class-infiniband; of PCIe, Documentation/ABI/testing/sysfs-bus-pci
and sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")
COUNTS: Mapping[str, tuple[str, ...]] = {
    "nic_errors": (
        "counters/symbol_error", "counters/link_error_recovery", "counters/link_downed",
        "counters/port_rcv_errors", "counters/port_rcv_remote_physical_errors",
        "counters/local_link_integrity_errors",
    ),
    "nic_retrans": (
        "hw_counters/packet_seq_err", "hw_counters/out_of_sequence",
        "hw_counters/local_ack_timeout_err", "hw_counters/implied_nak_seq_err",
        "hw_counters/roce_adp_retrans",
    ),
}  # fmt: skip
"""Metric to the counters that it sums: errors of a bad link, and retransmissions due to it or to a
congested fabric."""
PCIE_ERRORS = ("aer_dev_correctable", "aer_dev_nonfatal")
"""Lines of a name and a count; the last is the total. Kernels without AER lack these files."""
OF_EACH_LANE = ((8.0, 128 / 130), (0.0, 8 / 10))
"""Lowest rate of a lane in GT/s and the share of data in its encoding (PCIe 3 and 1)."""
ACTIVE = "4:"
BITS = 8


class Ports:
    """The ports of this host's RDMA adapters. Metrics end in the adapter's name: `.mlx5_0`."""

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._ports = [(adapter, port) for adapter in _adapters(sysfs)
                       for port in sorted((sysfs / adapter / "ports").glob("*"))]  # fmt: skip
        self._devices = {adapter: sysfs / adapter / "device" for adapter, _ in self._ports}
        self._counted: dict[tuple[Path, str], int] = {}
        self._used: set[Path] = set()

    def sample(self) -> Iterator[tuple[str, float]]:
        """The state of each port, and its counts since the last sample."""
        for adapter, port in self._ports:
            up = _text(port / "state").startswith(ACTIVE)
            if up:
                self._used.add(port)
            elif port in self._used:
                yield f"nic_port_down.{adapter}", 1.0
            if port in self._used:
                yield from self._of_used(adapter, port)

        for adapter, device in self._devices.items():
            yield from self._of_pcie(adapter, device)

    def _of_pcie(self, adapter: str, device: Path) -> Iterator[tuple[str, float]]:
        """The rate of an adapter's PCIe link as trained now, and its errors."""
        carries = _gb_per_s(
            _text(device / "current_link_speed"), _text(device / "current_link_width")
        )
        if carries:
            yield f"nic_pcie_gb_per_s.{adapter}", carries
        more = self._more(device, "errors", sum(_total(device / name) for name in PCIE_ERRORS))
        if more:
            yield f"nic_pcie_errors.{adapter}", float(more)

    def _of_used(self, adapter: str, port: Path) -> Iterator[tuple[str, float]]:
        rate = _text(port / "rate").split()[:1]  # 400 Gb/sec (4X NDR)
        if rate:
            yield f"nic_link_gb_per_s.{adapter}", float(rate[0]) / BITS
        for metric, names in COUNTS.items():
            more = self._more(port, metric, sum(_count(port / name) for name in names))
            if more:
                yield f"{metric}.{adapter}", float(more)

    def _more(self, of: Path, metric: str, now: int) -> int:
        """By how much a count grew; one that was cleared restarts at zero."""
        before = self._counted.get((of, metric), now)
        self._counted[of, metric] = now
        return max(now - before, 0)


def rdma_adapters(sysfs: Path = SYSFS) -> tuple[str, ...]:
    """Adapters with a port that is up, in the order of their numbers."""
    return tuple(
        adapter for adapter in _adapters(sysfs)
        if any(_text(port / "state").startswith(ACTIVE)
               for port in (sysfs / adapter / "ports").glob("*"))
    )  # fmt: skip


def _adapters(sysfs: Path) -> list[str]:
    """The adapters' names; `mlx5_10` comes after `mlx5_9`."""
    try:
        names = [path.name for path in sysfs.iterdir()]
    except OSError:
        return []
    return sorted(names, key=lambda name: (len(name), name))


def _gb_per_s(speed: str, width: str) -> float | None:
    """The data rate in one direction from `32.0 GT/s PCIe` and `16`; None if unknown."""
    try:
        transfers, lanes = float(speed.split(maxsplit=1)[0]), int(width)
    except (IndexError, ValueError):
        return None
    return (
        transfers * lanes * next(part for least, part in OF_EACH_LANE if transfers >= least) / BITS
    )


def _total(path: Path) -> int:
    """The total of the last line, `TOTAL_ERR_COR 3`."""
    last = _text(path).splitlines()[-1:]
    words = last[0].split() if last else []
    return int(words[-1]) if words and words[-1].isdigit() else 0


def _count(path: Path) -> int:
    """A counter; 0 if this adapter has none of that name."""
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""

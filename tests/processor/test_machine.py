"""Metrics of a host from /proc: from files that a test writes, and from this machine's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from stepscope.processor.hardware.machine import Machine

INTERFACES = """Inter-|   Receive                    |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls
    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0
  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0
 ib0.1:100 1 0 0 0 0 0 0 7 1 0 0 0 0
"""


class Host:
    """Its files, which stay where they are."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        (proc / "net").mkdir()
        self.tell({0: "10 0 5 100 20 0 0 0 4 0", 1: "0 0 0 200 0 0 0 0 0 0"})
        self.machine = Machine(proc)

    def tell(
        self, times: dict[int, str], received: int = 0, sent: int = 0,
        memory: str = "MemTotal: 9 kB\nMemAvailable:   3 kB\n",
    ) -> None:  # fmt: skip
        lines = [f"cpu{number} {values}\n" for number, values in times.items()]
        (self.proc / "stat").write_text("".join(["cpu  1 2\n", *lines, "intr 1 2 3\nctxt 9\n"]))
        (self.proc / "meminfo").write_text(memory)
        interfaces = INTERFACES.format(received=received, sent=sent)
        (self.proc / "net/dev").write_text(interfaces)

    def sample(self, elapsed: float = 2.0) -> dict[str, float]:
        return {name: value for name, value in self.machine.sample(elapsed) if name != "load1"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_shares_and_rates_are_those_since_the_last_sample(host: Host) -> None:
    host.tell({0: "40 0 15 140 40 0 0 0 9 0", 1: "0 0 0 300 0 0 0 0 0 0"}, received=500, sent=50)
    assert host.sample() == {
        "cpu_util": 0.2, "cpu_util.core0": 0.4, "cpu_util.core1": 0.0,
        "mem_available_bytes": 3072.0,
        "nic_rx_bytes_per_s": 250.0, "nic_tx_bytes_per_s": 25.0,
    }  # fmt: skip
    host.tell({0: "41 0 15 141 40 0 0 0 9 0", 1: "1 0 0 300 0 0 0 2 0 0"}, received=500, sent=54)
    assert host.sample(elapsed=1.0)["cpu_util"] == 0.75
    assert host.sample(elapsed=0.0).keys() == {
        "cpu_util", "cpu_util.core0", "cpu_util.core1", "mem_available_bytes"
    }  # fmt: skip


def test_processors_come_and_go(host: Host) -> None:
    host.tell({1: "1 0 0 201 0 0 0 0 0 0", 7: "0 0 0 0 0 0 0 0 0 0"})
    assert host.sample()["cpu_util.core1"] == 0.5
    host.tell({1: "1 0 0 201 0 0 0 0 0 0", 7: "1 0 0 0 0 0 0 0 0 0"})
    assert host.sample()["cpu_util.core7"] == 1.0


def test_time_that_runs_backwards_is_no_work(host: Host) -> None:
    host.tell({0: "10 0 5 150 10 0 0 0 4 0", 1: "0 0 0 190 0 0 0 0 0 0"})
    shares = host.sample()
    assert shares["cpu_util.core0"] == shares["cpu_util.core1"] == 0.0


def test_an_old_kernel_has_no_available_memory(host: Host) -> None:
    host.tell({0: "10 0 5 100 20 0 0 0 4 0"}, memory="MemTotal: 9 kB\n")
    assert "mem_available_bytes" not in host.sample()


def test_this_machine_as_psutil_sees_it() -> None:
    machine = Machine()
    sample = dict(machine.sample(1.0))
    machine.close()
    assert {f"cpu_util.core{number}" for number in range(psutil.cpu_count() or 0)} <= sample.keys()
    total = psutil.virtual_memory().total
    assert 0 < sample["mem_available_bytes"] <= total

"""TCP segments sent and retransmitted: from a file that a test writes, from this machine, and from
a network namespace of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.processor.hardware.machine import PROC
from stepscope.processor.hardware.tcp import TcpSegments

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
IcmpMsg: InType3
IcmpMsg: 63
Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs
Tcp: 1 -1 70 {sent} {resent} 0
Udp: InDatagrams NoPorts
Udp: 1 2
"""
IN_A_NAMESPACE = """
import json
from pathlib import Path
from stepscope.processor.hardware.tcp import TcpSegments
segments = TcpSegments(Path("/proc"))
print(json.dumps(dict(segments.sample(1.0))))
"""


class Host:
    """A host whose counters a test sets."""

    def __init__(self, proc: Path) -> None:
        (proc / "net").mkdir()
        self._snmp = proc / "net/snmp"
        self.count(100, 10)
        self.segments = TcpSegments(proc)

    def count(self, sent: int, resent: int) -> None:
        self._snmp.write_text(SNMP.format(sent=sent, resent=resent))

    def sample(self, elapsed: float) -> dict[str, float]:
        return dict(self.segments.sample(elapsed))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_rates_are_those_since_the_last_sample(host: Host) -> None:
    host.count(300, 14)
    assert host.sample(2.0) == {"tcp_out_segs_per_s": 100.0, "tcp_retrans_per_s": 2.0}
    assert host.sample(2.0) == {"tcp_out_segs_per_s": 0.0, "tcp_retrans_per_s": 0.0}


def test_the_first_sample_has_no_rate(host: Host) -> None:
    host.count(300, 14)
    assert host.sample(0.0) == {}
    host.count(301, 14)
    assert host.sample(1.0)["tcp_out_segs_per_s"] == 1.0


def test_counters_that_restart_are_no_negative_rate(host: Host) -> None:
    host.count(5, 0)
    assert host.sample(1.0) == {"tcp_out_segs_per_s": 0.0, "tcp_retrans_per_s": 0.0}


def test_a_host_without_the_file_has_no_rates(tmp_path: Path) -> None:
    segments = TcpSegments(tmp_path)
    assert dict(segments.sample(1.0)) == {}
    segments.close()


def test_a_kernel_without_tcp_has_no_rates(host: Host) -> None:
    host._snmp.write_text("Ip: Forwarding\nIp: 1\n")
    assert host.sample(1.0) == {}


def test_segments_that_this_machine_sends_are_counted() -> None:
    segments = TcpSegments(PROC)
    _talk(messages=50)
    rates = dict(segments.sample(1.0))
    segments.close()
    assert rates["tcp_out_segs_per_s"] >= 50 and rates["tcp_retrans_per_s"] >= 0


def test_a_network_namespace_has_its_own_counters() -> None:
    """A new namespace has sent nothing, whatever this machine does meanwhile."""
    inside = ["unshare", "--map-root-user", "--net", sys.executable, "-c", IN_A_NAMESPACE]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    ran = subprocess.run(inside, check=False, capture_output=True, text=True)
    if ran.returncode != 0 and "unshare:" in ran.stderr:
        pytest.skip(f"namespaces are not permitted: {ran.stderr.strip()}")
    assert json.loads(ran.stdout) == {"tcp_out_segs_per_s": 0.0, "tcp_retrans_per_s": 0.0}


def _talk(messages: int) -> None:
    """Messages over loopback, each answered, so that each is a segment."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        for _ in range(messages):
            one.sendall(b"a")
            other.recv(1)
            other.sendall(b"b")
            one.recv(1)

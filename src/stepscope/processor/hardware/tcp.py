"""TCP segments that this host sent, and those it had to send again, from /proc/net/snmp.

The counters belong to the network namespace of the process that opens the file, and cover IPv4 and
IPv6, loopback included. Linux counts a retransmitted segment in `RetransSegs` alone, so the two
rates do not overlap (RFC 1213, `tcpOutSegs` and `tcpRetransSegs`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

METRICS = {b"OutSegs": "tcp_out_segs_per_s", b"RetransSegs": "tcp_retrans_per_s"}
_MOST_BYTES = 1 << 14
"""The file has 1.3 KB; a kernel with more ICMP types has a few lines more."""
_TCP = b"Tcp:"


class TcpSegments:
    """Rates since the last sample, as rows of `hardware`; none on a host without the file."""

    def __init__(self, proc: Path) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(proc / "net/snmp", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        self._counted = self._now()

    def sample(self, elapsed: float) -> Iterator[tuple[str, float]]:
        """Both rates, `elapsed` seconds after the last sample; nothing at the first."""
        if self._file is None:
            return
        before, self._counted = self._counted, self._now()
        if elapsed <= 0:
            return
        for metric, count in self._counted.items():
            if metric in before:
                yield metric, max(count - before[metric], 0) / elapsed

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _now(self) -> dict[str, int]:
        assert self._file is not None
        return _counts(os.pread(self._file, _MOST_BYTES, 0))


def _counts(snmp: bytes) -> dict[str, int]:
    """The counters by metric: a line of names is followed by a line of values."""
    lines = [line.split() for line in snmp.splitlines() if line.startswith(_TCP)]
    if len(lines) < 2:
        return {}
    names, values = lines[:2]
    return {METRICS[name]: int(value)
            for name, value in zip(names, values, strict=False) if name in METRICS}  # fmt: skip

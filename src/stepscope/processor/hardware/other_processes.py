"""CPU use of other processes on the host (neither a job's nor stepscope's), by CPU.

Scanning all processes costs 10 to 50 ms, so there is at most one scan every few seconds for all
ranks. The first scan only sets the baseline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

import psutil

LOOK_SECONDS = 3.0


class OtherProcesses:
    """Scans all processes of the host. `family` returns the pids to exclude."""

    def __init__(self, family: Callable[[], set[int]]) -> None:
        self._family = family
        self._cpu_seconds: dict[int, float] = {}
        self._looked_at: float | None = None
        self._cores: list[tuple[int, float]] | None = None

    def cores_used(self, cpus: Set[int]) -> float | None:
        """Cores used by other processes last seen on these CPUs; None before the second scan."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
            self._look(now)
        if self._cores is None:
            return None
        return sum(used for cpu, used in self._cores if cpu in cpus)

    def _look(self, now: float) -> None:
        ours = self._family()
        cpu_seconds: dict[int, float] = {}
        grown: list[tuple[int, float]] = []
        for process in psutil.process_iter(["pid", "cpu_times", "cpu_num"]):
            pid, times, cpu = (process.info[key] for key in ("pid", "cpu_times", "cpu_num"))
            if pid in ours or times is None:
                continue
            cpu_seconds[pid] = times.user + times.system
            if pid in self._cpu_seconds:
                grown.append((cpu, cpu_seconds[pid] - self._cpu_seconds[pid]))
        if self._looked_at is not None:
            elapsed = now - self._looked_at
            self._cores = [(cpu, seconds / elapsed) for cpu, seconds in grown if seconds > 0]
        self._cpu_seconds, self._looked_at = cpu_seconds, now

"""The share of the time in which a quota keeps a rank from running: the metric `cpu_throttled`.

The kernel gives a group its quota in every period and stops it when that is used up (kernel
documentation, `scheduler/sched-bwc.rst`). It counts periods, periods in which it stopped the group,
and for how long, added up over all processors. So this time may exceed the time that passed; it is
at most the share of periods in which the group was stopped. The group that was stopped most of
a rank's own and its parents counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from stepscope.processor.hardware.cgroups import quota_files

_NANOSECONDS = {"throttled_usec": 1000, "throttled_time": 1}
"""The time stopped, in versions 2 and 1, and its unit."""


class Counted(NamedTuple):
    """What a group has counted so far."""

    periods: int
    stopped: int
    """Periods in which it was stopped."""
    stopped_ns: int


class Quotas:
    """The shares of time in which the groups of some processes were stopped."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._files: dict[int, tuple[Path, ...]] = {}
        self._counted: dict[Path, Counted] = {}
        self._shares: dict[Path, float] = {}

    def watch(self, pid: int) -> None:
        self._files[pid] = quota_files(pid, self._proc)

    def unwatch(self, pid: int) -> None:
        self._files.pop(pid, None)

    def look(self, elapsed: float) -> None:
        """Reads each group once, `elapsed` seconds after the last time."""
        groups = {file for files in self._files.values() for file in files}
        before, self._counted = self._counted, dict(_read(groups))
        self._shares = {
            file: _share(before[file], now, elapsed)
            for file, now in self._counted.items() if file in before and elapsed > 0
        }  # fmt: skip

    def throttled(self, pid: int) -> float | None:
        """The share of the time; 0 without a quota, None where that is not known."""
        known = [self._shares[one] for one in self._files.get(pid, ()) if one in self._shares]
        return max(known, default=None)


def _read(files: Iterable[Path]) -> Iterable[tuple[Path, Counted]]:
    for file in files:
        try:
            found = parsed(file.read_bytes())
        except OSError:  # the group is gone
            continue
        if found is not None:
            yield file, found


def parsed(statistics: bytes) -> Counted | None:
    """The counters in a `cpu.stat`; None for a group that cannot have a quota."""
    pairs = (line.split() for line in statistics.splitlines())
    counts = {pair[0].decode(): int(pair[1]) for pair in pairs if len(pair) == 2}
    if "nr_periods" not in counts:
        return None
    stopped_ns = sum(counts.get(name, 0) * unit for name, unit in _NANOSECONDS.items())
    return Counted(counts["nr_periods"], counts.get("nr_throttled", 0), stopped_ns)


def _share(before: Counted, now: Counted, elapsed: float) -> float:
    periods, stopped, stopped_ns = (new - old for new, old in zip(now, before, strict=True))
    if periods <= 0:
        return 0.0
    return max(min(stopped_ns / 1e9 / elapsed, stopped / periods, 1.0), 0.0)

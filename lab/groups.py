"""Control groups, one per host: its share of the processors, and a quota where a fault sets one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V1 = Path("/sys/fs/cgroup/cpu")
_V2 = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
"""A fifth of the kernel's default, so that a quota slows steps of 150 ms evenly."""
_WEIGHT = {"cpu.shares": "100000", "cpu.weight": "5000"}
"""Of all hosts together: whatever else this machine does comes second."""


def _root() -> Path | None:
    if (_V1 / "cpu.shares").exists():
        return _V1
    controllers = _V2 / "cgroup.controllers"
    return _V2 if controllers.exists() and "cpu" in controllers.read_text().split() else None


@dataclass(frozen=True)
class Groups:
    """A group for all hosts of one cluster, with one group per host in it."""

    name: str

    @staticmethod
    def are_there() -> bool:
        root = _root()
        return root is not None and os.access(root, os.W_OK)

    @staticmethod
    def all(prefix: str) -> Iterator[Groups]:
        root = _root()
        if root is not None:
            yield from (Groups(found.name) for found in root.glob(f"{prefix}*"))

    def make(self, host: str) -> None:
        if not self._folder.exists():
            if self._v2:
                (_V2 / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
            for file, value in _WEIGHT.items():
                if (self._folder / file).exists():
                    (self._folder / file).write_text(value)
            if self._v2:
                (self._folder / "cgroup.subtree_control").write_text("+cpu")
        (self._folder / host).mkdir()

    def joining(self, host: str) -> list[str]:
        """Prefix of a command line that is to run in a host's group."""
        procs = self._folder / host / "cgroup.procs"
        return ["sh", "-c", f'echo 0 > {procs}; exec "$@"', "sh"]

    def set_quota(self, host: str, processors: float) -> None:
        """All of a host together get this much; less than 1 is a part of one processor."""
        quota = round(processors * _PERIOD_US)
        if self._v2:
            (self._folder / host / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            return
        (self._folder / host / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (self._folder / host / "cpu.cfs_quota_us").write_text(str(quota))

    def lift_quota(self, host: str) -> None:
        if self._v2:
            (self._folder / host / "cpu.max").write_text(f"max {_PERIOD_US}")
        else:
            (self._folder / host / "cpu.cfs_quota_us").write_text("-1")

    def remove(self) -> None:
        """Processes that were killed are in the way for a moment."""
        for group in [*self._folder.glob("*/"), self._folder]:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    group.rmdir()
                if not group.exists():
                    break
                time.sleep(0.02)

    @property
    def _folder(self) -> Path:
        root = _root()
        assert root is not None
        return root / self.name

    @property
    def _v2(self) -> bool:
        return _root() == _V2

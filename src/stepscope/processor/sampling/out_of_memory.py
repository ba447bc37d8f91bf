"""What the kernel says about processes that it killed because memory ran out.

The log needs a privilege; the count of a process's memory cgroup does not. The count covers every
process of the cgroup, so it is compared with what it was when the process was first seen.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_KILLED = re.compile(rb"Killed process (\d+) \(")
_MOST_LINE_BYTES = 8192
"""More than a record of /dev/kmsg has."""
_MOST_RECORDS = 100_000
"""Per look. The kernel's buffer holds fewer."""
_MOST_KILLS = 1000


class KernelLog:
    """Processes that the kernel killed for lack of memory, since this object exists."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._file: int | None = None
        self._killed: dict[int, str] = {}
        with contextlib.suppress(OSError):  # not allowed, or in a container
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def killed(self, pid: int) -> str | None:
        """The kernel's line about a process; None if there is none."""
        self._read()
        return self._killed.pop(pid, None)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> None:
        for _ in range(_MOST_RECORDS):
            if self._file is None or len(self._killed) > _MOST_KILLS:
                return
            try:
                record = os.read(self._file, _MOST_LINE_BYTES)
            except BrokenPipeError:  # records were overwritten before we read them
                continue
            except OSError:  # nothing new
                return
            if not record:
                return
            if found := _KILLED.search(record):
                line = record.partition(b";")[2].split(b"\n", 1)[0]
                self._killed[int(found[1])] = line.decode(errors="replace")


class OomKills:
    """The number of processes that were killed in the memory cgroup of a process."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._file = _file_of(pid, root)
        self._before = self._count()

    def any_new(self) -> bool:
        """Whether any was killed since this object exists."""
        return self._count() > self._before

    def _count(self) -> int:
        if self._file is None:
            return 0
        try:
            words = self._file.read_text(encoding="ascii").split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            return 0


def _file_of(pid: int, root: Path) -> Path | None:
    """The file with the count, of cgroup version 2 or 1; None where there is none."""
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    folders = root / "sys/fs/cgroup"
    for line in lines:
        _, kinds, path = line.split(":", 2)
        place = path.lstrip("/")
        if "memory" in kinds.split(",") and (
                file := folders / "memory" / place / "memory.oom_control").exists():  # fmt: skip
            return file
        if not kinds:
            for base in (folders, folders / "unified"):
                if (file := base / place / "memory.events").exists():
                    return file
    return None

"""How long the threads that move a process's data were ready to run and had no processor.

gloo moves data in threads of its own, and NCCL feeds network adapters from its proxies. A host that
gives them too little processor time slows down the transfers of all ranks, and no rank's main
thread shows it. The threads are known by the names that the libraries give them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stepscope.processor.hardware.proc import read_run_delay_ns

NAMES = (b"gloo", b"pt_gloo", b"NCCL", b"nccl")
"""How the names of such threads begin: `gloo_tcp_loop` and `pt_gloo_runloop`, `NCCL Progress`,
`NCCL Service` and others. PyTorch's watchdogs (`pt_nccl_`) move nothing."""
MOST = 64
"""Files that are kept open for each process. Our choice."""
LISTED_SECONDS = 10.0
"""Between two lists: one of 200 threads takes a millisecond."""


class CommThreads:
    """The communication threads of one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files: dict[int, int] = {}
        self._delay_ns: dict[int, int] = {}
        self._waited_ns = 0
        self._listed_s, self._listed = -LISTED_SECONDS, 0

    def run_delay_ns(self, threads: int, now_s: float) -> int | None:
        """How long all of them together waited for a processor, since each was first seen.

        Args:
            threads: how many threads the process has; they are listed again when that changes.
            now_s: of a clock that does not jump.

        Returns:
            Nanoseconds; None while there are no such threads, or without schedstats.
        """
        if threads != self._listed and now_s >= self._listed_s + LISTED_SECONDS:
            self._list()
            self._listed_s, self._listed = now_s, threads
        for thread, file in list(self._files.items()):
            self._read(thread, file)
        return self._waited_ns if self._files else None

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _list(self) -> None:
        """Opens the files of new threads."""
        there: list[Path] = []
        with contextlib.suppress(OSError):
            there = list(Path(f"/proc/{self._pid}/task").iterdir())
        for thread in there:
            if int(thread.name) not in self._files and len(self._files) < MOST:
                with contextlib.suppress(OSError):  # it has ended, or there are no schedstats
                    self._open(thread)

    def _open(self, thread: Path) -> None:
        if (thread / "comm").read_bytes().startswith(NAMES):
            file = os.open(thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._files[int(thread.name)] = file

    def _read(self, thread: int, file: int) -> None:
        delay = read_run_delay_ns(file)
        if delay is None:  # it has ended
            os.close(self._files.pop(thread))
            self._delay_ns.pop(thread, None)
            return
        self._waited_ns += delay - self._delay_ns.get(thread, delay)
        self._delay_ns[thread] = delay

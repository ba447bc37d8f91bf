"""In a launcher: reports to the processor at once when a child stops (SIGSTOP, a debugger).

The system notifies only the parent; every other process has to poll, many times a second. A thread
waits in the kernel, at no cost, and consumes stop events only: the launcher can still wait for the
exit of a child. Launchers in other languages (mpirun, srun) lack this thread, so the processor
polls instead.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.collect.connection import connect
from stepscope.collect.descriptors import OwnSocket
from stepscope.collect.guard import guarded
from stepscope.wire.control import encode_parent
from stepscope.wire.frames import PacketKind, pack

_COMMANDS = ("torchrun", "accelerate")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.launch",
            "accelerate.commands.launch")  # fmt: skip
_CHILDLESS_SECONDS = 0.5
"""How often a launcher without children checks whether it has any."""
_SEND_SECONDS = 1.0


def watch_children(path: str) -> None:
    """Starts the thread if this process is a launcher; `path` is the processor's socket."""
    if is_launcher(sys.orig_argv) and hasattr(os, "waitid"):
        threading.Thread(target=_Children(path).watch, name="stepscope", daemon=True).start()


def is_launcher(command: Sequence[str]) -> bool:
    """Whether a command line runs torchrun or a similar launcher."""
    for word in command[1:]:
        if Path(word).name in _COMMANDS or word in _MODULES:
            return True
        if not word.startswith("-"):
            return False
    return False


class _Children:
    """The children of this process, and the connection on which they are reported."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._line: OwnSocket | None = None

    @guarded
    def watch(self) -> None:
        """Runs for ever."""
        self._tell(None)
        while True:
            self._tell(_next_stopped())

    def _tell(self, stopped: int | None) -> None:
        """Connects again if the processor was restarted: it then has a new socket at this path."""
        packet = pack(PacketKind.CONTROL, encode_parent(os.getpid(), stopped), os.getpid(), 0)
        for _ in range(2):
            try:
                self._line = self._line or connect(self._path, _SEND_SECONDS)
                self._line.get().send(packet, socket.MSG_NOSIGNAL)
            except OSError:
                self._hang_up()
            else:
                return

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _next_stopped() -> int:
    """Waits for a child to stop."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WSTOPPED)
        except ChildProcessError:
            time.sleep(_CHILDLESS_SECONDS)
        else:
            if found is not None:
                return found.si_pid

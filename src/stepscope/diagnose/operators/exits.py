"""How the processes of ranks ended: the rows of table `exits`.

Cost: one pass over these rows, one for each process that ended.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from stepscope.window import NULL, Strings, Table, Window

ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals of launchers, schedulers and terminals, which end a job on purpose."""
LOST_PEER = (
    "connection closed", "connection reset", "connection refused", "connection was likely closed",
    "broken pipe", "remote process", "remote worker", "remoteerror",
)  # fmt: skip
"""Words of gloo, NCCL and torch.distributed in exceptions because another process is gone."""
ECHOES = (*LOST_PEER, "timed out", "timeout", "keyboardinterrupt", "signalexception")
"""Words of gloo, NCCL, torch.distributed and Python in exceptions because somebody else ended or
hangs, or because a signal asked the process to end."""
MISMATCHED = (
    "collective mismatch", "data size doesn't match", "mismatch between collectives",
    "collectives differ in",
)  # fmt: skip
"""Words of gloo and torch.distributed in exceptions because ranks called what does not match."""


@dataclass(frozen=True)
class Exit:
    """How the process of one rank ended."""

    rank: int
    ts_ns: int
    status: int | None
    signal: int | None
    announced: bool
    reason: str
    detail: str
    frames: tuple[str, ...] = ()
    """Where its exception was raised, outermost first."""

    @property
    def is_echo(self) -> bool:
        """Whether it ended because of another process, or was asked to end."""
        text = self.detail.lower()
        return any(word in text for word in (*ECHOES, *MISMATCHED)) or self.signal in ASKED_TO_END

    @property
    def lost_peer(self) -> bool:
        """Whether it failed because another process was gone."""
        return bool(self.reason) and any(word in self.detail.lower() for word in LOST_PEER)

    @property
    def exception(self) -> str:
        """The type of the exception that ended it; empty if none did."""
        return self.detail.partition(": ")[0] if self.reason else ""

    @property
    def is_mismatched(self) -> bool:
        """Whether the communication library said that what ranks called does not match."""
        return any(word in self.detail.lower() for word in MISMATCHED)

    @property
    def is_abort(self) -> bool:
        """Whether the process ended itself: a failed check, or a C++ exception nobody caught."""
        return self.signal == signal.SIGABRT

    @property
    def is_normal(self) -> bool:
        """Whether the process ended by itself and without an error. A process that crashes after
        its last record has done its work."""
        if self.announced:
            return not self.reason and not self.status
        return self.status == 0

    @property
    def is_unknown(self) -> bool:
        """Whether the process ended without leaving any information on how."""
        return not self.announced and self.status is None and self.signal is None


def read_exits(window: Window) -> list[Exit]:
    """The last exit of each rank that was not started again, in the order of time."""
    table = window.table("exits")
    exits = [] if table is None else _exits(table)
    return [one for one in exits if not _is_back(window, one)]


def _exits(table: Table) -> list[Exit]:
    """The last exit of each rank, in the order of time."""
    texts = table.strings("reason"), table.strings("detail")
    frames = table.strings("frames") if table.has("frames") else None
    last: dict[int, Exit] = {}
    for row in table.ints("ts_ns").argsort(kind="stable").tolist():
        rank = int(table.ints("rank")[row])
        if rank >= 0:
            reason, detail = (column[row] or "" for column in texts)
            last[rank] = Exit(rank, int(table.ints("ts_ns")[row]), _known(table, "status", row),
                              _signal(table, row), bool(table.mask("announced")[row]),
                              reason, detail, _split(frames, row))  # fmt: skip
    return sorted(last.values(), key=lambda one: one.ts_ns)


def _split(frames: Strings | None, row: int) -> tuple[str, ...]:
    text = None if frames is None else frames[row]
    return tuple(text.split(";")) if text else ()


def _known(table: Table, column: str, row: int) -> int | None:
    value = int(table.ints(column)[row])
    return None if value == NULL else value


def _signal(table: Table, row: int) -> int | None:
    """The signal that ended it; shells report it as a status above 128."""
    status, number = (_known(table, name, row) for name in ("status", "signal"))
    if number is None and status is not None and 128 < status <= 128 + signal.NSIG:
        return status - 128
    return number


def _is_back(window: Window, one: Exit) -> bool:
    """Whether another process took the rank's place: a launcher started it again."""
    for name in ("steps", "phases", "comm_ops"):
        table = window.table(name)
        time = "enqueue_ns" if name == "comm_ops" else "start_ns"
        if table is not None and table.has(time):
            own = table.ints(time)[table.ints("rank") == one.rank]
            if own.size and int(own.max()) > one.ts_ns:
                return True
    return False

"""Which end of a stalled transfer is cut off: the host that has moved no data since.

A send whose data does not move passes two hosts. If other data reached or left one of them after
the send was called, its link works, and the other host is the one that nobody reaches.
Cost: one match of the table, then vectorised.
Cannot see: links of hosts that had nothing else to move.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.operators.open_ops import OpenOperator, is_finished
from stepscope.diagnose.prepare.matching import match
from stepscope.window import NULL, Ints, Mask, Table, Window

LATE = 0.9
"""Data that was on its way when the link broke still arrives. Nine in ten transfers of this kind
take no longer than this quantile. Statistics."""


def cut_off(window: Window, stalled: OpenOperator) -> str | None:
    """The host at one end of the transfer to which no data moves, if data moves to the other."""
    hosts = {window.host_of(rank) for rank in stalled.entered}
    if len(hosts) != 2 or None in hosts:
        return None
    moved = _Moved.of(window)
    working = moved.hosts_after(stalled.since_ns + moved.usual_ns(stalled.entered))
    silent = [host for host in hosts if host is not None and host not in working]
    return silent[0] if len(silent) == 1 else None


class _Moved:
    """Operators between hosts that ended, and when the first and the last member called each."""

    def __init__(self, window: Window, comm: Table, key: Ints, ended: Mask) -> None:
        self._window, self._rank, self._key, self._ended = window, comm.ints("rank"), key, ended
        called, count = comm.ints("enqueue_ns"), int(key.max(initial=-1)) + 2
        self._first, self._last = np.full(count, np.iinfo(np.int64).max), np.full(count, NULL)
        np.minimum.at(self._first, key, called)
        np.maximum.at(self._last, key, called)
        self._end = comm.ints("end_ns") if comm.has("end_ns") else np.full(len(comm), NULL)

    @classmethod
    def of(cls, window: Window) -> _Moved:
        comm = window.tables["comm_ops"]
        matched = match(comm)
        return cls(window, comm, matched.key, is_finished(comm) & (matched.key >= 0))

    def usual_ns(self, ranks: frozenset[int]) -> int:
        """How long operators of only these ranks take, from the last call."""
        own = self._ended & (self._end != NULL)
        foreign = np.zeros(len(self._first), np.bool_)
        foreign[self._key[~np.isin(self._rank, sorted(ranks))]] = True
        lasted = (self._end - self._last[self._key])[own & ~foreign[self._key]]
        return int(np.quantile(lasted, LATE)) if lasted.size else 0

    def hosts_after(self, time_ns: int) -> set[str]:
        """Hosts of operators that began after this moment, involved another host, and ended."""
        rows = np.flatnonzero(self._ended & (self._first[self._key] > time_ns))
        every = np.flatnonzero(np.isin(self._key, self._key[rows]))
        of_key: dict[int, set[str]] = {}
        for row in every.tolist():
            host = self._window.host_of(int(self._rank[row]))
            if host is not None:
                of_key.setdefault(int(self._key[row]), set()).add(host)
        return {host for hosts in of_key.values() if len(hosts) > 1 for host in hosts}

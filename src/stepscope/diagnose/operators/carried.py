"""Which host is cut off: the one in every transfer that stalls, and that has moved no data since.

Operators that all members entered, and whose data does not move, pass two or more hosts each. The
host whose link is gone is in all of them. Of several such hosts, those are not to blame whose other
data arrived or left after the first stalled operator was called: their links work.
Cost: one match of the table, then vectorised.
Cannot see: links of hosts that had nothing else to move.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.diagnose.operators.open_ops import OpenOperator, is_finished
from stepscope.diagnose.prepare.matching import match
from stepscope.window import NULL, Ints, Mask, Table, Window

LATE = 0.9
"""Data that was on its way when the link broke still arrives. Nine in ten transfers of this kind
take no longer than this quantile. Statistics."""


def cut_off(
    window: Window, stalled: OpenOperator, still_open: Iterable[OpenOperator] = ()
) -> str | None:
    """The only host in all transfers that stall to or from which no data moves.

    Args:
        stalled: an operator that all members entered.
        still_open: all operators that did not end; those that lack a member are not looked at.
    """
    between = [{window.host_of(rank) for rank in one.entered}
               for one in (stalled, *still_open) if not one.absent or one is stalled]  # fmt: skip
    if len(between[0]) < 2 or any(None in hosts for hosts in between):
        return None
    common = set.intersection(*(hosts for hosts in between if len(hosts) > 1))
    moved = _Moved.of(window)
    working = moved.hosts_after(stalled.since_ns + moved.usual_ns(stalled.entered))
    silent = [host for host in common if host is not None and host not in working]
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

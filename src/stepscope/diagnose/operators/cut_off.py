"""Which host is cut off, in a job that is stuck because data does not move.

`cut_off` finds the host in every transfer that stalls, and that has moved no data since. Operators
that all members entered, and whose data does not move, pass two or more hosts each. The host whose
link is gone is in all of them. Of several such hosts, those are not to blame whose other data
arrived or left after the first stalled operator was called: their links work.
Cost: one match of the table, then vectorised.
Cannot see: links of hosts that had nothing else to move.

`unreached_host` finds it by the hosts whose segments stay unacknowledged. TCP sends again, at
growing intervals, what was not acknowledged. Where all ranks wait in one operator and its data does
not move, nothing else is sent, so hosts that still retransmit are those that talk to the host that
is cut off: its neighbours in the ring, or all others in an all-to-all. It retransmits to all of
them itself, or nothing if its adapter is down or it had nothing to send. If two hosts have these
neighbours, or there are only two, it is the one whose adapter receives what the others send, and
which sends no answer.
Paper: none; seen in real jobs over cut links in our lab.
Cost: the samples of hosts after the hang began. Cannot see: NCCL over RDMA, links within a host,
and which of two hosts it is if a switch drops the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.open_ops import OpenOperator, is_finished
from stepscope.diagnose.prepare.matching import match
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window

LATE = 0.9
"""Data that was on its way when the link broke still arrives. Nine in ten transfers of this kind
take no longer than this quantile. Statistics."""
RETRANSMITTED, RECEIVED, SENT = "tcp_retrans_per_s", "nic_rx_bytes_per_s", "nic_tx_bytes_per_s"
SETTLED_NS = 500_000_000
"""What was lost in ordinary traffic is sent again within a few round trips, hence well before
this. Measured in our lab."""
TIMES = 2
"""A host that retransmits twice has a peer that does not answer; once may be a late loss. Measured
in our lab."""
SEVERAL = 1.5
"""A host that reaches nobody has two neighbours at least, and sends twice as much again as one that
misses one peer. Half of the difference suffices. Measured in our lab: three times, for three."""
CLEARLY = 2.0
"""The host that receives what others send again receives at least twice what the other one does,
and twice what it sends. Measured in our lab: four times, beside neighbour discovery."""


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


def unreached_host(window: Window, stuck: OpenOperator, since_ns: int) -> str | None:
    """The host whose neighbours, and only these, retransmit again and again; None if unclear."""
    neighbours = _neighbours(window, stuck)
    if len(neighbours) < 2:
        return None
    repeated = {}
    for host in neighbours:
        samples = _after(window, RETRANSMITTED, host, since_ns)
        if samples is None:
            return None
        repeated[host] = samples.total if samples.positive >= TIMES else 0
    possible = [host for host, near in neighbours.items() if _explains(host, near, repeated)]
    if len(possible) > 1:
        possible = [one for one in possible if _to_nobody_or_to_each(one, repeated)] or possible
    if len(neighbours) == 2 and any(repeated.values()):
        possible = list(neighbours)
    if len(possible) > 1:
        possible = _receiving(window, possible, since_ns)
    return possible[0] if len(possible) == 1 else None


def _explains(host: str, near: set[str], repeated: Mapping[str, int]) -> bool:
    """Whether a network cut at this host explains who retransmits: all its neighbours, and nobody
    else but itself."""
    return near == {one for one, count in repeated.items() if count > 0 and one != host}


def _to_nobody_or_to_each(host: str, repeated: Mapping[str, int]) -> bool:
    """Of several hosts with these neighbours: whether it retransmits to all of them, or not at
    all."""
    most = max(count for one, count in repeated.items() if one != host)
    return repeated[host] == 0 or repeated[host] >= SEVERAL * most


def _neighbours(window: Window, stuck: OpenOperator) -> Mapping[str, set[str]]:
    """The other hosts that each host of an operator exchanges data with."""
    ranks = sorted(stuck.entered)
    group = window.job.group(stuck.group)
    if group is not None:
        ranks = list(group.ranks)
    hosts = [host for rank in ranks if (host := window.host_of(rank)) is not None]
    if len(hosts) < len(ranks):
        return {}
    found: dict[str, set[str]] = {host: set() for host in hosts}
    everyone = stuck.op == "AllToAll"
    for at, host in enumerate(hosts):
        near = hosts if everyone else (hosts[at - 1], hosts[(at + 1) % len(hosts)])
        found[host] |= {one for one in near if one != host}
    return found


@dataclass(frozen=True)
class _Samples:
    """One host's samples of a rate that cover only time after the hang began."""

    positive: int
    """How many are above zero."""
    total: int
    """Of segments or bytes."""


def _after(window: Window, metric: str, host: str, since_ns: int) -> _Samples | None:
    hardware = window.table("hardware")
    if hardware is None:
        return None
    own = hardware.take(hardware.strings("metric").equals(metric)
                        & hardware.strings("host").equals(host))  # fmt: skip
    times, rates = _in_order(own)
    if times.size < 2:
        return None
    late = times[:-1] >= since_ns + SETTLED_NS
    rates, seconds = rates[1:][late], np.diff(times)[late] / 1e9
    return _Samples(int((rates > 0).sum()), round(float((rates * seconds).sum())))


def _in_order(own: Table) -> tuple[Ints, Floats]:
    order = np.argsort(own.ints("ts_ns"), kind="stable")
    return own.ints("ts_ns")[order], own.floats("value")[order]


def _receiving(window: Window, hosts: list[str], since_ns: int) -> list[str]:
    """The host whose adapter receives clearly more than the others' and answers nothing, if there
    is one."""
    moved = {}
    for host in hosts:
        got, sent = (_after(window, one, host, since_ns) for one in (RECEIVED, SENT))
        if got is None or sent is None:
            return []
        moved[host] = got.total, sent.total
    most, next_most = sorted(hosts, key=lambda host: -moved[host][0])[:2]
    clearly = moved[most][0] > CLEARLY * max(moved[next_most][0], moved[most][1])
    return [most] if clearly else []

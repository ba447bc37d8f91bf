"""Rerouted ranks: their NIC is down, and they send through the NIC of another rank.

Paper: EROICA (2025), case 2, problem 2, "NIC down": no counter showed it, because the monitoring
agent was too old; less data moved between one GPU and its NIC. Table `transfers` shows it by the
NIC on which requests were posted: a rank sends through the NIC of another rank, and no rank on its
host sends through its own NIC any more. A rank's own NIC is the one that it used before, else the
one that ranks at the same position on most other hosts use. Evidence only: without slow transfers
it is not reported.
Cost: one sort of `transfers`. Cannot see: bonded NICs under one name, and a NIC that was down from
the first step on in a job of two hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from stepscope.diagnose.thresholds import HALF
from stepscope.trace import Host
from stepscope.window import Ints, Window

ROWS = 20
"""Number of first and of last rows of a rank in which its most used NIC is determined, so that a
single request does not decide. Our simulator."""

Nics = Mapping[int, str]
"""NICs by rank, named as in `transfers`."""


def abandoned_nics(window: Window) -> Nics:
    """The full names of NICs that are not used any more, by the ranks that they belong to."""
    before, lately = _used(window)
    usual = _usual(window, lately)
    found: dict[int, str] = {}
    for host in window.job.hosts:
        for rank, name in _abandoned_on(host, before, lately, usual).items():
            found[rank] = f"{host.name}/{name}"
    return found


def _abandoned_on(host: Host, before: Nics, lately: Nics, usual: Mapping[int, str]) -> Nics:
    ranks = [rank for rank in host.ranks if rank in lately]
    in_use = Counter(lately[rank] for rank in ranks)
    found: dict[int, str] = {}
    for rank in ranks:
        now, place = lately[rank], host.ranks.index(rank)
        own = before[rank] if before[rank] != now else usual.get(place, now)
        if own not in in_use and in_use[now] > 1:
            found[rank] = own
    return found


def _usual(window: Window, lately: Nics) -> Mapping[int, str]:
    """The NIC that ranks at each position on their host use, if most hosts agree."""
    votes: dict[int, Counter[str]] = {}
    for host in window.job.hosts:
        for place, rank in enumerate(host.ranks):
            if rank in lately:
                votes.setdefault(place, Counter())[lately[rank]] += 1
    first = {place: count.most_common(1)[0] for place, count in votes.items()}
    return {place: name for place, (name, count) in first.items()
            if count > HALF * votes[place].total()}  # fmt: skip


def _used(window: Window) -> tuple[Nics, Nics]:
    """The NIC that each rank used most in its first rows, and in its last rows."""
    table = window.table("transfers")
    if table is None or not table.has("nic"):
        return {}, {}
    names = table.strings("nic")
    rank, code = table.ints("rank"), names.codes.astype(np.int64)
    known = np.flatnonzero((rank >= 0) & (code >= 0))
    order = known[np.lexsort((table.ints("start_ns")[known], rank[known]))]
    ranks, first = np.unique(rank[order], return_index=True)
    rows = np.split(code[order], first[1:]) if order.size else []
    by_rank = list(zip(ranks.tolist(), rows, strict=True))
    return ({rank: names.values[_most(used[:ROWS])] for rank, used in by_rank},
            {rank: names.values[_most(used[-ROWS:])] for rank, used in by_rank})  # fmt: skip


def _most(codes: Ints) -> int:
    return int(np.bincount(codes).argmax())

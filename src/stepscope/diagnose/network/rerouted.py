"""Ranks whose traffic left their adapter: it is down, and they send by another one's.

Paper: EROICA (2025), case 2, problem 2, "NIC down": no counter told of it, for the monitoring agent
was too old; less data moved between one GPU and its adapter. Where work requests were counted
(table `transfers`), the adapter by which they were posted tells it: a rank sends by one that is
another rank's, and nobody on its host sends by its own any more.
Its own is what it sent by before, else what ranks at its place on most other hosts send by.
Evidence only: without slow transfers it says nothing.
Cost: one sort of `transfers`. Cannot see: adapters that one name stands for (bonds), and what was
so from the first step on in a job of two hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from stepscope.trace import Host
from stepscope.window import Ints, Window

ROWS = 20
"""A rank's first and last rows: which adapter it uses most there is no matter of one request."""
MOST_HOSTS = 0.5
"""More of the hosts than this must do the same: that is the way this job is wired."""

Adapters = Mapping[int, str]
"""By rank, named as `transfers` does."""


def adapters_left(window: Window) -> Adapters:
    """The adapters that nobody uses any more, by the ranks that used them or should: full names."""
    before, lately = _used(window)
    usual = _usual(window, lately)
    found: dict[int, str] = {}
    for host in window.job.hosts:
        for rank, name in _left_on(host, before, lately, usual).items():
            found[rank] = f"{host.name}/{name}"
    return found


def _left_on(host: Host, before: Adapters, lately: Adapters, usual: Mapping[int, str]) -> Adapters:
    here = [rank for rank in host.ranks if rank in lately]
    in_use = Counter(lately[rank] for rank in here)
    found: dict[int, str] = {}
    for rank in here:
        now, place = lately[rank], host.ranks.index(rank)
        own = before[rank] if before[rank] != now else usual.get(place, now)
        if own not in in_use and in_use[now] > 1:
            found[rank] = own
    return found


def _usual(window: Window, lately: Adapters) -> Mapping[int, str]:
    """What ranks at each place on their host send by, where most hosts agree."""
    votes: dict[int, Counter[str]] = {}
    for host in window.job.hosts:
        for place, rank in enumerate(host.ranks):
            if rank in lately:
                votes.setdefault(place, Counter())[lately[rank]] += 1
    first = {place: count.most_common(1)[0] for place, count in votes.items()}
    return {place: name for place, (name, seen) in first.items()
            if seen > MOST_HOSTS * votes[place].total()}  # fmt: skip


def _used(window: Window) -> tuple[Adapters, Adapters]:
    """The adapter that each rank used most in its first rows, and in its last ones."""
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
    return ({one: names.values[_most(mine[:ROWS])] for one, mine in by_rank},
            {one: names.values[_most(mine[-ROWS:])] for one, mine in by_rank})  # fmt: skip


def _most(codes: Ints) -> int:
    return int(np.bincount(codes).argmax())

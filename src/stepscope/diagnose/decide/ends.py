"""Links that two methods found: by the network's own data which device, by patterns which ranks.

A slow NVLink of a host is found by what its ring moves, which does not show whose it is. Patterns
of the same steps do: that rank sends through PCIe. One fault keeps one finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stepscope.diagnose.decide import rules
from stepscope.diagnose.finding import Finding, SlowLink
from stepscope.diagnose.network.devices import host_in
from stepscope.window import Window


class Merged(NamedTuple):
    """All findings, and the ones that added nothing new."""

    blamed: list[Finding]
    found: list[Finding]
    let_go: list[Finding]


def with_ends(window: Window, blamed: Sequence[Finding], found: Sequence[Finding]) -> Merged:
    """Known links, completed with the ranks that patterns name, and the remaining new findings."""
    merged = Merged(list(blamed), [], [])
    for one in found:
        named = isinstance(one, SlowLink) and one.ranks and one.devices
        new = _unknown(window, merged.blamed, one) if named else one
        if new is None:
            merged.let_go.append(rules.same_cause(one))
        else:
            merged.found.append(new)
    return merged


def _unknown(window: Window, blamed: list[Finding], link: Finding) -> Finding | None:
    """The link without ranks whose device is known; these are added to the known finding."""
    left = list(link.ranks)
    for at, known in enumerate(blamed):
        shared = {one.name for one in known.devices} & {one.name for one in link.devices}
        if not isinstance(known, SlowLink) or not shared:
            continue
        hosts = {*map(host_in, shared)}
        ranks = tuple(rank for rank in link.ranks if window.host_of(rank) in hosts)
        blamed[at] = replace(known, ranks=ranks)
        left = [rank for rank in left if rank not in ranks]
    if not left:
        return None
    hosts = {window.host_of(rank) or "" for rank in left}
    devices = tuple(one for one in link.devices if host_in(one.name) in hosts)
    return replace(link, ranks=tuple(left), devices=devices)

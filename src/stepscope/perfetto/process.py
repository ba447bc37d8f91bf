"""A rank or a host as a process in Perfetto: its identity and all its tracks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from stepscope.perfetto.packets import GroupWriter
from stepscope.perfetto.slices import Group
from stepscope.perfetto.tracks import COUNTERS, counters, rank_tracks, stack_tracks
from stepscope.window import Table

OF_NO_RANK, _FIRST_RANK = 1, 2
_FIRST_HOST, _MOST_HOSTS = 3 << 30, 1 << 30
"""Packet sequence ids, which must differ in joined files: ranks are int32."""


def rank_group(rank: int, largest: int, host: str | None, labels: tuple[str, ...] = ()) -> Group:
    """The process of a rank, with the rank as pid; names are zero-padded to the largest rank."""
    name = f"rank {rank:0{len(str(largest))}}" + (f" · {host}" if host else "")
    return Group(f"rank {rank}", name, _FIRST_RANK + rank, rank, rank, labels)


def host_group(host: str) -> Group:
    """The group of a host's counters, with the same sequence id in every file."""
    digest = blake2b(host.encode("utf-8", "replace"), digest_size=8).digest()
    return Group(f"host {host}", host, _FIRST_HOST + int.from_bytes(digest, "big") % _MOST_HOSTS)


def rank_packets(
    writer: GroupWriter, tables: Mapping[str, Table], until_ns: int
) -> Iterator[bytes]:
    """All packets of one rank; operators without an end are drawn up to `until_ns`."""
    for track in rank_tracks(tables, until_ns):
        yield from writer.track(track)
    for track in stack_tracks(tables):
        yield from writer.nested(track)
    yield from writer.counters(COUNTERS, counters(tables.get("hardware")))


def host_packets(writer: GroupWriter, tables: Mapping[str, Table]) -> Iterator[bytes]:
    """The packets of one host's counters."""
    yield from writer.counters(COUNTERS, counters(tables.get("hardware")))

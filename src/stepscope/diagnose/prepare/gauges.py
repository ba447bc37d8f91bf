"""Whose each sample of `hardware` is: what a host's GPUs show belongs to the ranks that use them.

A processor samples GPUs by number (`sm_clock_mhz.gpu3`) and says which of them a rank's process
computes on (`gpu_index`), where it can see that; in a container it may not. Then the ranks of a
host are taken to use its GPUs in their order, as launchers hand them out, but only if there are as
many of both.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from stepscope.trace import Host
from stepscope.window import Ints, Mask, Strings, Table, Window

OF_GPU = re.compile(r"(\w+)\.gpu(\d+)")
INDEX = "gpu_index"
NONE = -1


def by_rank(window: Window) -> Window:
    """The window with the samples of GPUs under their ranks and their metrics' plain names."""
    table = window.table("hardware")
    if table is None or not table.has("host"):
        return window
    metrics, rank = table.strings("metric"), table.ints("rank")
    gpu = _numbers(metrics)
    if not (gpu >= 0).any():
        return window
    rank = np.where((gpu >= 0) & (rank < 0), _users(window, table, gpu), rank)
    named = table.with_column("metric", _plain(metrics, (gpu >= 0) & (rank >= 0)))
    return replace(window, tables={**window.tables, "hardware": named.with_column("rank", rank)})


def indices(window: Window) -> dict[int, int]:
    """The number of the GPU that each rank was last seen to compute on."""
    table = window.table("hardware")
    if table is None:
        return {}
    rows = table.take(table.strings("metric").equals(INDEX) & (table.ints("rank") >= 0))
    order = np.argsort(rows.ints("ts_ns"), kind="stable")
    seen = zip(rows.ints("rank")[order].tolist(), rows.floats("value")[order], strict=True)
    return {rank: int(value) for rank, value in seen}


def _numbers(metrics: Strings) -> Ints:
    """Of which GPU of its host each row is; -1: of none."""
    found = [OF_GPU.fullmatch(name) for name in metrics.values]
    each = np.array([*(NONE if one is None else int(one[2]) for one in found), NONE], np.int64)
    return each[metrics.codes]


def _users(window: Window, table: Table, gpu: Ints) -> Ints:
    """The rank that uses each row's GPU; -1: nobody knows, or nobody."""
    hosts, known = table.strings("host"), {host.name: host for host in window.job.hosts}
    seen, count = indices(window), int(gpu.max()) + 1
    users = np.full((len(hosts.values) + 1, count + 1), NONE)  # each with a last one for unknown
    for code, name in enumerate(hosts.values):
        for at, rank in _on(known.get(name), seen, count).items():
            users[code, at] = rank
    return users[hosts.codes, gpu]


def _on(host: Host | None, seen: dict[int, int], count: int) -> dict[int, int]:
    """GPU to rank, of one host: as seen, else in order if there are as many of both."""
    if host is None:
        return {}
    found = {seen[rank]: rank for rank in host.ranks if seen.get(rank, count) < count}
    in_order = len(host.ranks) == (len(host.gpus) or count)
    return found or (dict(enumerate(host.ranks[:count])) if in_order else {})


def _plain(metrics: Strings, rows: Mask) -> Strings:
    """The names of metrics, in the given rows without the number of the GPU."""
    values, codes = list(metrics.values), metrics.codes.copy()
    for code, name in enumerate(metrics.values):
        found = OF_GPU.fullmatch(name)
        if found is not None:
            if found[1] not in values:
                values.append(found[1])
            codes[rows & (metrics.codes == code)] = values.index(found[1])
    return Strings(codes, tuple(values))

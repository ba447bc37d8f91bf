"""Assigns the GPU samples in table `hardware` to the ranks that use these GPUs.

A processor samples GPUs by number (`sm_clock_mhz.gpu3`) and records on which of them a rank's
process computes (`gpu_index`). In a container it may not be able to see that. Then the ranks of a
host are assumed to use its GPUs in order, as launchers assign them, but only if there are as many
ranks as GPUs, or as GPUs that were sampled.
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
    """The window with GPU samples assigned to ranks, under the metrics' plain names."""
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
    """The number of the GPU that each rank used last."""
    table = window.table("hardware")
    if table is None:
        return {}
    rows = table.take(table.strings("metric").equals(INDEX) & (table.ints("rank") >= 0))
    order = np.argsort(rows.ints("ts_ns"), kind="stable")
    samples = zip(rows.ints("rank")[order].tolist(), rows.floats("value")[order], strict=True)
    return {rank: int(value) for rank, value in samples}


def _numbers(metrics: Strings) -> Ints:
    """The GPU number of each row; -1 for metrics that are not of a GPU."""
    found = [OF_GPU.fullmatch(name) for name in metrics.values]
    each = np.array([*(NONE if one is None else int(one[2]) for one in found), NONE], np.int64)
    return each[metrics.codes]


def _users(window: Window, table: Table, gpu: Ints) -> Ints:
    """The rank that uses each row's GPU; -1 if unknown or unused."""
    hosts, known = table.strings("host"), {host.name: host for host in window.job.hosts}
    index, count = indices(window), int(gpu.max()) + 1
    users = np.full((len(hosts.values) + 1, count + 1), NONE)  # the last of each is for unknown
    for code, name in enumerate(hosts.values):
        sampled = np.unique(gpu[(hosts.codes == code) & (gpu >= 0)]).tolist()
        for at, rank in _on(known.get(name), index, count, sampled).items():
            users[code, at] = rank
    return users[hosts.codes, gpu]


def _on(
    host: Host | None, index: dict[int, int], count: int, sampled: list[int]
) -> dict[int, int]:  # fmt: skip
    """The rank of each GPU of a host: as recorded, else in order if there are as many of both."""
    if host is None:
        return {}
    found = {index[rank]: rank for rank in host.ranks if index.get(rank, count) < count}
    if found or len(host.ranks) == len(sampled):
        return found or dict(zip(sampled, host.ranks, strict=True))
    in_order = len(host.ranks) == (len(host.gpus) or count)
    return dict(enumerate(host.ranks[:count])) if in_order else {}


def _plain(metrics: Strings, rows: Mask) -> Strings:
    """The names of metrics; in the given rows without the GPU number."""
    values, codes = list(metrics.values), metrics.codes.copy()
    for code, name in enumerate(metrics.values):
        found = OF_GPU.fullmatch(name)
        if found is not None:
            if found[1] not in values:
                values.append(found[1])
            codes[rows & (metrics.codes == code)] = values.index(found[1])
    return Strings(codes, tuple(values))

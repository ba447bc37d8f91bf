"""The hosts that the ranks of traces ran on: as traces say, as files are named, or by devices.

PyTorch writes no host into a trace. Its `tensorboard_trace_handler` names files by host and
process, `HOST_PID.TIME.pt.trace.json`. A trace lists the devices that its process sees, and says
which of them it uses: if rank 9 uses number 1 of 8, and so on for all ranks, eight ranks share a
host, as launchers place them. Where none of this holds for all ranks, no host is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stepscope.formats.kineto.rank_trace import RankTrace
from stepscope.trace import Host
from stepscope.trace.host import UNNAMED

_BY_HANDLER = r"(?:.*/)?([^/]+)_(\d+)\.\d{12,19}\.pt\.trace\.json(?:\.gz)?"
LEAST_PID = 2
"""Files that are enumerated begin with 0 or 1; no process that trains has these numbers. Linux."""


def hosts_of(traces: Sequence[RankTrace], world: int) -> tuple[Host, ...]:
    """The hosts of all ranks, or none.

    Args:
        world: the number of ranks of the job.
    """
    ways = (_said(traces), _named(traces), _counted(traces, world))
    found = next((one for one in ways if one), {})
    by_host: dict[str, set[int]] = {}
    for rank, host in found.items():
        by_host.setdefault(host, set()).add(rank)
    return tuple(Host(name, tuple(sorted(ranks))) for name, ranks in by_host.items())


def _said(traces: Sequence[RankTrace]) -> Mapping[int, str]:
    known = {trace.rank or 0: trace.host for trace in traces if trace.host}
    return known if all(trace.host for trace in traces) else {}


def _named(traces: Sequence[RankTrace]) -> Mapping[int, str]:
    """By the names of PyTorch's handler; none if the numbers in them enumerate ranks, or if two
    ranks of a host used the same device."""
    found, pids, used = dict[int, str](), dict[int, int](), dict[tuple[str, int], int]()
    for trace in traces:
        match, rank = re.fullmatch(_BY_HANDLER, trace.name), trace.rank or 0
        if match is None or int(match[2]) < LEAST_PID:
            return {}
        found[rank], pids[rank] = match[1], int(match[2])
        if trace.device >= 0 and used.setdefault((match[1], trace.device), rank) != rank:
            return {}
    return {} if any(rank == pid for rank, pid in pids.items()) else found


def _counted(traces: Sequence[RankTrace], world: int) -> Mapping[int, str]:
    """By devices, if there are several hosts."""
    each = {trace.devices for trace in traces}
    count = min(each, default=0)
    if len(each) != 1 or not 1 < count < world:
        return {}
    if any(trace.device != (trace.rank or 0) % count for trace in traces):
        return {}
    first = {rank: rank - rank % count for trace in traces for rank in [trace.rank or 0]}
    return {rank: f"{UNNAMED}{at}-{min(at + count, world) - 1}" for rank, at in first.items()}

"""Merges the job descriptions of all hosts into one.

Every host writes its own fragment, so that none overwrites another's. The union does not depend on
the order of fragments, and merging a fragment twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

from stepscope.trace import Fabric, Host, Job, ProcessGroup, Switch

T = TypeVar("T")


def merge_jobs(fragments: Sequence[Job]) -> Job:
    """The union of the fragments; of contradicting numbers the larger one."""
    assert fragments, "a job needs at least one fragment"
    return Job(
        job_id=min(job.job_id for job in fragments),
        world_size=max(job.world_size for job in fragments),
        hosts=_hosts(chain.from_iterable(job.hosts for job in fragments)),
        parallelism=_parallelism(fragments),
        groups=_groups(chain.from_iterable(job.groups for job in fragments)),
        schedule=_first(job.schedule for job in fragments),
        fabric=_fabric(fragments),
        recorded_ranks=_recorded(fragments),
        observed_until_ns=_latest(job.observed_until_ns for job in fragments),
    )


def _hosts(hosts: Iterable[Host]) -> tuple[Host, ...]:
    by_name: dict[str, Host] = {}
    for host in sorted(hosts, key=lambda host: (host.name, host.ranks, host.nics, host.gpus)):
        merged = by_name.get(host.name, Host(host.name, ()))
        ranks = tuple(sorted({*merged.ranks, *host.ranks}))
        nics, gpus = _joined([merged.nics, host.nics]), _joined([merged.gpus, host.gpus])
        uuids = _joined([merged.gpu_uuids, host.gpu_uuids])
        by_name[host.name] = Host(host.name, ranks, nics, gpus, uuids)
    return tuple(sorted(by_name.values(), key=lambda host: (host.ranks[:1] or (0,), host.name)))


def _parallelism(fragments: Sequence[Job]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for job in fragments:
        for kind, size in job.parallelism.items():
            sizes[kind] = max(size, sizes.get(kind, size))
    return dict(sorted(sizes.items()))


def _groups(groups: Iterable[ProcessGroup]) -> tuple[ProcessGroup, ...]:
    by_id: dict[str, list[ProcessGroup]] = {}
    for group in groups:
        by_id.setdefault(group.id, []).append(group)
    return tuple(_group(by_id[id]) for id in sorted(by_id))


def _group(same: list[ProcessGroup]) -> ProcessGroup:
    """Merges members, the longest list first, to keep the stage order of a pipeline."""
    ordered = sorted(same, key=lambda group: (-len(group.ranks), group.ranks))
    kind = min(group.kind for group in same)
    return ProcessGroup(same[0].id, kind, _joined([group.ranks for group in ordered]))


def _fabric(fragments: Sequence[Job]) -> Fabric | None:
    fabrics = [job.fabric for job in fragments if job.fabric is not None]
    if not fabrics:
        return None
    by_name: dict[str, Switch] = {}
    switches = chain.from_iterable(fabric.switches for fabric in fabrics)
    for switch in sorted(switches, key=lambda one: (one.name, one.tier, one.children)):
        merged = by_name.get(switch.name, Switch(switch.name, switch.tier, ()))
        children = tuple(sorted({*merged.children, *switch.children}))
        by_name[switch.name] = Switch(switch.name, max(merged.tier, switch.tier), children)
    return Fabric(tuple(sorted(by_name.values(), key=lambda s: (s.tier, s.name))))


def _recorded(fragments: Sequence[Job]) -> tuple[int, ...] | None:
    """The union of recorded ranks; a host that lists none records all its ranks."""
    if all(job.recorded_ranks is None for job in fragments):
        return None
    ranks: set[int] = set()
    for job in fragments:
        own = chain.from_iterable(host.ranks for host in job.hosts)
        ranks.update(own if job.recorded_ranks is None else job.recorded_ranks)
    return tuple(sorted(ranks))


def _latest(moments: Iterable[int | None]) -> int | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _first(values: Iterable[T | None]) -> T | None:
    """One of the values, the same for every order."""
    return min((value for value in values if value is not None), key=repr, default=None)


def _joined(parts: Sequence[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(parts)))

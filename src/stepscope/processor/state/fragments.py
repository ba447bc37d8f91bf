"""What one host knows of a job: its part of `job.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.processor.state.producer import Producer
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.wire.frames import GroupInfo


def fragment_of(job: str, members: Sequence[Producer]) -> Job:
    """The job as far as these producers, at least one, have reported it."""
    hosts: dict[str, set[int]] = {}
    groups: dict[str, GroupInfo] = {}
    parallelism: dict[str, int] = {}
    for producer in members:
        hosts.setdefault(producer.identity.host, set()).add(producer.rank)
        groups.update(producer.groups if producer.python is None else {})
        parallelism.update(producer.parallelism)
    return Job(
        job_id=job,
        world_size=max(producer.identity.world_size for producer in members),
        hosts=tuple(Host(name, tuple(sorted(ranks))) for name, ranks in hosts.items()),
        parallelism=parallelism,
        groups=tuple(ProcessGroup(g.id, g.kind, g.ranks) for g in groups.values()),
    )


def with_devices(fragment: Job, here: Host) -> Job:
    """Adds this host's devices, which only the daemon can look up. A rank that reports another
    host name (in a container, or simulated) does not get them."""
    hosts = tuple(
        replace(host, nics=here.nics, gpus=here.gpus, gpu_uuids=here.gpu_uuids)
        if host.name == here.name
        else host
        for host in fragment.hosts
    )
    return replace(fragment, hosts=hosts)

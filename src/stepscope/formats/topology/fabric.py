"""Builds a job's fabric from a file's switches: tiers, and adapters of the job's own hosts only.

A file describes a cluster, a job uses a part of it: switches without any host of the job are left
out. A node stands for all adapters of its host, `node/adapter` for a single one, and a host without
known adapters for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from stepscope.formats.topology.hostlist import expand
from stepscope.trace import Fabric, Host, Job, Switch

SHOWN = 3
"""Names in one message."""


@dataclass(frozen=True)
class Line:
    """One switch of a file, its nodes and switches still as host lists."""

    where: str
    switch: str
    nodes: str
    switches: str


@dataclass(frozen=True)
class Node:
    """One switch with what is connected below it, and its tier: 0 if nodes are."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    tier: int = 0


@dataclass(frozen=True)
class Tree:
    """The switches of a cluster by name."""

    switches: Mapping[str, Node]

    @classmethod
    def of(cls, lines: list[Line]) -> Tree:
        """Checks that every switch exists once and that there is no circle.

        Raises:
            ValueError: one of these does not hold; the message says where.
        """
        switches: dict[str, Node] = {}
        where: dict[str, str] = {}
        for line in lines:
            if line.switch in switches:
                raise ValueError(
                    f"{line.where}: switch {line.switch!r} is already in {where[line.switch]}"
                )
            where[line.switch] = line.where
            switches[line.switch] = Node(
                line.switch, _expanded(line.nodes, line), _expanded(line.switches, line)
            )
        for one in switches.values():
            for child in one.switches:
                if child not in switches:
                    raise ValueError(f"{where[one.name]}: switch {one.name!r} is connected to "
                                     f"{child!r}, which is not in the file")  # fmt: skip
        return cls({name: replace(one, tier=tier)
                    for name, tier in _tiers(switches, where).items()
                    for one in [switches[name]]})  # fmt: skip


def _expanded(text: str, line: Line) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        raise ValueError(f"{line.where}: {error}") from None


def _tiers(switches: Mapping[str, Node], where: Mapping[str, str]) -> dict[str, int]:
    """One more than the highest tier below; leaves have 0."""
    tiers: dict[str, int] = {}
    left = dict(switches)
    while left:
        ready = [one for one in left.values() if all(child in tiers for child in one.switches)]
        if not ready:
            name = min(left)
            raise ValueError(f"{where[name]}: switch {name!r} is connected to itself, by way of "
                             f"{', '.join(left[name].switches[:SHOWN])}")  # fmt: skip
        for one in ready:
            tiers[one.name] = max((tiers[child] + 1 for child in one.switches), default=0)
            del left[one.name]
    return tiers


def in_job(tree: Tree, job: Job) -> tuple[Job, tuple[str, ...]]:
    """The job with this fabric, and a line about hosts that are not in the file.

    Raises:
        ValueError: none of the job's hosts is in the file.
    """
    hosts = _by_node(tree, job.hosts)
    if not job.hosts:
        return job, ("the job's hosts are unknown, so no switch is used",)
    if not hosts:
        there = [node for one in tree.switches.values() for node in one.nodes]
        raise ValueError(f"none of the job's hosts ({_some([one.name for one in job.hosts])}) is "
                         f"among its nodes ({_some(there)})")  # fmt: skip
    fabric = Fabric(tuple(_used(tree, hosts)))
    found = {host.name for host in hosts.values()}
    lost = [host.name for host in job.hosts if host.name not in found]
    problems = (f"{_some(lost)}: not connected to any switch of the file",) if lost else ()
    return replace(job, fabric=fabric), problems


def _by_node(tree: Tree, hosts: tuple[Host, ...]) -> dict[str, Host]:
    """The job's hosts by the names in the file; `node7` and `node7.cluster` are the same."""
    known: dict[str, Host] = {_short(host.name): host for host in reversed(hosts)}
    known |= {host.name: host for host in hosts}
    found = {}
    for one in tree.switches.values():
        for node in one.nodes:
            name = node.partition("/")[0]
            host = known.get(name) or known.get(_short(name))
            if host is not None:
                found[node] = host
    return found


def _short(name: str) -> str:
    return name.partition(".")[0]


def _used(tree: Tree, hosts: Mapping[str, Host]) -> Iterator[Switch]:
    """The switches with hosts of the job below them, leaves first."""
    used: set[str] = set()
    for one in sorted(tree.switches.values(), key=lambda one: one.tier):
        adapters = [name for node in one.nodes if node in hosts
                    for name in _adapters(node, hosts[node])]  # fmt: skip
        children = (*dict.fromkeys(adapters), *(name for name in one.switches if name in used))
        if children:
            used.add(one.name)
            yield Switch(one.name, one.tier, children)


def _adapters(node: str, host: Host) -> list[str]:
    """The full names of the adapters that a node of the file stands for."""
    _, named, adapter = node.partition("/")
    if named:
        return [f"{host.name}/{adapter}"]
    return [f"{host.name}/{nic}" for nic in host.nics] or [host.name]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "unknown"

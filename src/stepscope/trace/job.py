"""What is known of a job as a whole: hosts, ranks, groups, schedule, fabric (`job.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NewType

Rank = NewType("Rank", int)
"""A global rank, never a local one."""


@dataclass(frozen=True)
class Host:
    """One machine, the ranks on it, and its devices by their local names."""

    name: str
    ranks: tuple[int, ...]
    nics: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    """What their maker calls the GPUs, in the same order; empty: unknown."""


@dataclass(frozen=True)
class ProcessGroup:
    """Ranks that communicate with one another; a `pp` group lists them in stage order."""

    id: str
    kind: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """The pipeline schedule."""

    name: str
    microbatches: int = 1
    virtual_stages: int = 1


@dataclass(frozen=True)
class Switch:
    """One switch; `children` are `host/nic` names or switches of the tier below."""

    name: str
    tier: int
    children: tuple[str, ...]


@dataclass(frozen=True)
class Fabric:
    """The network between the hosts."""

    switches: tuple[Switch, ...] = ()


@dataclass(frozen=True)
class Job:
    """One training job. Empty or None means unknown, never "none"."""

    job_id: str
    world_size: int
    hosts: tuple[Host, ...] = ()
    parallelism: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[ProcessGroup, ...] = ()
    schedule: Schedule | None = None
    fabric: Fabric | None = None
    recorded_ranks: tuple[int, ...] | None = None
    observed_until_ns: int | None = None

    def group(self, id: str) -> ProcessGroup | None:
        return self._group_by_id.get(id)

    def groups_of_kind(self, *kinds: str) -> tuple[ProcessGroup, ...]:
        if kinds not in self._of_kinds:
            self._of_kinds[kinds] = tuple(one for one in self.groups if one.kind in kinds)
        return self._of_kinds[kinds]

    def host_of(self, rank: int) -> str | None:
        return self._host_by_rank.get(rank)

    @cached_property
    def _of_kinds(self) -> dict[tuple[str, ...], tuple[ProcessGroup, ...]]:
        return {}

    @cached_property
    def _group_by_id(self) -> Mapping[str, ProcessGroup]:
        return {group.id: group for group in reversed(self.groups)}

    @cached_property
    def _host_by_rank(self) -> Mapping[int, str]:
        """Host names by rank; the first host that lists a rank wins."""
        return {rank: host.name for host in reversed(self.hosts) for rank in host.ranks}

    @cached_property
    def stage_by_rank(self) -> Mapping[int, int]:
        """The pipeline stage of each rank that has one."""
        pipelines = self.groups_of_kind("pp")
        return {rank: at for group in pipelines for at, rank in enumerate(group.ranks)}

    def to_json(self) -> dict[str, Any]:
        """The object that `job.json` holds; unknown keys are left out."""
        out: dict[str, Any] = {"schema": 1, "job_id": self.job_id, "world_size": self.world_size}
        out["hosts"] = [_drop_empty(vars(host)) for host in self.hosts]
        if self.parallelism:
            out["parallelism"] = dict(self.parallelism)
        if self.groups:
            out["groups"] = [_drop_empty(vars(group)) for group in self.groups]
        if self.schedule is not None:
            out["schedule"] = vars(self.schedule)
        if self.fabric is not None:
            out["fabric"] = {"switches": [_lists(vars(s)) for s in self.fabric.switches]}
        if self.recorded_ranks is not None:
            out["recorded_ranks"] = list(self.recorded_ranks)
        if self.observed_until_ns is not None:
            out["observed_until_ns"] = self.observed_until_ns
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Reads an object from `to_json` or from another program.

        Raises:
            KeyError, TypeError, ValueError: a required key is missing or of the wrong kind.
        """
        schedule, fabric = data.get("schedule"), data.get("fabric")
        recorded = data.get("recorded_ranks")
        until = data.get("observed_until_ns")
        return cls(
            job_id=str(data["job_id"]),
            world_size=int(data["world_size"]),
            hosts=tuple(_host(host) for host in data.get("hosts") or ()),
            parallelism={str(k): int(v) for k, v in (data.get("parallelism") or {}).items()},
            groups=tuple(_group(group) for group in data.get("groups") or ()),
            schedule=None if schedule is None else _schedule(schedule),
            fabric=None if fabric is None else _fabric(fabric),
            recorded_ranks=None if recorded is None else _ranks(recorded),
            observed_until_ns=None if until is None else int(until),
        )


def _ranks(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _host(data: Mapping[str, Any]) -> Host:
    nics, gpus = data.get("nics") or (), data.get("gpus") or ()
    uuids = tuple(str(one) for one in data.get("gpu_uuids") or ())
    return Host(str(data["name"]), _ranks(data["ranks"]), tuple(nics), tuple(gpus), uuids)


def _group(data: Mapping[str, Any]) -> ProcessGroup:
    return ProcessGroup(str(data["id"]), str(data["kind"]), _ranks(data["ranks"]))


def _schedule(data: Mapping[str, Any]) -> Schedule:
    return Schedule(
        str(data["name"]), int(data.get("microbatches", 1)), int(data.get("virtual_stages", 1))
    )


def _fabric(data: Mapping[str, Any]) -> Fabric:
    return Fabric(
        tuple(
            Switch(str(s["name"]), int(s["tier"]), tuple(map(str, s["children"])))
            for s in data.get("switches") or ()
        )
    )


def _lists(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}


def _drop_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in _lists(data).items() if v != [] or k == "ranks"}

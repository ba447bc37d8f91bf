"""What the verdicts of a job say against devices.

A verdict on the user's code, on unequal work or on garbage collection says nothing about a device,
and neither does one on all ranks. Devices that a method weighs against each other share the blame:
their probabilities add up to 1 at most. Where a verdict names ranks only, its cause says which of
their devices are meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepscope.devices.constants import UNKNOWN_CAUSE, blamed_log_odds, host_share
from stepscope.devices.used import Used, by_name
from stepscope.diagnose.finding import Cause, Device, Diagnosis, Verdict
from stepscope.diagnose.network.devices import Devices
from stepscope.window import Window

OF_A_DEVICE: frozenset[Cause] = frozenset(
    {"compute", "memory_copy", "network", "host", "contention", "unknown"}
)
"""Causes that may lie in a device. The others are the job's own: its code, its data, its
interpreter."""
OF_THE_JOB = ("out of memory", "failed", "left")
"""Ends of a process that are the job's own: it used too much memory, or it raised an exception."""
ROUNDED = 0.01
"""By how much probabilities that add up to 1 exceed it, as each is rounded."""
ON_HOST = ("gpu", "cpu", "pcie", "nvlink", "nic")


@dataclass(frozen=True)
class Candidate:
    """A device that may be at fault, and its share of the blame; all shares add up to 1."""

    device: Used
    share: float


@dataclass(frozen=True)
class Blame:
    """One verdict against one device, or against one of several."""

    cause: str
    kind: str
    summary: str
    certainty: float
    """How sure it is that one of the candidates is at fault, 0 to 1."""
    log_odds: float
    """The evidence, as the logarithm of a likelihood ratio: 0 says nothing."""
    candidates: tuple[Candidate, ...]


def blames(window: Window, diagnosis: Diagnosis, used: tuple[Used, ...]) -> tuple[Blame, ...]:
    """What all verdicts but suspects say; a device may be in several of them."""
    names = by_name(used)
    found = [_Accused(verdict, tuple(_Named(names.get(one.name, Used(one.type, one.name)),
                                            one.probability) for one in group))
             for verdict in diagnosis.accused if _is_of_a_device(verdict)
             for group in _alternatives(_devices(window, verdict))
             if not _is_everybody(window, group)]  # fmt: skip
    beside = _devices_of_hosts(found)
    return tuple(_blame(one, beside) for one in found)


@dataclass(frozen=True)
class _Named:
    device: Used
    probability: float


@dataclass(frozen=True)
class _Accused:
    """A verdict, and the devices of which it accuses one."""

    verdict: Verdict
    named: tuple[_Named, ...]

    @property
    def of_host(self) -> tuple[str, str] | None:
        """Host and cause, if the verdict is sure of one device in a host."""
        device = self.named[0].device
        alone = len(self.named) == 1 and device.type in ON_HOST and device.host is not None
        return (device.host or "", self.verdict.cause) if alone else None


def _devices_of_hosts(found: Sequence[_Accused]) -> Mapping[tuple[str, str] | None, int]:
    """How many devices of each host the job blames for each cause."""
    pairs = {(one.of_host, one.named[0].device.key) for one in found}
    return Counter(place for place, _ in pairs)


def _is_of_a_device(verdict: Verdict) -> bool:
    own = verdict.kind == "slowdown" and verdict.function is not None
    return (
        verdict.kind != "mismatch" and verdict.cause in OF_A_DEVICE
        and verdict.ended not in OF_THE_JOB and not own
    )  # fmt: skip


def _is_everybody(window: Window, group: Sequence[Device]) -> bool:
    """Whether all of several hosts are listed: what slows all of them down is none of them."""
    hosts = {window.host_of(rank) for rank in window.ranks}
    named = {one.name for one in group if one.type == "host"}
    return len(hosts) > 1 and named >= hosts


def _devices(window: Window, verdict: Verdict) -> Sequence[Device]:
    """The devices that a verdict names, or those of its ranks that its cause points at."""
    sure = verdict.confidence
    if verdict.devices:
        return [Device(d.type, d.name, min(d.probability, sure)) for d in verdict.devices]
    if verdict.cause == "unknown":
        return _hosts(verdict, min(sure, UNKNOWN_CAUSE))
    known = Devices(window)
    if verdict.cause == "compute":
        gpus = dict.fromkeys(gpu for rank in verdict.ranks if (gpu := known.gpu(rank)))
        return [Device("gpu", gpu, sure) for gpu in gpus] or _hosts(verdict, sure)
    if verdict.cause == "network":
        nics = dict.fromkeys(nic for rank in verdict.ranks if (nic := known.nic(rank)))
        return [Device("nic", nic, sure / len(nics)) for nic in nics] or _hosts(verdict, sure)
    return _hosts(verdict, sure)


def _hosts(verdict: Verdict, sure: float) -> Sequence[Device]:
    """The hosts of its ranks, one of which is at fault."""
    return [Device("host", host, sure / len(verdict.hosts)) for host in verdict.hosts]


def _alternatives(devices: Sequence[Device]) -> Iterator[Sequence[Device]]:
    """Devices of which one is at fault; where each of several is, each by itself."""
    likely = [one for one in devices if one.probability > 0]
    if sum(one.probability for one in likely) > 1 + ROUNDED:
        yield from ([one] for one in likely)
    elif likely:
        yield likely


def _blame(one: _Accused, beside: Mapping[tuple[str, str] | None, int]) -> Blame:
    verdict, whole = one.verdict, sum(named.probability for named in one.named)
    certainty = round(min(whole, verdict.confidence), 3)
    candidates = [Candidate(named.device, named.probability / whole) for named in one.named]
    return Blame(
        verdict.cause, verdict.kind, verdict.summary, certainty,
        blamed_log_odds(certainty, len(candidates)),
        tuple(candidates) if one.of_host is None else _with_host(one, beside[one.of_host]),
    )  # fmt: skip


def _with_host(one: _Accused, devices: int) -> tuple[Candidate, ...]:
    """A device of a host may be slow because its host is bad, and most likely so if others are."""
    device, share = one.named[0].device, host_share(devices)
    return Candidate(device, 1 - share), Candidate(Used("host", device.host or ""), share)

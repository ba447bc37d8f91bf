"""Faults: who, when, how large, and what a diagnosis should say about each.

Those of the script itself become a file of conditions that the script reads (lab/jobs/conditions);
those of a host or a link are begun and ended from outside, when rank 0 has written its step.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

from lab.shapes import Job, Option

Condition = dict[str, Any]


class Machine(Protocol):
    """What a fault can do to a running job from outside (lab.record)."""

    def set_rate(self, host: int, mbit: float) -> None: ...
    def lose_packets(self, host: int, share: float) -> None: ...
    def set_quota(self, host: int, processors: float) -> None: ...
    def start_others(self, host: int, processes: int) -> None: ...
    def restore(self, host: int) -> None: ...
    def send_signal(self, rank: int, number: int) -> None: ...


@dataclass(frozen=True)
class Expected:
    """What a right diagnosis names. An empty set of ranks stands for everybody."""

    ranks: tuple[tuple[int, ...], ...]
    causes: tuple[str, ...]
    kind: str = "slowdown"


@dataclass(frozen=True)
class When:
    """From step `first` (0: always) up to and with step `last` (none: to the end)."""

    first: int = 0
    last: int | None = None

    def includes(self, step: int) -> bool:
        return self.first <= step and (self.last is None or step <= self.last)


@dataclass(frozen=True)
class Fault(ABC):
    """The part that all share."""

    when: When

    @property
    def hangs(self) -> bool:
        return False

    @property
    def steady(self) -> bool:
        """Whether it costs about the same in every step."""
        return True

    def conditions(self) -> list[Condition]:
        return []

    def options(self) -> dict[str, Option]:
        """Of the script, where they are what is wrong."""
        return {}

    def begin(self, machine: Machine) -> None:  # noqa: B027 (most faults are in the script)
        """Nothing to do from outside."""

    def end(self, machine: Machine) -> None:  # noqa: B027
        """Nothing to undo from outside."""

    @abstractmethod
    def expected(self, job: Job) -> Expected:
        """Whom a diagnosis has to name, and for what."""

    def _condition(self, what: str, **values: Any) -> list[Condition]:
        span: Condition = {"first": self.when.first}
        if self.when.last is not None:
            span["last"] = self.when.last
        return [{"what": what, **span, **values}]


# --- one rank's device ---------------------------------------------------------------------------

COMPUTE = ("compute", "host")
"""A rank that takes longer in its passes. Without a GPU nothing shows whether its device or its
host does: both are accepted, as in tests/real."""


@dataclass(frozen=True)
class SlowDevice(Fault):
    """Everything on one rank's device takes longer: it is throttled."""

    rank: int
    factor: float

    def conditions(self) -> list[Condition]:
        return self._condition("device", ranks=[self.rank], factor=self.factor)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), COMPUTE)


@dataclass(frozen=True)
class SlowLayer(Fault):
    """One layer of one rank takes longer, in both passes or in one (`forward`, `backward`)."""

    rank: int
    layer: int
    factor: float
    passes: str = "layer"

    def conditions(self) -> list[Condition]:
        return self._condition(self.passes, ranks=[self.rank], layer=self.layer, factor=self.factor)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), COMPUTE)


@dataclass(frozen=True)
class SlowOptimizer(Fault):
    """One rank's optimizer takes longer."""

    rank: int
    factor: float

    def conditions(self) -> list[Condition]:
        return self._condition("optimizer", ranks=[self.rank], factor=self.factor)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), COMPUTE)


@dataclass(frozen=True)
class Jitter(Fault):
    """Three tenths of one rank's kernels take longer, each by a different factor."""

    rank: int
    mean: float

    def conditions(self) -> list[Condition]:
        return self._condition("jitter", ranks=[self.rank], seconds=self.mean)

    @property
    def steady(self) -> bool:
        return False

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), COMPUTE)


@dataclass(frozen=True)
class Stalls(Fault):
    """Every so many steps one rank stands still."""

    rank: int
    seconds: float
    every: int

    def conditions(self) -> list[Condition]:
        return self._condition("stall", ranks=[self.rank], seconds=self.seconds, every=self.every)

    @property
    def steady(self) -> bool:
        return False

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("host", "code", "compute", "unknown"))


# --- one rank's host process ---------------------------------------------------------------------


@dataclass(frozen=True)
class SlowLoader(Fault):
    """Reading a batch takes longer on some ranks; none named: on all."""

    ranks: tuple[int, ...]
    seconds: float

    def conditions(self) -> list[Condition]:
        who = {"ranks": list(self.ranks)} if self.ranks else {}
        return self._condition("loader", seconds=self.seconds, **who)

    def expected(self, job: Job) -> Expected:
        return Expected((self.ranks,), ("data_loading",))


@dataclass(frozen=True)
class Garbage(Fault):
    """One rank collects garbage in every step, among many objects."""

    rank: int
    seconds: float

    def conditions(self) -> list[Condition]:
        return self._condition("gc", ranks=[self.rank], seconds=self.seconds)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("gc",))


@dataclass(frozen=True)
class HostWork(Fault):
    """One rank does more in Python before its forward pass."""

    rank: int
    seconds: float

    def conditions(self) -> list[Condition]:
        return self._condition("host-work", ranks=[self.rank], seconds=self.seconds)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("host", "code"))


# --- everybody's code ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SlowFunction(Fault):
    """A function of the input pipeline got slow, on all ranks."""

    seconds: float

    def conditions(self) -> list[Condition]:
        return self._condition("function", seconds=self.seconds)

    def expected(self, job: Job) -> Expected:
        return Expected(((),), ("code",))


@dataclass(frozen=True)
class BlockingSync(Fault):
    """Every step waits for the device in order to log a number, on all ranks."""

    seconds: float

    def conditions(self) -> list[Condition]:
        return self._condition("sync", seconds=self.seconds)

    def expected(self, job: Job) -> Expected:
        return Expected(((),), ("code",))


# --- unequal work --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LongSequences(Fault):
    """One rank gets the long sequences."""

    rank: int
    factor: float

    def conditions(self) -> list[Condition]:
        return self._condition("long-sequences", ranks=[self.rank], factor=self.factor)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("load_imbalance", *COMPUTE))


@dataclass(frozen=True)
class UnevenLengths(Fault):
    """Every rank gets long sequences at some time: a different one is slow in each step."""

    spread: float

    def conditions(self) -> list[Condition]:
        return self._condition("uneven-lengths", seconds=self.spread)

    @property
    def steady(self) -> bool:
        return False

    def expected(self, job: Job) -> Expected:
        return Expected(((),), ("load_imbalance",))


@dataclass(frozen=True)
class PopularExpert(Fault):
    """One expert draws more tokens than the others. Every rank has one expert."""

    rank: int
    factor: float

    def conditions(self) -> list[Condition]:
        return self._condition("popular-expert", layer=self.rank, factor=self.factor)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("load_imbalance",))


@dataclass(frozen=True)
class HeavyStage(Fault):
    """One pipeline stage has more layers than the others, from the start."""

    stage: int
    layers: int

    def options(self) -> dict[str, Option]:
        return {"heavy-stage": self.stage, "heavy-layers": self.layers}

    def expected(self, job: Job) -> Expected:
        return Expected((tuple(job.ranks_of_stage(self.stage)),), ("load_imbalance", "code"))


# --- hosts and links, from outside ---------------------------------------------------------------


@dataclass(frozen=True)
class OnHost(Fault):
    """Something that all ranks of one host suffer from."""

    host: int

    def end(self, machine: Machine) -> None:
        machine.restore(self.host)

    def _its_ranks(self, job: Job) -> tuple[tuple[int, ...], ...]:
        return (tuple(job.ranks_on(self.host)),)

    def _behind_its_link(self, job: Job) -> tuple[tuple[int, ...], ...]:
        return behind_link(self.host, job)


def behind_link(host: int, job: Job) -> tuple[tuple[int, ...], ...]:
    """Between two hosts alone, nothing says which of the two has the bad link."""
    if job.hosts > 2:
        return (tuple(job.ranks_on(host)),)
    return (tuple(job.ranks_on(0)), tuple(job.ranks_on(1)), tuple(range(job.world)))


@dataclass(frozen=True)
class SlowLink(OnHost):
    """A host's link carries less."""

    mbit: float

    def begin(self, machine: Machine) -> None:
        machine.set_rate(self.host, self.mbit)

    def expected(self, job: Job) -> Expected:
        return Expected(self._behind_its_link(job), ("network",))


@dataclass(frozen=True)
class LostPackets(OnHost):
    """A host's link loses packets."""

    share: float

    def begin(self, machine: Machine) -> None:
        machine.lose_packets(self.host, self.share)

    @property
    def steady(self) -> bool:
        return False

    def expected(self, job: Job) -> Expected:
        return Expected(self._behind_its_link(job), ("network",))


@dataclass(frozen=True)
class Quota(OnHost):
    """A host's processes together may use only a part of one processor."""

    processors: float

    def begin(self, machine: Machine) -> None:
        machine.set_quota(self.host, self.processors)

    @property
    def steady(self) -> bool:
        return False

    def expected(self, job: Job) -> Expected:
        return Expected(self._its_ranks(job), ("host", "contention"))


@dataclass(frozen=True)
class OtherProcesses(OnHost):
    """Other processes compute on a host."""

    processes: int

    def begin(self, machine: Machine) -> None:
        machine.start_others(self.host, self.processes)

    @property
    def steady(self) -> bool:
        return False

    def expected(self, job: Job) -> Expected:
        return Expected(self._its_ranks(job), ("contention", "host"))


# --- hangs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hang(Fault):
    """A job that stands still until it is ended."""

    @property
    def hangs(self) -> bool:
        return True


@dataclass(frozen=True)
class Stopped(Hang):
    """One rank's process is stopped."""

    rank: int

    def begin(self, machine: Machine) -> None:
        machine.send_signal(self.rank, signal.SIGSTOP)

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("host", "unknown"), "hang")


@dataclass(frozen=True)
class StuckLoader(Hang):
    """One rank waits for a batch that never comes."""

    rank: int

    def conditions(self) -> list[Condition]:
        return self._condition("stuck-loader", ranks=[self.rank])

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("data_loading", "host", "unknown"), "hang")


@dataclass(frozen=True)
class LinkGone(Hang):
    """A host's link carries nothing."""

    host: int

    def begin(self, machine: Machine) -> None:
        machine.lose_packets(self.host, 1.0)

    def expected(self, job: Job) -> Expected:
        return Expected(behind_link(self.host, job), ("network", "unknown"), "hang")


@dataclass(frozen=True)
class WrongOrder(Hang):
    """One rank averages the loss before its backward pass, all others after the step."""

    rank: int

    def conditions(self) -> list[Condition]:
        return self._condition("wrong-order", ranks=[self.rank])

    def options(self) -> dict[str, Option]:
        return {"reduce-loss": 1}

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("code", "unknown"), "hang")


@dataclass(frozen=True)
class UnpostedReceive(Hang):
    """One stage leaves out a receive: what was sent to it is never taken."""

    rank: int

    def conditions(self) -> list[Condition]:
        return self._condition("skip-receive", ranks=[self.rank])

    def expected(self, job: Job) -> Expected:
        return Expected(((self.rank,),), ("code", "unknown"), "hang")

"""Windows in which all ranks of a job profile the same steps: ordered when the job degrades.

Each job has a `Pace` (is it slower than it was?) and `Orders` (what do all processors agree on?).
What is decided goes out as instructions: write an order, ask these ranks, note who did not profile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import numpy as np

from stepscope.processor.instructions import (
    Instruction,
    LookClosely,
    NotProfiled,
    ProfileRanks,
    RankProfiled,
    WriteOrder,
)
from stepscope.processor.records.normalise import Rows
from stepscope.processor.state import orders, profiling
from stepscope.processor.state.orders import MOST_RANKS, Orders, Timing
from stepscope.processor.state.own_time import OwnTime
from stepscope.processor.state.pace import Pace
from stepscope.processor.state.steps import Step
from stepscope.window import NULL, Ints
from stepscope.wire.profiling import ProfileOrder, Why

if TYPE_CHECKING:
    from stepscope.processor.state.host_state import HostState
    from stepscope.processor.state.producer import Producer

REPLY_SECONDS = 180.0
"""After the end of a window for a rank to write its trace; EROICA, section 6.4: about 20 s. Nine
times that, our choice."""
WRITING_SECONDS = 30.0
"""For an order to appear in its folder; then another may be written. Our choice."""
NEAR_SECONDS = 20.0
"""Before its first step a window is near; samplers need seconds to begin on a busy host. Our
choice."""
LATE_SECONDS = 600.0
"""Orders that are older were seen by a processor that began later, and are no news. Our choice."""
TOO_LATE = "the order reached this host after its first step"
NO_REPLY = "the rank did not reply"
GONE = "the rank's process ended"
HELD_UP = "a quota stops the rank for much of the time, and writing a trace would take more of it"
"""In our lab a trace that takes half a second to write took 18 s on a host whose quota was 0.4
processors, and all ranks waited for it."""


class Places(Protocol):
    """Where the jobs are, which only the daemon knows."""

    def timing(self, job: str, world_size: int) -> Timing: ...

    def folder(self, job: str) -> Path | None:
        """Where ranks write their traces; None: the job is not recorded."""
        ...

    def held_up(self) -> frozenset[int]:
        """Processes that a quota of processor time stops for much of the time."""
        ...


@dataclass
class _Asked:
    """A window whose ranks were asked, or should have been."""

    order: ProfileOrder
    until_s: float
    ranks: set[int]
    trouble: str
    looked_until_s: float = 0.0
    """Until then its ranks are sampled closely."""


@dataclass
class _Job:
    pace: Pace = field(default_factory=Pace)
    orders: Orders = field(default_factory=Orders)
    own_times: dict[int, OwnTime] = field(default_factory=dict)
    """Of each rank here, in jobs of which a window profiles a sample."""
    wanted: Why | None = None
    wanted_s: float = 0.0
    written_s: float = -WRITING_SECONDS
    newest: dict[int, int] = field(default_factory=dict)
    """The newest event of each rank."""
    heard_s: float = 0.0
    """When that changed."""
    blocked_step: int = -2
    """The step after which a blockage was noticed: each is one reason, however long it lasts."""
    asked: dict[str, _Asked] = field(default_factory=dict)


class Windows:
    """The windows of all jobs on this host."""

    def __init__(
        self, host: str, places: Places, clock: Callable[[], float], *, automatic: bool
    ) -> None:
        """`automatic`: whether windows are also ordered when a job degrades, not only by hand."""
        self._host, self._places, self._clock = host, places, clock
        self._automatic = automatic
        self._jobs: dict[str, _Job] = {}

    def stepped(self, producer: Producer, steps: list[Step]) -> None:
        """A rank has finished steps."""
        job = self._job(producer.hello.job)
        if job.pace.add(producer.rank, producer.offset_ns, steps) is not None:
            self._want(job, "degradation")
        if (own := self._own_time(producer)) is not None:
            own.stepped(steps, producer.offset_ns)

    def communicated(self, producer: Producer, rows: Rows) -> None:
        """A rank's operators have ended: rows of `comm_ops`."""
        own = self._own_time(producer)
        if own is not None:
            own.communicated(_times(rows["start_ns"]), _times(rows["end_ns"]))

    def left(self, producer: Producer) -> None:
        """A rank has disconnected."""
        if producer.hello.job in self._jobs and not producer.is_native:
            self._jobs[producer.hello.job].pace.leave(producer.rank)
            self._jobs[producer.hello.job].own_times.pop(producer.rank, None)

    def listed(self, job: str, new: Iterable[ProfileOrder], listed_s: float) -> None:
        """Takes what is new in a job's folder of orders, and when that was listed."""
        self._job(job).orders.see(new, listed_s)

    def profiled(self, it: RankProfiled) -> None:
        """A rank has replied."""
        asked = self._job(it.job).asked.get(it.reply.window)
        if asked is not None:
            asked.ranks.discard(it.rank)

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)

    def order_of(self, job: str, window: str) -> ProfileOrder | None:
        """What was asked of the ranks here."""
        asked = self._jobs[job].asked.get(window) if job in self._jobs else None
        return None if asked is None else asked.order

    def tick(self, state: HostState, now_ns: int) -> list[Instruction]:
        """What is to be done now."""
        out: list[Instruction] = []
        for name in state.jobs():
            job, ranks = self._job(name), _ranks(state, name)
            if ranks:
                self._notice_blockage(job, ranks)
                out += self._write(name, job, ranks, now_ns)
                out += self._obey(state, name, job, ranks, now_ns)
                out += self._look(name, job, ranks)
        for name, job in self._jobs.items():  # also those whose ranks have all ended
            out += self._overdue(name, job, _ranks(state, name))
        return out

    def _job(self, name: str) -> _Job:
        return self._jobs.setdefault(name, _Job())

    def _own_time(self, producer: Producer) -> OwnTime | None:
        """Of a rank; None where all ranks are profiled, and so nobody asks for suspects."""
        if producer.identity.world_size <= MOST_RANKS:
            return None
        return self._job(producer.hello.job).own_times.setdefault(producer.rank, OwnTime())

    def _want(self, job: _Job, why: Why) -> None:
        if self._automatic and job.wanted is None:
            job.wanted, job.wanted_s = why, self._clock()

    def _notice_blockage(self, job: _Job, ranks: Sequence[Producer]) -> None:
        """Silence is measured by our own clock, as those of ranks may be set."""
        newest = {one.rank: one.tracker.last_event_ns for one in ranks}
        if newest != job.newest:
            job.newest, job.heard_s = newest, self._clock()
        average_s = max(one.tracker.average_ns for one in ranks) / 1e9
        now = job.pace.now
        if now is None or now.step == job.blocked_step:
            return
        if self._clock() - job.heard_s > job.pace.patience_s(average_s):
            job.blocked_step = now.step
            self._want(job, "stall" if any(one.open_ops for one in ranks) else "blockage")

    def _write(
        self, name: str, job: _Job, ranks: Sequence[Producer], now_ns: int
    ) -> Iterator[Instruction]:
        """Orders a window if one is wanted and there is none; hosts other than that of rank 0
        leave it time to do so."""
        why, now = job.wanted, job.pace.now
        if why is None or now is None:
            return
        world_size = ranks[0].hello.world_size
        timing = self._places.timing(name, world_size)
        here = [one.rank for one in ranks]
        if not self._may_write(job, why, now.step, now_ns):
            job.wanted = None
            return
        if self._clock() - job.wanted_s < (0.0 if 0 in here else self._turn_s(timing)):
            return
        job.wanted = None
        job.written_s = self._clock()
        chosen = orders.ranks_to_profile(world_size, here, f"{name} {now.step}")
        where = now if why == "degradation" else None
        order = orders.order(why, where, timing, self._host, chosen, now_ns)
        # if most ranks here are, what became slower is this host, or what all ranks do
        some = len(_suspects(job, why, ranks)) <= len(ranks) / 2
        yield WriteOrder(name, replace(order, suspects=bool(chosen) and some))

    def _may_write(self, job: _Job, why: Why, step: int, now_ns: int) -> bool:
        recently = self._clock() - job.written_s < WRITING_SECONDS
        pending = recently or job.orders.is_pending(step, now_ns)
        return not pending and job.orders.may_write(why, now_ns)

    def _turn_s(self, timing: Timing) -> float:
        """Until then the host of rank 0 has written an order if it wants one, too. Thousands of
        others do not write theirs at once."""
        return timing.settle_s * (1 + crc32(self._host.encode()) / 2**32)

    def _obey(
        self, state: HostState, name: str, job: _Job, ranks: Sequence[Producer], now_ns: int
    ) -> Iterator[Instruction]:
        """Asks ranks for the windows that all processors have agreed on."""
        folder, now = self._places.folder(name), job.pace.now
        if folder is None or any(one.tracker.sequence is None for one in ranks):
            return
        step = -1 if now is None else now.step
        timing = self._places.timing(name, ranks[0].hello.world_size)
        decided = job.orders.decided(step, timing.settle_s, now_ns)
        for one in decided:
            order = one.order
            wanted = {p.rank for p in ranks if not order.ranks or p.rank in order.ranks}
            wanted |= _suspects(job, order.why, ranks) if order.suspects else set()
            if one.fate == "late":
                if now_ns - order.asked_ns < LATE_SECONDS * 1e9:
                    self._await(job, order, wanted, TOO_LATE)
                continue
            spared = self._spared(order, ranks) & wanted
            wanted -= spared
            yield from (NotProfiled(name, self._host, rank, order, HELD_UP)
                        for rank in sorted(spared))  # fmt: skip
            self._await(job, order, wanted, NO_REPLY)
            if order.first_step >= 0:
                job.pace.leave_out(order.first_step, order.last_step)
                for own in job.own_times.values():
                    own.restart()
            requests = profiling.requests_for(
                state, name, order.first_step, order.last_step, wanted, order.seconds,
                order.window, folder,
            ) if wanted else []  # fmt: skip
            yield ProfileRanks(tuple(requests))

    def _spared(self, order: ProfileOrder, ranks: Sequence[Producer]) -> set[int]:
        """Ranks that have no processor time for a window that nobody asked for by hand."""
        held_up = self._places.held_up() if order.why != "user" else ()
        return {one.rank for one in ranks if one.hello.pid in held_up}

    def _look(self, name: str, job: _Job, here: Sequence[Producer]) -> Iterator[Instruction]:
        """Samples ranks closely while their window is near or under way: not from the order on,
        which may come hours before the first step."""
        for asked in job.asked.values():
            now, waited = self._clock(), asked.trouble == NO_REPLY
            pace = job.pace.now
            begins_s = 0.0 if pace is None else _steps_before(job, asked.order) * pace.step_s
            if not waited or begins_s > NEAR_SECONDS or now < asked.looked_until_s - NEAR_SECONDS:
                continue
            pids = tuple(one.hello.pid for one in here if one.rank in asked.ranks)
            if pids:
                asked.looked_until_s = now + NEAR_SECONDS + max(asked.order.seconds, NEAR_SECONDS)
                yield LookClosely(name, pids, asked.looked_until_s - now)

    def _await(self, job: _Job, order: ProfileOrder, ranks: set[int], trouble: str) -> None:
        now = job.pace.now
        begins_s = 0.0 if now is None else _steps_before(job, order) * now.slow_step_s
        until_s = self._clock() + begins_s + order.seconds + REPLY_SECONDS
        job.asked[order.window] = _Asked(order, until_s, ranks, trouble)

    def _overdue(self, name: str, job: _Job, here: Collection[Producer]) -> Iterator[Instruction]:
        """Ranks that have not replied in time."""
        for asked in list(job.asked.values()):
            if self._clock() < asked.until_s:
                continue
            del job.asked[asked.order.window]
            live = {one.rank for one in here}
            for rank in sorted(asked.ranks):
                trouble = asked.trouble if rank in live or asked.trouble == TOO_LATE else GONE
                yield NotProfiled(name, self._host, rank, asked.order, trouble)


def _times(column: Sequence[int | None] | Ints) -> Ints:
    if isinstance(column, np.ndarray):
        return column
    return np.array([NULL if one is None else one for one in column], np.int64)


def _suspects(job: _Job, why: Why, ranks: Sequence[Producer]) -> set[int]:
    """Ranks here that others probably wait for: of a job that became slower those whose own time
    did, of one that stands still those that are not in communication."""
    if why == "degradation":
        return {rank for rank, own in job.own_times.items() if own.has_risen}
    return {one.rank for one in ranks if one.has_calls and not one.open_ops}


def _steps_before(job: _Job, order: ProfileOrder) -> int:
    """How many steps there are before a window; 0 if it has begun, or no step is known."""
    return 0 if job.pace.now is None else max(order.first_step - job.pace.now.step, 0)


def _ranks(state: HostState, job: str) -> list[Producer]:
    """The ranks of a job that are connected, by their Python producers."""
    return [one for one in state.producers.values() if one.hello.job == job and not one.is_native]

"""What the processor knows and decides, without sockets, clocks or disks.

Events go in (`packet`, `disconnected`, `tick`), instructions come out; `daemon` carries them out.
The same events always give the same instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from stepscope.errors import WireError
from stepscope.processor.instructions import (
    Append,
    Confirm,
    Exited,
    Follow,
    Instruction,
    JobKnown,
    Left,
    OpenOps,
    Parent,
    RankProfiled,
    Refuse,
    Relay,
    SampleCounters,
    Stalled,
    StoreNow,
    Unwatch,
    Watch,
)
from stepscope.processor.operators import communicators
from stepscope.processor.records import normalise, record_kinds
from stepscope.processor.records.normalise import Records, Rows
from stepscope.processor.records.record_kinds import Kinds
from stepscope.processor.state import joining, observed, open_ops, profiling
from stepscope.processor.state.claims import ClaimedError, Claims
from stepscope.processor.state.fragments import fragment_of
from stepscope.processor.state.kernels import KernelSums, NewRows
from stepscope.processor.state.natives import NCCL, is_native, process_of
from stepscope.processor.state.producer import Producer
from stepscope.processor.state.steps import Event, Step
from stepscope.processor.state.windows import Windows
from stepscope.wire.control import (
    decode_counters,
    decode_events,
    decode_exited,
    decode_finish,
    decode_flush,
    decode_follow,
    decode_leaving,
    decode_parent,
)
from stepscope.wire.frames import (
    GroupInfo,
    Hello,
    PacketKind,
    decode_hello,
    decode_names,
    unpack,
)
from stepscope.wire.profiling import ProfileOrder, decode_profiled
from stepscope.wire.records import RECORD_BYTES, EventKind, RecordKind

HOLD_NS = 5_000_000_000
"""Rows wait this long for the step sequence to be known; then optimizer steps are counted."""
KERNELS_NS = 3_000_000_000
"""Kernels are collected for this long, and wait for the step sequence as other rows do."""
MOST_KERNELS = 1 << 16
"""Waiting kernels of a rank, 4 MiB: eight times the rate of ARGUS (section 5.2) for 5 s."""


class HostState:
    """All producers of this host, by connection."""

    def __init__(
        self, is_live: Callable[[int], bool] = lambda _: True, windows: Windows | None = None
    ) -> None:
        """`is_live` tells whether the process at the other end of a connection still lives;
        without `windows` no steps are profiled."""
        self.claims = Claims(is_live)
        self.windows = windows
        self.producers: dict[int, Producer] = {}
        self._gone: list[Producer] = []
        self._leaving: list[Producer] = []
        """Disconnected, while other producers of their process are still connected."""
        self._sums: dict[str, KernelSums] = {}

    def jobs(self) -> set[str]:
        """Jobs that have a live producer."""
        return {producer.hello.job for producer in self.producers.values()}

    def connections(self, job: str) -> list[int]:
        """The connections of the live producers of a job."""
        return [at for at, producer in self.producers.items() if producer.hello.job == job]

    def packet(self, connection: int, data: bytes, now_ns: int) -> list[Instruction]:
        """Handles one packet; `now_ns` is wall-clock time."""
        try:
            header, payload = unpack(data)
            producer = self.producers.get(connection)
            if header.kind == PacketKind.HELLO:
                return self._hello(connection, decode_hello(payload))
            if header.kind == PacketKind.CONTROL:
                return [self._asked(connection, payload)]
            if producer is None:
                raise WireError(f"{header.kind.name} packet before a hello")
            if header.kind == PacketKind.NAMES:
                return self._names(producer, payload)
            return self._records(producer, record_kinds.kinds_in(data), payload, now_ns)
        except WireError as error:
            return [Refuse(connection, str(error))]

    def disconnected(self, connection: int) -> list[Instruction]:
        """Handles a producer's disconnection: its outstanding operators stay outstanding."""
        producer = self.producers.pop(connection, None)
        if producer is None:
            return []
        out = [*self._release(producer), *self._report_kernels(producer), *self._leave(producer)]
        if self.windows is not None:
            self.windows.left(producer)
        if producer.open_ops and not self._is_back(producer):
            self._gone.append(producer)
        hello = producer.hello
        if hello.job in self._sums and hello.job not in self.jobs():
            out += _appended(hello.job, self._sums[hello.job].finish())
        if producer.is_native:
            return out
        return [*out, Unwatch(hello.job, hello.rank, hello.pid)]

    def tick(self, now_ns: int) -> list[Instruction]:
        """Releases rows that waited long enough for a step sequence; notices blocked ranks."""
        out: list[Instruction] = []
        for producer in self.producers.values():
            changed = _blocked(producer, now_ns)
            out += changed
            if changed and producer.blocked:
                out.append(self._stalled(producer.hello.job))
            out += self._report_overdue(producer, now_ns)
        for producer in [*self.producers.values(), *self._leaving]:
            out += self._noted(producer, joining.joined_rows(producer, now_ns))
        for job, sums in self._sums.items():
            out += _appended(job, sums.tick(self._oldest_kernels_ns(job, now_ns)))
        if self.windows is not None:
            out += self.windows.tick(self, now_ns)
        return out

    def _leave(self, producer: Producer) -> list[Instruction]:
        """Releases waiting operators when the last producer of their process has left."""
        if producer.joiner is not None:
            self._leaving.append(producer)
        if self._of_process(producer.hello):
            return []
        process = process_of(producer.hello)
        last = [one for one in self._leaving if process_of(one.hello) == process]
        self._leaving = [one for one in self._leaving if process_of(one.hello) != process]
        return [append for one in last for append in joining.last_rows(one)]

    def _of_process(self, hello: Hello) -> list[Producer]:
        """The live producers of a process."""
        return [p for p in self.producers.values() if process_of(p.hello) == process_of(hello)]

    def _report_overdue(self, producer: Producer, now_ns: int) -> list[Instruction]:
        """Rows that have waited long enough."""
        out: list[Instruction] = []
        held, native = producer.held_since_ns, producer.is_native
        most_ns = KERNELS_NS if native else HOLD_NS
        if producer.holding and held is not None and now_ns - held > most_ns:
            out += self._release(producer)
        since = producer.kernels_since_ns
        may_tell = native or not producer.holding
        if may_tell and since is not None and now_ns - since >= KERNELS_NS:
            out += self._report_kernels(producer)
        return out

    def stalled(self, now_ns: int, stopped: Collection[str] = ()) -> list[Stalled]:
        """Jobs with operators outstanding for longer than half an average step and than is usual
        in that job; for jobs that have a stopped process, any outstanding operator counts."""
        jobs = {
            producer.hello.job
            for producer in self.producers.values()
            if (producer.open_ops and producer.hello.job in stopped) or producer.is_stuck(now_ns)
        }
        return [self._stalled(job) for job in sorted(jobs)]

    def shortest_step_ns(self) -> float:
        """The shortest average step of all ranks; 0 if one has no average yet."""
        counting = (one for one in self.producers.values() if not one.is_native)
        return min((one.tracker.average_ns for one in counting), default=0.0)

    def is_waiting(self, now_ns: int) -> bool:
        """Whether operators have been outstanding for half as long as in a stalled job."""
        return any(one.is_stuck(now_ns, 0.5) for one in self.producers.values())

    def _stalled(self, job: str) -> Stalled:
        outstanding: Counter[str] = Counter()
        for producer in self.producers.values():
            if producer.hello.job == job:
                outstanding[producer.hello.host] += len(producer.open_ops)
        return Stalled(job, outstanding)

    def orders_listed(self, job: str, new: Iterable[ProfileOrder], listed_s: float) -> None:
        """Takes orders to profile some steps that are new in the job's folder."""
        if self.windows is not None:
            self.windows.listed(job, new, listed_s)

    def order_of(self, it: RankProfiled) -> ProfileOrder | None:
        """The order that a rank has carried out."""
        return None if self.windows is None else self.windows.order_of(it.job, it.reply.window)

    def world_size(self, job: str) -> int:
        """The number of ranks of a job with live producers."""
        sizes = (p.identity.world_size for p in self.producers.values() if p.hello.job == job)
        return max(sizes, default=1)

    def forget(self, job: str) -> None:
        """Drops what finished producers of a job left."""
        self._gone = [producer for producer in self._gone if producer.hello.job != job]
        self._leaving = [producer for producer in self._leaving if producer.hello.job != job]
        self._sums.pop(job, None)
        self.claims.forget(job)
        if self.windows is not None:
            self.windows.forget(job)

    def _hello(self, connection: int, hello: Hello) -> list[Instruction]:
        try:
            self.claims.check(connection, hello, self.producers)
        except ClaimedError as error:
            refused = self.claims.refused(hello)
            row = [] if refused is None else [Append(hello.job, "hardware", refused)]
            return [*row, Refuse(connection, str(error))]
        out = self.disconnected(connection)  # the same connection changed hello before
        self.producers[connection] = Producer(hello)
        self._gone = [p for p in self._gone if _identity(p.hello) != _identity(hello)]
        self._link(self.producers[connection])
        out.append(self._job_known(hello.job, hello.store))
        # the rank resends what is outstanding, also what an earlier processor knew
        out.append(OpenOps(hello.job, self._open_rows(hello.job)))
        if hello.at_risk is not None:
            offset = hello.wall_ns - hello.mono_ns
            rank = self.producers[connection].rank
            out.append(Append(hello.job, "losses", observed.losses(rank, hello.at_risk, offset)))
            out.append(Confirm(connection, hello.job))
        if is_native(hello):
            return out
        return [*out, Watch(hello.job, hello.rank, hello.pid, hello.thread_id, hello.host)]

    def _link(self, new: Producer) -> None:
        """Links the producers of one process."""
        same_process = self._of_process(new.hello)
        python = next((p for p in reversed(same_process) if not p.is_native), None)
        for producer in same_process:
            if producer.is_native and python is not None:
                producer.python = python
        joining.attach_joiner(new, same_process)

    def _names(self, producer: Producer, payload: memoryview) -> list[Instruction]:
        new = decode_names(payload)
        producer.check_room(new)
        producer.names.update(new.names)
        if producer.is_native:
            return self._communicators(producer, new.names.values())
        producer.groups.update({group.id: group for group in new.groups})
        producer.parallelism.update(new.parallelism)
        if new.groups or new.parallelism:
            return [self._job_known(producer.hello.job, producer.hello.store)]
        return []

    def _communicators(self, producer: Producer, names: Iterable[str]) -> list[Instruction]:
        """Takes communicators of all ranks as groups, of processes without a Python producer."""
        hello, before = producer.hello, len(producer.groups)
        found = [one for name in names if (one := communicators.parse(name)) is not None]
        for one in found if producer.python is None else ():
            ranks = communicators.whole_job(one, hello.rank, hello.world_size)
            if ranks is not None:
                producer.groups[one.id] = GroupInfo(one.id, "world", ranks)
        is_new = len(producer.groups) > before
        return [self._job_known(hello.job, hello.store)] if is_new else []

    def _asked(self, connection: int, payload: memoryview) -> Instruction:
        """Decodes a message of `stepscope run`, a launcher or a rank into an instruction."""
        if (job := decode_flush(payload)) is not None:
            return StoreNow(connection, job, decode_finish(payload))
        if (job := decode_follow(payload)) is not None:
            return Follow(connection, job)
        if (job := decode_events(payload)) is not None:
            plugins = [
                at for at in self.connections(job) if self.producers[at].hello.source == NCCL
            ]
            return Relay(tuple(plugins), bytes(payload), connection)
        if (counters := decode_counters(payload)) is not None:
            return SampleCounters(connection, *counters)
        return self._about_processes(connection, payload)

    def _about_processes(self, connection: int, payload: memoryview) -> Instruction:
        """Decodes what a launcher or a rank says about processes."""
        if (parent := decode_parent(payload)) is not None:
            return Parent(connection, *parent)
        if (exited := decode_exited(payload)) is not None:
            return Exited(*exited)
        producer, leaving = self.producers.get(connection), decode_leaving(payload)
        if leaving is not None and producer is not None:
            return Left(producer.hello.job, producer.hello.pid, leaving.error,
                        leaving.frames)  # fmt: skip
        if producer is not None and (reply := decode_profiled(payload)) is not None:
            done = profiling.profiled(producer, reply)
            if self.windows is not None:
                self.windows.profiled(done)
            return done
        raise WireError("an unknown request")

    def _is_back(self, producer: Producer) -> bool:
        """Whether its rank has a newer connection, which reports what is outstanding."""
        return any(_identity(p.hello) == _identity(producer.hello) for p in self.producers.values())

    def _records(
        self, producer: Producer, kinds: Kinds, payload: memoryview, now_ns: int
    ) -> list[Instruction]:
        if producer.held_since_ns is None:
            producer.held_since_ns = now_ns
        if producer.is_native:
            return self._native(producer, kinds, payload, now_ns)
        if kinds == record_kinds.KERNELS:
            return self._keep(producer, payload, now_ns)
        out: list[Instruction] = []
        records = normalise.parse(payload)
        if kinds & record_kinds.KERNELS:
            kernels = records["kind"] == int(RecordKind.KERNEL)
            out = self._keep(producer, memoryview(records[kernels].tobytes()), now_ns)
            records = records[~kernels]
        return [*out, *self._observations(producer, kinds, records)]

    def _native(
        self, producer: Producer, kinds: Kinds, payload: memoryview, now_ns: int
    ) -> list[Instruction]:
        """Holds all records until the Python producer has reported the steps they belong to."""
        records = normalise.parse(payload)
        out: list[Instruction] = []
        if kinds & record_kinds.KERNELS:
            kernels = normalise.of_kind(records, RecordKind.KERNEL)
            out = self._keep(producer, memoryview(kernels.tobytes()), now_ns)
        counts = joining.counts_of(producer, records) if kinds & record_kinds.COUNTS else []
        joining.add_native(producer, records, counts)
        parts = joining.parts_told(counts)
        if parts is not None:
            out += self._report_kernels(producer)
            producer.parts = parts
        others = ~np.isin(records["kind"], (int(RecordKind.KERNEL), int(RecordKind.COMM)))
        if others.any():
            producer.held.append((kinds, records[others]))
        waiting = sum(len(records) for _, records in producer.held)
        return [*out, *self._release(producer)] if waiting >= MOST_KERNELS else out

    def _observations(
        self, producer: Producer, kinds: Kinds, records: Records
    ) -> Iterator[Instruction]:
        """Handles all records but kernels."""
        steps = self._track(producer, records) if kinds & record_kinds.EVENTS else []
        if kinds & record_kinds.COMMS:
            records = joining.take_calls(producer, records)
        if producer.holding:
            producer.held.append((kinds, records))
            if producer.tracker.sequence is not None:
                yield from self._release(producer)
        else:
            yield from self._noted(producer, observed.finished(producer, kinds, records))
        if steps:
            yield Append(producer.hello.job, "steps", observed.step_rows(producer, steps))
            if self.windows is not None:
                self.windows.stepped(producer, steps)
        # last: a finished operator must be in its table before it leaves the outstanding ones
        if kinds & record_kinds.COMMS:
            yield from self._open(producer, records)

    def _keep(self, producer: Producer, kernels: memoryview, now_ns: int) -> list[Instruction]:
        """Collects kernels: handling one packet costs about as much as handling all of them."""
        producer.kernels.append(kernels)
        producer.kernels_bytes += len(kernels)
        producer.kernels_until_ns = now_ns
        if producer.kernels_since_ns is None:
            producer.kernels_since_ns = now_ns
        full = producer.kernels_bytes >= MOST_KERNELS * RECORD_BYTES
        return self._report_kernels(producer) if full else []

    def _report_kernels(self, producer: Producer) -> list[Instruction]:
        """Every waiting kernel, counted and as a row; its step is null if not yet known."""
        if not producer.kernels:
            return []
        hello, to = producer.hello, producer.translation()
        to = replace(to, step_of=producer.known_step)
        records = normalise.parse(memoryview(b"".join(producer.kernels)))
        records = producer.with_ordinals(records)
        rows = normalise.kernels(records, to)
        oldest_ns = self._oldest_kernels_ns(hello.job, producer.kernels_until_ns)
        producer.kernels, producer.kernels_bytes, producer.kernels_since_ns = [], 0, None
        joining.add_kernels(producer, records)
        sums = self._sums.setdefault(hello.job, KernelSums())
        new_rows = sums.add(
            producer.rank, rows, producer.kernels_until_ns, oldest_ns, producer.parts
        )
        return [Append(hello.job, "kernels", rows), *_appended(hello.job, new_rows)]

    def _oldest_kernels_ns(self, job: str, now_ns: int) -> int:
        """Since when a job's kernels have been waiting: no later window may end yet."""
        waiting = [p.kernels_since_ns for p in self.producers.values() if p.hello.job == job]
        return min([now_ns, *(since for since in waiting if since is not None)])

    def _track(self, producer: Producer, records: Records) -> list[Step]:
        steps: list[Step] = []
        for record in normalise.of_kind(records, RecordKind.EVENT):
            name, start, end, *_ = (int(value) for value in record["field"])
            kind = EventKind(int(record["flags"]) & 1)
            event = Event(kind, name, start, end, int(record["ordinal"]))
            steps += producer.tracker.add(event)
            if kind == EventKind.OPTIMIZER:
                producer.step_ends.add(end, event.ordinal)
        return steps

    def _release(self, producer: Producer) -> Iterator[Instruction]:
        producer.holding = producer.is_native
        held, producer.held = producer.held, []
        if producer.is_native:
            producer.held_since_ns = None
            if held:
                together = np.concatenate([records for _, records in held])
                yield from observed.native(producer, producer.with_ordinals(together))
            return
        for kinds, records in held:
            yield from self._noted(producer, observed.finished(producer, kinds, records))

    def _noted(self, producer: Producer, rows: Iterable[Append]) -> Iterator[Append]:
        """Passes rows on, and has operators noted that have ended."""
        for one in rows:
            if one.table == "comm_ops" and self.windows is not None:
                self.windows.communicated(producer, one.rows)
            yield one

    def _open(self, producer: Producer, records: Records) -> list[Instruction]:
        """Updates the list of outstanding operators; returns it if it changed."""
        if not open_ops.update(producer, records):
            return []
        return [OpenOps(producer.hello.job, self._open_rows(producer.hello.job))]

    def _open_rows(self, job: str) -> Rows:
        return open_ops.rows(self._members(job))

    def _job_known(self, job: str, store: str) -> JobKnown:
        return JobKnown(job, store, fragment_of(job, self._members(job)))

    def _members(self, job: str) -> list[Producer]:
        """The producers of a job, also those that left operators outstanding."""
        return [p for p in [*self.producers.values(), *self._gone] if p.hello.job == job]


def _blocked(producer: Producer, now_ns: int) -> list[Instruction]:
    """EROICA's blocked rule, reported when it starts and stops to hold for a rank."""
    blocked = producer.tracker.blocked(now_ns - producer.offset_ns)
    if blocked == producer.blocked:
        return []
    producer.blocked = blocked
    hello = producer.hello
    row = {
        "rank": [producer.rank],
        "host": [hello.host],
        "metric": ["steps_blocked"],
        "ts_ns": [now_ns],
        "value": [float(blocked)],
    }
    changed: list[Instruction] = [Append(hello.job, "hardware", row)]
    return changed


def _appended(job: str, new_rows: NewRows) -> Iterator[Append]:
    return (Append(job, table, rows) for table, rows in new_rows)


def _identity(hello: Hello) -> tuple[str, int, str]:
    return hello.job, hello.rank, hello.source

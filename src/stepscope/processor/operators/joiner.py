"""Joins what three producers report about the operators of one process that uses NCCL.

These are the script's calls (Python's hooks), NCCL's operators (its plugin; joined by `calls`) and
kernels (CUPTI; joined by `launches`). Each operator becomes one row.

Pure: records go in and come out, with what was found, once all producers have had time to report.
Records without a counterpart come out as they are: calls without times, and operators of a process
without hooks as rows of their own. In a process with hooks, an operator without a call gets no row,
because one of the calls is its own; it is counted instead.

Nothing is lost. Beyond MOST_WAITING records, counterparts are no longer waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from stepscope.processor.operators.calls import Batch, Call, batches, joined
from stepscope.processor.operators.communicators import Members
from stepscope.processor.operators.launches import Kernel, Launches, Operator, function_of
from stepscope.processor.operators.places import Places
from stepscope.processor.records import normalise
from stepscope.processor.records.normalise import Records
from stepscope.wire.frames import GroupInfo
from stepscope.wire.records import RECORD_BYTES, UNKNOWN, unpack_peer

PLUGIN_DELAY_NS = 4_000_000_000
"""How late the plugin may report an operator: 2 s after its last event (`RIPE_NS`), plus 1 s
between packets, plus transport."""
KERNEL_DELAY_NS = 8_000_000_000
"""How late kernels may be reported by CUPTI: 2 s after their end, plus 3 s of collecting them here;
the rest is for a device that lags behind its host."""
LONGEST_NS = 60_000_000_000
"""The limit for a device that lags further behind but makes progress: two long steps."""
QUIET_NS = 5_000_000_000
"""A device that makes progress reports kernels at least this often, as in `KERNEL_DELAY_NS`."""
GROUPED_NS = 1_000_000_000
"""Torch calls NCCL before a call returns, or when the script ends its group of calls."""
MOST_WAITING = 1 << 16
"""Waiting records of each kind: a minute of a thousand operators a second."""


@dataclass(frozen=True)
class Times:
    """Times of a call from its counterparts; monotonic, UNKNOWN where they are not known."""

    start_ns: int
    end_ns: int
    flags: int
    """Flags of NCCL's operator."""


@dataclass(frozen=True)
class Joined:
    """Records that wait no longer, with what was found about each."""

    calls: Records
    of_calls: list[Times | None]
    operators: list[Operator]
    """NCCL's operators that become rows of their own."""


class Joiner:
    """Joins the operators of one process."""

    def __init__(self) -> None:
        self.launches = Launches()
        self.has_kernels = False
        self.lone_operators = 0
        """Number of operators without a call so far, in a process that has hooks."""
        self.reported_lone = (0, 0)
        self.last_taken_ns = 0
        self._calls: dict[str, list[Call]] = defaultdict(list)
        self._operators: dict[str, list[Operator]] = defaultdict(list)
        self.has_calls = False
        """Whether hooks have reported operators, perhaps before this object was created."""
        self.places = Places.unknown()
        self._last_kernels_ns: int | None = None

    def add_calls(self, records: Records, names: Mapping[int, str]) -> None:
        """Takes the hooks' records of finished operators on a device."""
        self.has_calls |= len(records) > 0
        packet = records.tobytes()
        for at, fields in enumerate(records["field"].tolist()):
            group, op_peer, _, size, enqueue_ns, *_ = fields
            op, peer = unpack_peer(op_peer)
            id, record = names.get(group, ""), packet[at * RECORD_BYTES : (at + 1) * RECORD_BYTES]
            self._calls[id].append(Call(record, id, names.get(op, ""), peer, size, enqueue_ns))

    def add_operators(self, records: Records, names: Mapping[int, str]) -> None:
        """Takes the plugin's records of NCCL's operators."""
        every = zip(records["field"].tolist(), records["flags"].tolist(), strict=True)
        for (comm, op_peer, seq, size, enqueue_ns, end_ns, start_ns), flags in every:
            op, peer = unpack_peer(op_peer)
            self.launches.operators.append(
                Operator(names.get(comm, ""), names.get(op, ""), peer, seq, size, enqueue_ns,
                         end_ns, start_ns, flags)
            )  # fmt: skip

    def add_kernels(self, records: Records, names: Mapping[int, str], now_ns: int) -> None:
        """Takes kernels of any name; only NCCL's are kept."""
        self._last_kernels_ns = now_ns
        self.launches.add_kernels(_kernels(records, names))

    @property
    def is_empty(self) -> bool:
        waiting = self.launches
        return not (self._calls or self._operators or waiting.operators or waiting.kernels)

    def take(self, members: Members, now_ns: int) -> Joined:
        """Returns what needs to wait no longer at this time of the process's clock."""
        patience = KERNEL_DELAY_NS if self.has_kernels else PLUGIN_DELAY_NS
        alone = members.groups is None and not self.has_kernels
        self._shed(now_ns)
        return self._take(members, now_ns, now_ns if alone else now_ns - patience)

    def finish(self, members: Members) -> Joined:
        """Returns everything left."""
        return self._take(members, _FOREVER, _FOREVER)

    def _take(self, members: Members, now_ns: int, until_ns: int) -> Joined:
        if self._is_full():
            until_ns = now_ns
        is_quiet = self._last_kernels_ns is None or now_ns - self._last_kernels_ns > QUIET_NS
        wait_from_ns = until_ns if is_quiet or self._is_full() else now_ns - LONGEST_NS
        decided = self.launches.match(until_ns, wait_from_ns, is_quiet)
        waiting = self.launches.operators
        if waiting:
            until_ns = min(until_ns, waiting[0].enqueue_ns - 1)
        return self._join(members, decided, until_ns)

    def _is_full(self) -> bool:
        waiting = sum(map(len, self._calls.values()))
        return max(waiting, len(self.launches.operators)) > MOST_WAITING

    def _shed(self, now_ns: int) -> None:
        """Lets `launches` give up kernels for which no operator came."""
        kernels = self.launches.kernels
        late = bool(kernels) and kernels[0].start_ns < now_ns - 2 * LONGEST_NS
        if late or len(kernels) > MOST_WAITING:
            self.launches.lose_sync()

    def _join(self, members: Members, decided: list[Operator], until_ns: int) -> Joined:
        out = _Out()
        if members.groups is None or not self.has_calls:
            out.operators = decided
        else:
            self._sort(members, decided)
        for group in members.groups or ():
            self._join_group(group, members, until_ns, out)
        for id in self._calls.keys() - {group.id for group in members.groups or ()}:
            out.calls += [(call, None) for call in self._calls.pop(id)]
        self._calls = defaultdict(list, {id: some for id, some in self._calls.items() if some})
        return out.joined()

    def _sort(self, members: Members, decided: Sequence[Operator]) -> None:
        """Assigns operators to process groups by their communicators."""
        self.places.learn(decided, self._calls, members)
        places = {name: members.place(name) for name in {op.communicator for op in decided}}
        for op in decided:
            place = places[op.communicator]
            if place is None:
                self.lone_operators += 1
            else:
                self._operators[place.group].append(op)

    def _join_group(self, group: GroupInfo, members: Members, until_ns: int, out: _Out) -> None:
        """Joins complete batches: those followed by another one, or old enough."""
        calls, operators = self._calls.pop(group.id, []), self._operators.pop(group.id, [])
        calls.sort(key=_enqueued)
        known = bisect_right(calls, until_ns, key=_enqueued)
        every = list(batches(calls[:known], operators))
        for at, batch in enumerate(every):
            is_last = at + 1 == len(every)
            if batch.operators and not (is_last and _may_go_on(batch, until_ns)):
                self._join_batch(batch, members, out)
            else:
                self._keep(batch, group, until_ns, out)
        if known < len(calls):
            self._calls[group.id] += calls[known:]

    def _join_batch(self, batch: Batch, members: Members, out: _Out) -> None:
        found = joined(batch, [members.peer(op.communicator, op.peer) for op in batch.operators])
        self.lone_operators += len(batch.operators) - sum(map(len, found.values()))
        for call in batch.calls:
            theirs = found.get(call)
            out.calls.append((call, None if theirs is None else _times(theirs)))

    def _keep(self, batch: Batch, group: GroupInfo, until_ns: int, out: _Out) -> None:
        """Keeps a batch for later, except calls that never reached NCCL."""
        self._operators[group.id] += batch.operators
        for call in batch.calls:
            if not batch.operators and call.enqueue_ns <= until_ns - GROUPED_NS:
                out.calls.append((call, None))
            else:
                self._calls[group.id].append(call)


class _Out:
    """Collects the results."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, Times | None]] = []
        self.operators: list[Operator] = []

    def joined(self) -> Joined:
        return Joined(
            normalise.parse(memoryview(b"".join([call.record for call, _ in self.calls]))),
            [times for _, times in self.calls],
            self.operators,
        )


_FOREVER = 1 << 62


def _may_go_on(batch: Batch, until_ns: int) -> bool:
    """Whether more operators of a batch may still be handed to NCCL."""
    return bool(batch.calls) and batch.calls[-1].enqueue_ns > until_ns - GROUPED_NS


_enqueued = attrgetter("enqueue_ns")


def _times(operators: list[Operator]) -> Times:
    """Times of a call that became these operators: first start to last end, if all are known.

    An end without a start is left out: an operator first waits for what was launched before it on
    the device, and methods would count that as its own time."""
    spans = [op.span for op in operators]
    start_ns, end_ns = min(start for start, _ in spans), max(end for _, end in spans)
    if any(UNKNOWN in span for span in spans):
        start_ns = end_ns = UNKNOWN
    return Times(start_ns, end_ns, operators[0].flags)


def _kernels(records: Records, names: Mapping[int, str]) -> Iterator[Kernel]:
    functions = {id: found for id, name in names.items() if (found := function_of(name))}
    if not functions:
        return
    ours = records["field"][np.isin(records["field"][:, 0], list(functions))].tolist()
    for name, stream, start_ns, duration_ns, _, launch, _ in ours:
        yield Kernel(launch, stream, start_ns, start_ns + duration_ns, functions[name])

"""Feeds the joiner of each process with what its producers report, and turns results into rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from stepscope.processor.instructions import Append
from stepscope.processor.operators import communicators
from stepscope.processor.operators.joiner import Joined, Joiner, Times
from stepscope.processor.records import normalise
from stepscope.processor.records.normalise import Records, Rows, Translation
from stepscope.processor.state.natives import CUPTI, NCCL
from stepscope.processor.state.producer import Producer
from stepscope.window import NULL, Ints
from stepscope.wire.records import COMM_DONE, UNKNOWN, RecordKind

TURN_NS = 1_000_000_000
"""How often the joiner is asked for results: operators wait for seconds."""
_GRAPHS, _PAUSED, _LOST = "stepscope_cupti_graphs", "stepscope_cupti_paused", "dropped.kernels"
PARTS = "stepscope_cupti_parts"
"""One in how many parts of the time kernels are recorded (native/cupti/budget.hpp)."""
Counts = list[tuple[str | None, int]]
_LONE = ("stepscope_lone_operators", "stepscope_lone_kernels")


def attach_joiner(new: Producer, near: Collection[Producer]) -> None:
    """Gives a process a joiner when one of its producers is NCCL's plugin.

    Args:
        new: the producer that has just connected.
        near: all producers of its process.
    """
    plugin = next((one for one in near if one.hello.source == NCCL), None)
    if plugin is None:
        return
    main = plugin.main
    if main.joiner is None:
        main.joiner = plugin.joiner or Joiner()
    main.joiner.has_calls |= main.has_calls
    if main is not plugin:
        plugin.joiner = None
    if new.hello.source == CUPTI and main.joiner.has_kernels:
        main.joiner.launches.lose_sync()  # it reconnected: something may be lost in between
    main.joiner.has_kernels |= any(one.hello.source == CUPTI for one in near)


def take_calls(producer: Producer, records: Records) -> Records:
    """Gives the joiner of a process, if there is one, the hooks' records of operators on a device;
    returns the rest."""
    producer.has_calls = True
    if producer.joiner is None:
        return records
    field = records["field"]
    is_done = (records["kind"] == int(RecordKind.COMM)) & (records["flags"] == COMM_DONE)
    on_device = is_done & (field[:, 5] == UNKNOWN) & (field[:, 6] == UNKNOWN)
    # one that was reported as outstanding runs on no device, and must not be missing meanwhile
    on_device &= ~np.isin(field[:, 2], [seq for _, seq, _ in producer.open_ops])
    producer.joiner.add_calls(records[on_device], producer.names)
    rest: Records = records[~on_device]
    return rest


def counts_of(producer: Producer, records: Records) -> Counts:
    """The metrics that a producer counts in these records, with their values."""
    counts = normalise.of_kind(records, RecordKind.COUNT)["field"][:, :2].tolist()
    return [(producer.names.get(name), value) for name, value in counts]


def add_native(producer: Producer, records: Records, counts: Counts) -> None:
    """Gives the joiner of a process the operators that a native producer reports, and whether its
    kernels are complete, which its counts say."""
    joiner = producer.main.joiner
    if joiner is None:
        return
    joiner.add_operators(normalise.of_kind(records, RecordKind.COMM), producer.names)
    for metric, value in counts:
        if metric in (_PAUSED, _LOST) and value:
            joiner.launches.lose_sync()
        if (metric == _GRAPHS and value) or (metric == PARTS and value > 1):
            joiner.launches.by_order = False


def parts_told(counts: Counts) -> int | None:
    """In which part of the time kernels are recorded from now on, if these counts say so."""
    told = [value for metric, value in counts if metric == PARTS]
    return max(told[-1], 1) if told else None


def add_kernels(producer: Producer, kernels: Records) -> None:
    """Gives the joiner of a process its kernels."""
    joiner = producer.main.joiner
    if joiner is not None:
        joiner.add_kernels(kernels, producer.names, producer.kernels_until_ns - producer.offset_ns)


def joined_rows(producer: Producer, now_ns: int) -> Iterator[Append]:
    """Rows of the operators of a process that need to wait no longer."""
    joiner = producer.joiner
    if joiner is None or joiner.is_empty or abs(now_ns - joiner.last_taken_ns) < TURN_NS:
        return
    joiner.last_taken_ns = now_ns
    yield from _rows_of(producer, joiner.take(producer.members(), now_ns - producer.offset_ns))
    yield from _counted(producer, joiner, now_ns)


def last_rows(producer: Producer) -> Iterator[Append]:
    """Rows of all operators left of a process that has ended."""
    if producer.joiner is not None and not producer.joiner.is_empty:
        yield from _rows_of(producer, producer.joiner.finish(producer.members()))


def _rows_of(producer: Producer, done: Joined) -> Iterator[Append]:
    to, job = producer.translation(), producer.hello.job
    if len(done.calls):
        rows = normalise.comm_ops(done.calls, to)
        flags = [0 if one is None else one.flags for one in done.of_calls]
        words = communicators.details(np.array(flags, np.int64))
        yield Append(job, "comm_ops", {**rows, **words, **_times(rows, done.of_calls, to)})
    if done.operators:
        enqueued = np.array([op.enqueue_ns for op in done.operators], np.int64)
        steps = producer.steps_at(enqueued)
        rows = communicators.operators(done.operators, steps, to, producer.members())
        yield Append(job, "comm_ops", rows)


def _times(rows: Rows, found: list[Times | None], to: Translation) -> dict[str, Ints]:
    """Starts and ends, with those of the counterparts where there are some."""
    out: dict[str, Ints] = {name: rows[name].copy() for name in ("start_ns", "end_ns")}
    for at, one in enumerate(found):
        if one is not None:
            for name, ns in (("start_ns", one.start_ns), ("end_ns", one.end_ns)):
                out[name][at] = NULL if ns == UNKNOWN else ns + to.offset_ns
    return out


def _counted(producer: Producer, joiner: Joiner, now_ns: int) -> Iterator[Append]:
    """The number of operators and kernels without a counterpart so far, whenever it grew."""
    counts = (joiner.lone_operators, joiner.launches.lone_kernels)
    if counts == joiner.reported_lone:
        return
    joiner.reported_lone = counts
    grown = {
        "rank": [producer.rank] * len(counts),
        "host": [producer.identity.host] * len(counts),
        "metric": list(_LONE),
        "ts_ns": [now_ns] * len(counts),
        "value": [float(count) for count in counts],
    }
    yield Append(producer.hello.job, "hardware", grown)

"""Records into rows: wall-clock times, names, nulls."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.processor.records import normalise
from stepscope.processor.records.normalise import Translation
from stepscope.store.encode import arrow_table
from stepscope.wire.frames import unpack
from stepscope.wire.records import ON_DEVICE, UNKNOWN, RecordKind

from .producers import MS, OFFSET_NS, Producer, plain

_NAMES = ("dp-0", "AllReduce", "Send", "forward-compute", "gc")


def _producer() -> Producer:
    producer = Producer(rank=3)
    producer.tell(*_NAMES)
    return producer


def _records(producer: Producer, *records: bytes) -> normalise.Records:
    return normalise.parse(unpack(producer.packet(*records))[1])


def _to(producer: Producer) -> Translation:
    names = {id: name for name, id in producer.names.items()}
    return Translation(producer.rank, OFFSET_NS, names, lambda ordinal: ordinal // 2)


def test_phases() -> None:
    producer = _producer()
    producer.ordinal, producer.now_ns = 7, 500
    records = _records(
        producer,
        producer.phase("forward-compute", wait_ns=4 * MS, cpu_ns=6 * MS),
        producer.phase("forward-compute"),
    )
    rows = plain(normalise.phases(records, _to(producer)))

    assert rows == {
        "rank": [3, 3],
        "step": [3, 3],
        "phase": ["forward-compute"] * 2,
        "microbatch": [-1, -1],
        "start_ns": [OFFSET_NS + 500] * 2,
        "duration_ns": [10 * MS] * 2,
        "waits": [True, False],
        "wait_ns": [4 * MS, 0],
        "cpu_ns": [6 * MS, None],
    }


def test_phases_that_a_device_timed() -> None:
    """Beside one of the host's; what the device waited is not known where it may have."""
    producer = _producer()
    forward = (producer.names["forward-compute"], 900, 10 * MS, 0, UNKNOWN, 2, 400)
    backward = (producer.names["forward-compute"], 990, 10 * MS, UNKNOWN, UNKNOWN, 2, 410)
    records = _records(
        producer,
        producer.phase("forward-compute", wait_ns=4 * MS),
        producer.record(RecordKind.PHASE, ON_DEVICE, *forward),
        producer.record(RecordKind.PHASE, ON_DEVICE, *backward),
    )
    rows = plain(normalise.phases(records, _to(producer)))

    assert rows["start_ns"][1:] == [OFFSET_NS + 900, OFFSET_NS + 990]
    assert rows["host_start_ns"] == [None, OFFSET_NS + 400, OFFSET_NS + 410]
    assert rows["wait_ns"] == [4 * MS, 0, None] and rows["waits"] == [True, False, True]


def test_operators_with_and_without_an_end() -> None:
    producer = _producer()
    records = _records(
        producer,
        producer.comm("AllReduce", 5, end_ns=90),
        producer.comm("AllReduce", 6),
        producer.comm("Send", 7, peer=2, end_ns=-1),
    )
    rows = plain(normalise.comm_ops(records, _to(producer)))

    assert rows["op"] == ["AllReduce", "AllReduce", "Send"]
    assert rows["group"] == ["dp-0"] * 3 and rows["seq"] == [5, 6, 7]
    assert rows["peer"] == [-1, -1, 2]
    assert rows["end_ns"] == [OFFSET_NS + 90, None, None]
    assert rows["state"] == ["done", "started", "done"]
    assert rows["start_ns"] == [OFFSET_NS, OFFSET_NS, None], "who knows when that one started"
    assert rows["blocked_ns"] == [0, None, 0]
    assert rows["bytes"] == [64] * 3


def test_a_name_that_never_came_is_null() -> None:
    producer = _producer()
    records = _records(producer, producer.phase("gc"))
    rows = normalise.phases(records, Translation(0, 0, {}, int))

    assert plain(rows)["phase"] == [None]
    assert arrow_table("phases", rows).num_rows == 1


def test_pauses() -> None:
    producer = _producer()
    records = _records(producer, producer.record(RecordKind.PAUSE, 0, 4, 10, 600_000))
    assert plain(normalise.pauses(records, _to(producer))) == {
        "rank": [3],
        "step": [0],
        "kind": ["gc"],
        "start_ns": [OFFSET_NS + 10],
        "duration_ns": [600_000],
    }


@pytest.mark.parametrize("ids", [[], [7, 3, 7, 5], [7, 1 << 20, 7, 3], [5, -1, 5]])
def test_many_names_are_coded_alike_however_they_are_numbered(ids: list[int]) -> None:
    names = {3: "three", 5: "five", 7: "seven", 1 << 20: "large"}
    words = Translation(0, 0, names, int).words(np.array(ids, np.int64))
    assert [words[row] for row in range(len(words))] == [names.get(id) for id in ids]


def test_steps_of_many_are_those_of_each() -> None:
    to = Translation(0, 0, {}, lambda ordinal: ordinal // 2)
    for ordinals in ([], [4], [4, 4, 5, 6, 6, 4]):
        column = np.array(ordinals, np.uint32)
        assert to.steps_of_many(column).tolist() == to.steps(column) == [o // 2 for o in ordinals]

"""The queue between training and sender: bounded, and honest about what it had no room for."""

from __future__ import annotations

import threading

from stepscope.collect.sender import RecordQueue
from stepscope.wire.records import RECORD, RecordKind

_ZEROS = (0,) * 7


def _put(queue: RecordQueue, kind: RecordKind, times: int = 1) -> None:
    for _ in range(times):
        queue.put(kind, 0, 0, *_ZEROS)


def _drops(queue: RecordQueue) -> dict[str, int]:
    return {drop.table: drop.rows for drop in queue.newly_dropped()}


def test_a_full_queue_keeps_the_oldest_and_counts_the_rest_by_table() -> None:
    queue = RecordQueue(capacity=2)
    for value in range(5):
        queue.put(RecordKind.PHASE, 0, value, *_ZEROS)
    _put(queue, RecordKind.COMM, 2)

    assert [RECORD.unpack(record)[2] for record in queue.take(10)] == [0, 1]
    assert _drops(queue) == {"phases": 3, "comm_ops": 2}
    assert _drops(queue) == {}, "told once"


def test_drops_are_told_when_there_is_room_to_tell() -> None:
    queue = RecordQueue(capacity=2)
    _put(queue, RecordKind.PHASE, 3)
    assert _drops(queue) == {}

    _put(queue, RecordKind.PHASE)
    queue.take(1)
    assert _drops(queue) == {"phases": 2}


def test_drops_lie_between_two_looks() -> None:
    queue = RecordQueue(capacity=1)
    queue.newly_dropped()
    _put(queue, RecordKind.PHASE, 2)
    queue.take(1)
    (first,) = queue.newly_dropped()
    _put(queue, RecordKind.PHASE, 2)
    queue.take(1)
    (second,) = queue.newly_dropped()

    assert first.start_ns <= first.end_ns <= second.start_ns <= second.end_ns


def test_no_record_is_lost_uncounted_among_threads() -> None:
    queue = RecordQueue(capacity=1000)
    kinds = [RecordKind.PHASE, RecordKind.COMM, RecordKind.PAUSE, RecordKind.EVENT]
    taken: list[bytes] = []
    threads = [threading.Thread(target=_put, args=(queue, kind, 5000)) for kind in kinds * 2]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += queue.take(10)
    taken += queue.take(1 << 20)

    assert len(taken) + sum(_drops(queue).values()) == 40_000


def test_what_could_not_be_sent_goes_back_in_front() -> None:
    queue = RecordQueue()
    for value in range(4):
        queue.put(RecordKind.PHASE, 0, value, *_ZEROS)
    queue.give_back(queue.take(2))

    assert [RECORD.unpack(record)[2] for record in queue.take(10)] == [0, 1, 2, 3]

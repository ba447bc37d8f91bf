"""The list of a job's outstanding operators, kept from the records of its producers."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np

from stepscope.processor.records import normalise
from stepscope.processor.records.normalise import Records, Rows
from stepscope.processor.records.tables import together
from stepscope.processor.state.producer import OpenKey, Producer
from stepscope.wire.records import COMM_OPEN, RecordKind


def update(producer: Producer, records: Records) -> bool:
    """Adds operators that began and removes those that ended; True: the list has changed."""
    comm = normalise.of_kind(records, RecordKind.COMM)
    producer.note_durations(comm)
    before = set(producer.open_ops)
    for record in _about_open(comm, before):
        key = _key(record, producer.names)
        if int(record["flags"]) == COMM_OPEN:
            producer.open_ops[key] = record.reshape(1)
        else:
            producer.open_ops.pop(key, None)
    return set(producer.open_ops) != before


def rows(producers: Iterable[Producer]) -> Rows:
    """The outstanding operators of these producers as rows of `comm_ops`."""
    parts = [
        normalise.comm_ops(np.concatenate(list(one.open_ops.values())), one.translation())
        for one in producers
        if one.open_ops
    ]
    return together(parts) if parts else {}


def _about_open(comm: Records, open_ops: Set[OpenKey]) -> Records:
    """The records that may start or complete an outstanding operator. Most packets have none, and
    computing the keys of all records took half of the processor's time (measured)."""
    begins = comm["flags"] == COMM_OPEN
    if not open_ops and not begins.any():
        return comm[:0]
    seq = comm["field"][:, 2]
    known = np.array([seq for _, seq, _ in open_ops], np.int64)
    about: Records = comm[begins | np.isin(seq, np.append(seq[begins], known))]
    return about


def _key(record: Records, names: dict[int, str]) -> OpenKey:
    group, op_peer, seq = (int(value) for value in record["field"][:3])
    return group, seq, names.get(op_peer >> 32) in ("Send", "Recv")

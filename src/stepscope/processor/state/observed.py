"""Turns a producer's records into rows to append to tables; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.processor.instructions import Append
from stepscope.processor.operators import communicators
from stepscope.processor.records import normalise, record_kinds
from stepscope.processor.records.normalise import Records, Rows, Translation
from stepscope.processor.records.record_kinds import Kinds
from stepscope.processor.state.producer import Producer
from stepscope.processor.state.steps import Step
from stepscope.trace.names import UNKNOWN_PEER
from stepscope.wire.frames import AtRisk
from stepscope.wire.records import COMM_OPEN, RecordKind


def finished(producer: Producer, kinds: Kinds, records: Records) -> Iterator[Append]:
    """Finished observations as table rows. Outstanding operators are in `OpenOps`."""
    to, job = producer.translation(), producer.hello.job
    if kinds & record_kinds.PHASES:
        some = normalise.of_kind(records, RecordKind.PHASE)
        yield Append(job, "phases", normalise.phases(some, to))
    if kinds & record_kinds.COMMS:
        comm = normalise.of_kind(records, RecordKind.COMM)
        if len(some := comm[comm["flags"] != COMM_OPEN]):
            yield Append(job, "comm_ops", normalise.comm_ops(some, to))
    if kinds & record_kinds.PAUSES:
        some = normalise.of_kind(records, RecordKind.PAUSE)
        yield Append(job, "pauses", normalise.pauses(some, to))
    if kinds & record_kinds.COUNTS:
        some = normalise.of_kind(records, RecordKind.COUNT)
        yield from _counts(producer, some, to)


def native(producer: Producer, records: Records) -> Iterator[Append]:
    """Observations of a native producer, except kernels and operators."""
    to, job, members = producer.translation(), producer.hello.job, producer.members()
    sent = normalise.of_kind(records, RecordKind.TRANSFER)
    if len(sent):
        yield from _requests(job, communicators.requests(sent, to, members))
    counted = normalise.of_kind(records, RecordKind.COUNT)
    if len(counted):
        yield from _counts(producer, counted, to)


def _requests(job: str, rows: Rows) -> Iterator[Append]:
    """Network requests as `transfers`; those with an unknown peer are counted as losses."""
    known = rows["peer"] != UNKNOWN_PEER
    if known.any():
        yield Append(job, "transfers", {name: _where(known, rows[name]) for name in rows})
    if not known.all():
        start_ns, end_ns = int(rows["start_ns"].min()), int(rows["end_ns"].max())
        risk = AtRisk(start_ns, end_ns, {"transfers": int((~known).sum())})
        yield Append(job, "losses", losses(int(rows["rank"][0]), risk, 0))


def _counts(producer: Producer, records: Records, to: Translation) -> Iterator[Append]:
    """Counters go to `hardware`; counts of dropped rows are losses."""
    rows = normalise.counts(records, to, producer.hello.host)
    for metric, fields in zip(rows["metric"], records["field"].tolist(), strict=True):
        if metric is not None and metric.startswith("dropped."):
            _, lost, until, since, *_ = fields
            table = metric.removeprefix("dropped.")
            risk = AtRisk(since, until, {table: lost})
            if producer.counts_loss_of(table):
                yield Append(producer.hello.job, "losses", losses(to.rank, risk, to.offset_ns))
    is_metric = [m is not None and not m.startswith("dropped.") for m in rows["metric"]]
    if any(is_metric):
        keep = np.array(is_metric)
        kept = {name: _where(keep, column) for name, column in rows.items()}
        yield Append(producer.hello.job, "hardware", kept)


def losses(rank: int, risk: AtRisk, offset_ns: int) -> Rows:
    tables = list(risk.rows)
    return {
        "rank": [rank] * len(tables),
        "table": tables,
        "start_ns": [risk.start_ns + offset_ns] * len(tables),
        "end_ns": [risk.end_ns + offset_ns] * len(tables),
        "rows": [risk.rows[table] for table in tables],
    }


def step_rows(producer: Producer, steps: list[Step]) -> Rows:
    return {
        "rank": [producer.hello.rank] * len(steps),
        "step": [step.step for step in steps],
        "start_ns": [step.start_ns + producer.offset_ns for step in steps],
        "duration_ns": [step.duration_ns for step in steps],
    }


def _where(chosen: NDArray[np.bool_], column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return column[chosen]
    return [value for value, wanted in zip(column, chosen, strict=True) if wanted]

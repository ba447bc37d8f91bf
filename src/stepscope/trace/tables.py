"""The tables of a job folder, with the columns of each and their types.

The kinds are `int64`, `int32`, `double`, `bool` and `str`. Columns in `optional` may be absent from
any file; readers treat an absent column as unknown. `docs/job-folder.md` explains the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["int64", "int32", "double", "bool", "str"]


@dataclass(frozen=True)
class TableSpec:
    """One table: its columns in order, and the column that orders its rows by time."""

    name: str
    columns: Mapping[str, Kind]
    time: str
    optional: frozenset[str] = frozenset()


def _spec(name: str, columns: str, time: str = "start_ns", optional: str = "") -> TableSpec:
    """Reads `"step:int64 phase:str"`; `rank:int32` comes first in every table."""
    kinds: dict[str, Kind] = {}
    for pair in ("rank:int32 " + columns + " " + optional).split():
        column, _, kind = pair.partition(":")
        kinds[column] = cast(Kind, kind)
    names = frozenset(pair.partition(":")[0] for pair in optional.split())
    return TableSpec(name, kinds, time, names)


TABLES: Mapping[str, TableSpec] = {
    spec.name: spec
    for spec in (
        _spec("steps", "step:int64 start_ns:int64 duration_ns:int64", optional="host_ns:int64"),
        _spec(
            "phases",
            "step:int64 phase:str microbatch:int32 start_ns:int64 duration_ns:int64",
            optional="waits:bool wait_ns:int64 cpu_ns:int64 host_start_ns:int64",
        ),
        _spec(
            "kernels",
            "step:int64 kernel:str stream:int64 start_ns:int64 duration_ns:int64",
            optional="enqueue_ns:int64",
        ),
        _spec(
            "kernel_summaries",
            "window_start_ns:int64 window_ns:int64 kernel:str stream:int64 cluster:int32 "
            "count:int64 p50_ns:int64 p99_ns:int64",
            time="window_start_ns",
            optional="max_ns:int64",
        ),
        _spec(
            "comm_ops",
            "step:int64 group:str seq:int64 op:str peer:int32 bytes:int64 enqueue_ns:int64",
            time="enqueue_ns",
            optional="start_ns:int64 end_ns:int64 match:int64 state:str blocked_ns:int64 "
            "algorithm:str protocol:str dtype:str "
            # only from Flight Recorder dumps
            "call:str given:int64 taken:int64 dtype_given:str dtype_taken:str shape:str seen:str "
            "retired:bool record:int64 timeout_ms:int64 dumped_ns:int64",
        ),
        _spec(
            "transfers",
            "nic:str peer:int32 start_ns:int64 end_ns:int64 bytes:int64 posted:int64 "
            "completed:int64",
        ),
        _spec(
            "stacks",
            "thread:str start_ns:int64 duration_ns:int64 frames:str active:bool gil:bool",
        ),
        _spec(
            "hardware",
            "host:str metric:str ts_ns:int64 value:double",
            time="ts_ns",
            optional="period_ns:int64",
        ),
        _spec("losses", "table:str start_ns:int64 end_ns:int64 rows:int64"),
        _spec(
            "exits",
            "host:str pid:int64 ts_ns:int64 status:int64 signal:int64 announced:bool reason:str "
            "detail:str",
            time="ts_ns",
            optional="frames:str",
        ),
        _spec(
            "patterns",
            "window_start_ns:int64 window_ns:int64 function:str kind:str beta:double mu:double "
            "sigma:double",
            time="window_start_ns",
            optional="location:str caller:str thread:str phase:str resource:str calls:int64 "
            "first_step:int64 last_step:int64",
        ),
        _spec(
            "profiles",
            "host:str window:str why:str first_step:int64 last_step:int64 start_ns:int64 "
            "duration_ns:int64 trace:str trouble:str",
        ),
        _spec("host_ops", "step:int64 name:str thread:int64 start_ns:int64 duration_ns:int64"),
        _spec("pauses", "step:int64 kind:str start_ns:int64 duration_ns:int64"),
    )
}

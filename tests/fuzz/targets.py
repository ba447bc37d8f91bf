"""Everything that parses bytes of others, one function each, with what it may raise."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import FormatError, SourceError, StepscopeError, WireError
from stepscope.processor.state.host_state import HostState
from stepscope.store.bounds import within
from stepscope.store.decode import approximate_rows, decode
from stepscope.store.fragments import parse_job
from stepscope.trace import TABLES
from stepscope.wire import control
from stepscope.wire.frames import HEADER, PacketKind, pack

_RESULTS = (
    b'{"schema": 1, "suite": "smoke", "fast": true, "seeds": [1], "version": "1", "results": [],'
    b' "unfit": [], "missing": 0, "conditions": []}'
)
_NOW_NS = 1_766_000_000_000_000_000


@dataclass(frozen=True)
class Target:
    """A parser, and one small input that it accepts."""

    parse: Callable[[bytes], object]
    sample: Callable[[], bytes]


def _file(data: bytes, name: str) -> Path:
    """The bytes as a file in memory, since readers of formats take paths."""
    folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    path = folder / f"stepscope-fuzz-{os.getpid()}-{name}"
    path.write_bytes(data)
    return path


def job(data: bytes) -> None:
    """`job.json` and fragments."""
    with contextlib.suppress(FormatError):
        parse_job(data).to_json()


def parquet(data: bytes) -> None:
    """A table; the first byte says which."""
    table = list(TABLES)[data[0] % len(TABLES)] if data else "steps"
    approximate_rows(data[1:])
    with contextlib.suppress(FormatError):
        within(decode(table, data[1:]))


def packets(data: bytes) -> None:
    """Packets of one connection, each with its length in front."""
    state = HostState()
    while data:
        length, data = int.from_bytes(data[:2], "little"), data[2:]
        state.packet(5, data[:length], _NOW_NS)
        data = data[length:]
    state.tick(_NOW_NS)
    state.disconnected(5)


def requests(data: bytes) -> None:
    """Requests and replies."""
    view = memoryview(data)
    for read in (control.decode_flush, control.decode_follow, control.decode_events,
                 control.decode_counters, control.decode_parent, control.decode_leaving,
                 control.decode_exited):  # fmt: skip
        read(view)
    for answer in (control.decode_relayed, control.decode_counted, control.decode_flushed):
        with contextlib.suppress(WireError):
            answer(view)


def dump(data: bytes) -> None:
    """A dump of the Flight Recorder: pickle or JSON, also compressed, and what it becomes."""
    from stepscope.formats import flight_recorder

    path = _file(data, "rank_0")
    try:
        with contextlib.suppress(SourceError):
            flight_recorder.read(path)
    finally:
        path.unlink()


def kineto(data: bytes) -> None:
    """A trace of torch.profiler, also compressed."""
    from stepscope.formats import kineto as reader

    path = _file(data, "rank0.pt.trace.json")
    try:
        with contextlib.suppress(SourceError):
            reader.read(path, workers=1)
    finally:
        path.unlink()


def topology(data: bytes) -> None:
    """Slurm's topology.conf or topology.yaml."""
    from stepscope.formats.topology import reader

    path = _file(data, "topology.conf")
    try:
        with contextlib.suppress(SourceError):
            reader.read(path)
    finally:
        path.unlink()


def results(data: bytes) -> None:
    """Results of an evaluation, and what `--baseline` compares with."""
    from stepscope.evaluate import results as stored

    path = _file(data, "results.json")
    try:
        with contextlib.suppress(StepscopeError):
            stored.read(path)
    finally:
        path.unlink()


def scenario(data: bytes) -> None:
    """A scenario of `stepscope simulate`."""
    from stepscope.simulate.parse import parse_scenario

    with contextlib.suppress(StepscopeError, UnicodeDecodeError):
        parse_scenario(data.decode())


def _a_table() -> bytes:
    from stepscope.store.encode import Rows, arrow_table, parquet_bytes

    rows: Rows = {"rank": [0, 1], "step": [1, 1], "start_ns": [5, 6], "duration_ns": [7, None]}
    return b"\0" + parquet_bytes(arrow_table("steps", rows))


def _a_connection() -> bytes:
    from stepscope.wire.frames import Hello, Names, encode_hello, encode_names
    from stepscope.wire.records import RECORD

    hello = encode_hello(Hello("j", "s", "h", 0, 2, 0, 1, 1, 9, 9))
    (names,) = encode_names(Names({0: "AllReduce", 1: "dp-0"}))
    records = b"".join(RECORD.pack(kind, 0, 3, 0, 1, 2, 3, 4, 5, 6) for kind in range(1, 8))
    sent = [
        pack(PacketKind.HELLO, hello, 1, 0), pack(PacketKind.NAMES, names, 1, 1),
        pack(PacketKind.RECORDS, records, 1, 2, count=7),
        pack(PacketKind.CONTROL, control.encode_parent(1, None), 1, 3),
    ]  # fmt: skip
    assert all(len(one) >= HEADER.size for one in sent)
    return b"".join(len(one).to_bytes(2, "little") + one for one in sent)


def _a_job() -> bytes:
    return json.dumps({
        "schema": 1, "job_id": "j", "world_size": 2, "hosts": [{"name": "h", "ranks": [0, 1]}],
        "groups": [{"id": "dp-0", "kind": "dp", "ranks": [0, 1]}], "parallelism": {"dp": 2},
        "schedule": {"name": "1f1b", "microbatches": 8}, "recorded_ranks": [0],
        "fabric": {"switches": [{"name": "s", "tier": 0, "children": ["h/nic"]}]},
    }).encode()  # fmt: skip


def _a_dump() -> bytes:
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1,
        "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 5,
        "duration_ms": 1.5, "input_sizes": [[3]], "input_dtypes": ["Float"], "output_sizes": [[3]],
        "output_dtypes": ["Float"], "state": "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600000,
        "is_p2p": False, "frames": [{"name": "f", "filename": "a.py", "line": 3}],
    }  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return json.dumps({"version": "2.10", "pg_config": groups, "entries": [entry]}).encode()


def _a_trace() -> bytes:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
         "ts": 1000.5 * step, "dur": 900}
        for step in range(3)
    ] + [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1100, "dur": 50,
         "args": {"correlation": 3, "stream": 7}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1050, "dur": 9,
         "args": {"External id": 5}},
    ]  # fmt: skip
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}}
    return json.dumps({**head, "traceEvents": events}).encode()


TARGETS: Mapping[str, Target] = {
    "job": Target(job, _a_job),
    "parquet": Target(parquet, _a_table),
    "packets": Target(packets, _a_connection),
    "requests": Target(requests, lambda: control.encode_exited(7, -9)),
    "dump": Target(dump, _a_dump),
    "kineto": Target(kineto, _a_trace),
    "topology": Target(topology, lambda: b"SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Switches=s0"),
    "results": Target(results, lambda: _RESULTS),
    "scenario": Target(scenario, lambda: b"ranks = 4\n[[faults]]\nkind = 'slow-gpu'\nrank = 1\n"),
}

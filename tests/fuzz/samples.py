"""Inputs that the parsers accept, made by code: where fuzzing starts."""

from __future__ import annotations

import functools
import gzip
import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.devices.record import to_bytes
from stepscope.trace import TABLES, Job
from stepscope.window import NULL, Strings, Table
from stepscope.wire import control
from stepscope.wire.frames import (
    HEADER,
    AtRisk,
    GroupInfo,
    Hello,
    Names,
    PacketKind,
    encode_hello,
    encode_names,
    pack,
)
from tests.devices import jobs as ledger
from tests.formats.flight_recorder import recorders
from tests.formats.kineto import traces


def tables() -> list[bytes]:
    """Parquet files: every table as we write it, and all its columns plain, without checksums; then
    steps as other programs write them, and merged ones. A first byte says which table it is."""
    from stepscope.store.encode import arrow_table, parquet_bytes

    made = []
    for number, (name, spec) in enumerate(TABLES.items()):
        rows = {column: _VALUES[kind] for column, kind in spec.columns.items()}
        table = arrow_table(name, rows)
        made += [bytes([number]) + parquet_bytes(table), bytes([number]) + _written(table)]
    merged = bytes([128 + list(TABLES).index("steps")])
    return [
        *made, *(b"\0" + data for data in _foreign_steps()),
        *(merged + merged_file(claims) for claims in CLAIMS),
    ]  # fmt: skip


def _foreign_steps() -> list[bytes]:
    """Other types of the same columns, codecs, page versions, several row groups, and columns that
    are no table's."""
    import pyarrow as pa

    starts = [1_700_000_000_000_000_000, 1_700_000_001_000_000_000]
    plain = {"rank": [0, 1], "step": [1, 1], "start_ns": starts, "duration_ns": [7, None]}
    other: list[dict[str, Any]] = [
        {"start_ns": pa.array([5, 6], pa.timestamp("us", "UTC")),
         "duration_ns": pa.array([7, None], pa.duration("ms"))},
        {"rank": pa.array([0, 1], pa.uint8()), "step": pa.array([1.0, float("nan")])},
        {"step": pa.array([1, 1], pa.decimal128(9, 2)), "rank": pa.array([False, True])},
        {"rank": pa.array([0, 1]).dictionary_encode(), "step": pa.array(["1", "x"])},
        {"step": pa.array([[1], [2, 3]]), "rank": pa.array([{"a": 1}, None])},
        {"note": pa.array([[{"a": "b"}], []]), "more": pa.array([b"1", None], pa.large_binary())},
    ]  # fmt: skip
    tables: list[Any] = [pa.table({**plain, **columns}) for columns in other]
    large = pa.table({"rank": [0] * 50, "step": list(range(50)), "start_ns": list(range(50)),
                      "duration_ns": [None, 3] * 25})  # fmt: skip
    codecs = [_written(large, compression=one, data_page_version="2.0", row_group_size=20)
              for one in ("snappy", "gzip", "lz4", "brotli", "zstd")]  # fmt: skip
    return [
        *map(_written, tables), *codecs,
        _written(tables[0], use_deprecated_int96_timestamps=True),
        _written(large, use_byte_stream_split=["start_ns"], use_dictionary=["step"],
                 write_page_index=True),
    ]  # fmt: skip


def _written(table: Any, **options: Any) -> bytes:
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, **{"compression": "none", **options})
    return sink.getvalue()


MERGED = "sorted/together/20260101T000000Z-20260101T000100Z-0123abcd.parquet"
CLAIMS: Sequence[bytes] = (
    b'{"rows":{"steps/recorder=a/0.parquet":1,"steps/recorder=b/0.parquet":1},"stands_for":[]}',
    b'{"rows":{"a":2,"b":0},"stands_for":["steps/sorted/together/0.parquet"]}',
)
_TWO_STEPS = {"rank": [0, 1], "step": [1, 1], "start_ns": [5, 6], "duration_ns": [7, 8]}


def merged_file(claims: bytes) -> bytes:
    """Two rows, of the first and of the second file in the claims."""
    import pyarrow as pa

    table = pa.table({**_TWO_STEPS, "merged_from": pa.array([0, 1], pa.int32())})
    return _written(table.replace_schema_metadata({b"stepscope.merged": claims}))


@functools.cache
def small_file() -> bytes:
    import pyarrow as pa

    return _written(pa.table(_TWO_STEPS))


_VALUES: Mapping[str, list[Any]] = {
    "int64": [3, None, 1_700_000_000_000_000_000, 3], "int32": [0, 1, 0, 7],
    "bool": [True, False, None, True], "double": [0.5, None, 1e300, -0.0],
    "str": ["forward", "a;b", "forward", None],
}  # fmt: skip


def connections() -> list[bytes]:
    """Of Python with names, groups and records of all kinds, of native producers, with requests,
    and after a broken one."""

    def sent(hello: Hello, names: Names, *requests: bytes) -> bytes:
        (named,) = encode_names(names)
        packets = [
            pack(PacketKind.HELLO, encode_hello(hello), 1, 0),
            pack(PacketKind.NAMES, named, 1, 1),
            pack(PacketKind.RECORDS, records(), 1, 2, count=14, dropped=1),
            *(pack(PacketKind.CONTROL, one, 1, 3 + at) for at, one in enumerate(requests)),
        ]
        assert all(len(one) >= HEADER.size for one in packets)
        return b"".join(len(one).to_bytes(2, "little") + one for one in packets)

    names = {0: "AllReduce", 1: "dp-0", 2: "forward", 3: "dropped.steps"}
    groups = (GroupInfo("0", "dp", (0, 1)), GroupInfo("1", "tp", (0, 2, 4, 7)))
    hello = Hello("j", "s", "h", 0, 2, 0, 1, 1, 9, 9)
    risk = AtRisk(1, 9, {"steps": 2})
    return [
        sent(hello, Names(names), control.encode_parent(1, None)),
        sent(replace(hello, at_risk=risk, attempt=1), Names(names, groups, {"dp": 2}),
             control.encode_leaving(control.Leaving("E: f")), control.encode_exited(1, -9)),
        sent(replace(hello, source="nccl"), Names(names), control.encode_follow("j")),
        sent(replace(hello, source="cupti"), Names(names), control.encode_flush("j")),
    ]  # fmt: skip


def records() -> bytes:
    """Fourteen, of all kinds."""
    from stepscope.wire.records import RECORD

    return b"".join(
        RECORD.pack(kind, flags, 3, 0, 1, 2, 3, 4, 5, 6)
        for kind in range(1, 8) for flags in (0, 1)
    )  # fmt: skip


def requests() -> list[bytes]:
    said = Hello("j", "s", "h", 0, 2, 0, 1, 1, 9, 9, 1, AtRisk(1, 9, {"steps": 2}))
    (names,) = encode_names(Names({0: "a"}, (GroupInfo("0", "dp", (0, 1, 7)),), {"dp": 2}))
    hurry, confirmed = control.encode_hurry(control.Hurry(1.5)), control.encode_losses_stored()
    return [
        control.encode_exited(7, -9), control.encode_flush("j"), control.encode_follow("j"),
        control.encode_events("j", 3), control.encode_relayed(2),
        control.encode_counters(10.0, 2.0), control.encode_counted(control.Counted(5, 1, ("x",))),
        control.encode_parent(3, 4), control.encode_leaving(control.Leaving("E: f")),
        control.encode_stored("j"), control.encode_flushed("j", "disk full", ("a note",)),
        *(one for payload in (hurry, confirmed)
          for one in (payload, pack(PacketKind.CONTROL, payload, 1, 0))),
        encode_hello(said), names,
    ]  # fmt: skip


def a_job() -> bytes:
    return json.dumps({
        "schema": 1, "job_id": "j", "world_size": 2, "hosts": [{"name": "h", "ranks": [0, 1]}],
        "groups": [{"id": "dp-0", "kind": "dp", "ranks": [0, 1]}], "parallelism": {"dp": 2},
        "schedule": {"name": "1f1b", "microbatches": 8}, "recorded_ranks": [0],
        "fabric": {"switches": [{"name": "s", "tier": 0, "children": ["h/nic"]}]},
    }).encode()  # fmt: skip


def evidence() -> list[bytes]:
    """Of a slow GPU and a slow cable, and of a healthy job."""
    slow = ledger.blame(0.96, (ledger.GPU, 0.96), (ledger.HOST, 0.04))
    cable = ledger.blame(0.97, (ledger.CABLE, 0.8), (ledger.NIC, 0.2), cause="network")
    jobs = (ledger.a_job("a", 0, slow, cable, healthy=(ledger.OTHER,)),
            ledger.a_job("b", 1, healthy=(ledger.GPU, ledger.CPU)))  # fmt: skip
    return [to_bytes(one) for one in jobs]


def dumps() -> list[bytes]:
    """JSON of NCCL, and pickles of all protocols, of NCCL and of gloo, with sends."""
    ranks = recorders.a_job(3, groups={"1": ("tp", (0, 1))})
    recorders.everyone(ranks, "all_reduce", times=2)
    recorders.everyone(ranks, "all_gather", "1", state="started", out=(8,))
    ranks[0].send(1, state="scheduled")
    gloo = recorders.a_job(2, "gloo")
    recorders.everyone(gloo, "all_reduce", times=2)
    said = ranks[0].dump()
    pickles = [pickle.dumps(said, protocol) for protocol in range(6)]
    return [json.dumps(said).encode(), *pickles, pickle.dumps(gloo[1].dump(), 2),
            gzip.compress(pickles[2])]  # fmt: skip


def kineto_traces() -> list[bytes]:
    """Two steps of a GPU; with a pipeline's sends, Python functions and a call without end; steps
    of gloo without a device; each of them also compressed."""
    gpu = traces.gpu_events()
    group = {**traces.COLLECTIVE, "Process Group Ranks": "[0, 1, ..., 7]", "Global rank start": 0,
             "Global rank stride": 1, "Group size": 8}  # fmt: skip
    sent = {**group, "Collective name": "send", "Dst Rank": 1, "dtype": "BFloat16"}
    odd = [
        *traces.gpu_events(1, args=sent), *traces.gpu_events(1, marked=False, args=group),
        traces.event("cpu_op", "record_param_comms", 1310, 4, **{"External id": 3, **sent}),
        traces.event("python_function", "train.py(7): main", 1000, 900, **{"Python id": 1}),
        {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 7, "cat": "ac2g", "name": "ac2g"},
    ]  # fmt: skip
    shapes = {"Input Dims": [[8320], []], "Input type": ["float", ""],
              "Concrete Inputs": ["", "", "1", "0"]}  # fmt: skip
    gloo = [
        one for step in range(2) for one in (
            traces.event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 999),
            traces.event("cpu_op", "c10d::allreduce_", 1000 * step + 9, 5, **shapes),
            traces.event("user_annotation", "gloo:all_reduce", 1000 * step + 10, 50, 7, **shapes),
        )
    ]  # fmt: skip
    made = [json.dumps(traces.trace(events)).encode() for events in (gpu, odd, gloo)]
    return [*made, *map(gzip.compress, made)]


def perfetto_traces() -> list[bytes]:
    """A rank with rows of all tables, some with nulls, and a host; the former also compressed, and
    a second part of it. Without the packet that files begin with."""
    from stepscope.perfetto.description import description_packet
    from stepscope.perfetto.packets import GroupWriter, clock_packet
    from stepscope.perfetto.process import host_group, host_packets, rank_group, rank_packets

    start = 1_766_000_000_000_000_000
    times = {"start_ns": [start, start + 50, start + 70], "duration_ns": [50, 20, 9]}
    lasted = {"step": [1, 2, 2], **times}
    tables = {
        "steps": _table(lasted),
        "phases": _table({**lasted, "phase": ["forward", "x", None], "wait_ns": [5, None, 7]}),
        "pauses": _table({**lasted, "kind": ["gc"] * 3}),
        "kernels": _table({**times, "rank": [0] * 3, "kernel": ["gemm", "a", "gemm"],
                           "stream": [7, 7, None], "enqueue_ns": [start - 5, None, start]}),
        "comm_ops": _table({
            "step": [1, 2, 2], "group": ["dp-0"] * 3, "op": ["AllReduce", "AllReduce", "Send"],
            "seq": [0, 1, 0], "peer": [-1, -1, 3], "bytes": [8, None, 0],
            "enqueue_ns": [start, start + 9, start], "start_ns": [start + 1, None, start + 1],
            "end_ns": [start + 5, None, None]}),
        "host_ops": _table({**lasted, "name": ["mm", "add", "mm"], "thread": [5, 5, -1]}),
        "stacks": _table({**times, "thread": ["MainThread"] * 3,
                          "frames": ["main;a", "main;b;c", "main"]}),
        "hardware": _table({"metric": ["cpu_util", "x", "cpu_util"], "ts_ns": times["start_ns"],
                            "value": [1, 2, 3]}),
    }  # fmt: skip
    rank, host = GroupWriter(rank_group(3, 11, "h")), GroupWriter(host_group("h"))
    first, again = (rank.head() + b"".join(rank_packets(rank, tables, start + 99)) for _ in "12")
    usage = host.head() + b"".join(host_packets(host, tables))
    usage += description_packet(Job("j", 12), 1)
    return [first, usage, gzip.compress(clock_packet() + first + again)]


def _table(columns: Mapping[str, list[Any]]) -> Table:
    """Texts, and numbers that may be null."""
    return Table({
        name: Strings.of(values) if any(isinstance(one, str) for one in values)
        else np.array([NULL if one is None else one for one in values], np.int64)
        for name, values in columns.items()
    })  # fmt: skip


TOPOLOGIES: Sequence[bytes] = (
    b"SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Switches=s0",
    b"""# two tiers
SWITCHNAME=leaf-0 nodes=n[00-15,20],m7 LinkSpeed=9
SwitchName=leaf-1 Nodes=n[16-19]
SwitchName=top \\
 Switches=leaf-[0-1]
""",
    b"BlockName=b0 Nodes=n[0-3]\nBlockSizes=4",
    b"""switches:
  - switch: leaf-0
    nodes: n[01-16]
  - switch: spine
    children: leaf-[0]
""",
    b"""[{"topology": "t", "cluster_default": true,
       "tree": {"switches": [{"switch": "s", "nodes": "n[1-2]"}]}}]""",
)

SCENARIOS: Sequence[bytes] = (
    b"ranks = 4\n[[fault]]\nname = 'gpu_slow'\nrank = 1\n",
    b"""ranks = 64
steps = 100
seed = 7
[parallelism]
tp = 4
pp = 4
microbatches = 8
[workload]
kind = "dense"
attention_ms = 9.0
[hardware]
nic_gb_per_s = 48.0
[noise]
checkpoint_every = 50
[[fault]]
name = "gpu_slow"
ranks = [3, 37]
factor = 1.5
from = 50
""",
)


def results() -> list[bytes]:
    verdict = {"kind": "straggler", "cause": "hardware", "ranks": [1], "devices": ["h/gpu0"],
               "summary": "rank 1 is slow", "confidence": 0.9, "right": True}  # fmt: skip
    result = {
        "id": "a", "row": "r", "family": "f", "ranks": 4, "dimensions": 1, "seed": 1,
        "fault": "gpu_slow", "slowdown": 1.5, "state": "s", "said": [], "steps_to_verdict": None,
        "computing_s": 0.5, "score": {"costly": True, "hangs": False, "alarms": 0},
    }  # fmt: skip
    body = {"schema": 1, "suite": "smoke", "fast": True, "seeds": [1], "version": "1",
            "results": [result], "unfit": [], "missing": 0, "conditions": []}  # fmt: skip
    return [
        json.dumps({**body, "results": results}).encode()
        for results in ([], [result], [{**result, "said": [verdict]}])
    ]

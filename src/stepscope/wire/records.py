"""The fixed-size records that producers send: 64 bytes, little-endian.

    0        2        4                8
    | kind   | flags  | ordinal        |  a … g: seven int64
    | uint16 | uint16 | uint32         |

`ordinal` is the number of optimizer steps that this process had finished when the record was made,
or UNKNOWN_ORDINAL; the processor turns it, or the time, into the step number. Times are
CLOCK_MONOTONIC nanoseconds of the producer's host, which NTP does not step; the processor adds the
offset from the hello packet. Strings are sent once, as names with an id
(`frames.Hello`, `frames.Names`).

| kind     | flags             | a    | b           | c        | d        | e       | f    | g     |
|----------|-------------------|------|-------------|----------|----------|---------|------|-------|
| EVENT    | LOAD or OPTIMIZER | name | start       | end      |          |         |      |       |
| PHASE    | ON_DEVICE or 0    | name | start       | duration | wait     | cpu     | batch| host  |
| COMM     | OPEN if running   |group | op id, peer | seq      | bytes    | enqueue | end  |blocked|
| PAUSE    |                   | name | start       | duration |          |         |      |       |
| COUNT    |                   | name | value       | time     | since    |         |      |       |
| KERNEL   |                   | name | stream      | start    | duration | enqueue |launch|       |
| TRANSFER |                   | nic  | peer        | start    | end      | bytes   |posted| done  |

Names and groups are ids; `batch` is the microbatch. A KERNEL record is one kernel, memory copy or
memory set of a device, sent after it has ended, with times on the host's clock. `enqueue` is the
time of its launch, -1 if unknown; `launch` is CUPTI's correlation number of that call modulo 2^32,
0 if unknown. A TRANSFER record has the network requests of one connection in one interval; `nic` is
-1 if the adapter is unknown.

A PHASE ON_DEVICE has the device's start and duration, on the host's clock; `host` is when the host
began it, and `wait` is -1 if the device may have waited for other ranks.

In a COMM record `b` is `op id << 32 | (peer & 0xffffffff)`; `bytes`, `end` and `blocked` are -1 if
unknown. `cpu` in a PHASE record is -1 if the clock cannot be read. A COUNT named `dropped.<table>`
counts rows lost between `since` and `time`; in other COUNTs `since` is 0.

For NCCL's own operators (NATIVE in `flags`) `group` is the name of a communicator, peers are ranks
in it, `g` is the start instead, and the flags describe how the operator ran:

    15    12 11     8 7      6 5       2   1      0
    | launch | dtype  | protocol | algorithm | NATIVE | OPEN |

`launch` counts the kernels of the communicator, cycling from 1 to 15: consecutive operators of one
kernel have the same number; 0 if unknown.

A TRANSFER record's flags are the id of the communicator in which `peer` is a rank.
"""

from __future__ import annotations

import struct
from enum import IntEnum

RECORD = struct.Struct("<HHIqqqqqqq")
RECORD_BYTES = 64
assert RECORD.size == RECORD_BYTES

UNKNOWN = -1
"""An integer field whose value the producer does not know."""
UNKNOWN_ORDINAL = (1 << 32) - 1
"""The ordinal of native producers, which do not observe optimizer steps."""


class RecordKind(IntEnum):
    EVENT = 1
    PHASE = 2
    COMM = 3
    PAUSE = 4
    COUNT = 5
    KERNEL = 6
    TRANSFER = 7


class EventKind(IntEnum):
    """`flags` of an EVENT: the two calls from which EROICA (section 4.1) detects steps."""

    LOAD = 0
    OPTIMIZER = 1


ON_DEVICE = 1
"""`flags` of a PHASE whose times are the device's."""

COMM_DONE = 0
COMM_OPEN = 1
"""`flags` of a COMM record: the operator has not finished yet; another record may follow."""
COMM_NATIVE = 2
"""In `flags` of a COMM record: reported by NCCL's plugin."""
ALGORITHM_SHIFT, PROTOCOL_SHIFT, DTYPE_SHIFT, LAUNCH_SHIFT = 2, 6, 8, 12
ALGORITHMS = (
    None, "tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat",
)  # fmt: skip
PROTOCOLS = (None, "ll", "ll128", "simple")
DTYPES = (
    None, "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""Values by code, as in native/nccl/codes.cpp; 0 is unknown. Types have torch's names."""

TABLE_OF_KIND = {
    RecordKind.EVENT: "steps",
    RecordKind.PHASE: "phases",
    RecordKind.COMM: "comm_ops",
    RecordKind.PAUSE: "pauses",
    RecordKind.COUNT: "hardware",
    RecordKind.KERNEL: "kernels",
    RecordKind.TRANSFER: "transfers",
}
"""The table that lacks rows when a record of this kind is lost."""


def pack_peer(op: int, peer: int) -> int:
    """Field `b` of a COMM record."""
    return (op << 32) | (peer & 0xFFFFFFFF)


def unpack_peer(field: int) -> tuple[int, int]:
    """(op id, peer) from field `b` of a COMM record."""
    peer = field & 0xFFFFFFFF
    return field >> 32, peer - (1 << 32) if peer >= 1 << 31 else peer

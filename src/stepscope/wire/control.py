"""Requests: what the processor asks of a producer, and what `stepscope run` asks of it.

Each is the payload of a CONTROL packet, a JSON object; what the asked does not know in it, it
leaves alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from stepscope.errors import WireError
from stepscope.wire.frames import PacketKind, unpack

AS_USUAL = 1 << 16
"""In place of NCCL's events, beyond whose bits it is: those that the plugin watches where nobody
asked for others."""
MOST_COUNTERS_HZ, MOST_COUNTERS_SECONDS = 10_000, 600
"""Of counters: beyond that GPUs overflow, and folders do."""
_LONGEST_SECONDS = 60.0
"""A processor that asks for more is not believed: looks cost the training something."""


@dataclass(frozen=True)
class Hurry:
    """Tell at once what is in flight: somebody has stopped."""

    seconds: float
    """For how long."""


def encode_hurry(hurry: Hurry) -> bytes:
    """The payload of a CONTROL packet."""
    return json.dumps({"hurry_seconds": hurry.seconds}).encode()


def decode_hurry(data: bytes) -> Hurry:
    """What a packet asks for; of what is no request of ours, nothing for no time.

    Raises:
        WireError: it is no packet, or its payload no JSON object.
    """
    header, payload = unpack(data)
    if header.kind != PacketKind.CONTROL:
        raise WireError(f"a {header.kind.name} packet for a producer")
    seconds = _object(payload).get("hurry_seconds", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise WireError("hurry_seconds is no number")
    return Hurry(min(max(float(seconds), 0.0), _LONGEST_SECONDS))


def encode_flush(job: str) -> bytes:
    """The payload that asks a processor to store all it knows of a job, and to say so."""
    return json.dumps({"flush": job}).encode()


def decode_flush(payload: memoryview) -> str | None:
    """The job that is to be stored, of a CONTROL packet; None where nothing is to be."""
    return _job_in(payload, "flush")


def encode_follow(job: str) -> bytes:
    """The payload that asks a processor to say whenever it has stored something of a job."""
    return json.dumps({"follow": job}).encode()


def decode_follow(payload: memoryview) -> str | None:
    """The job that is to be told of; None where none is."""
    return _job_in(payload, "follow")


def encode_events(job: str, nccl_events: int) -> bytes:
    """The payload that asks a processor to have NCCL's plugin in a job's ranks here watch other
    events: bits of NCCL's activation mask, or AS_USUAL. It goes on to the ranks as it is."""
    return json.dumps({"watch": job, "nccl_events": nccl_events}).encode()


def decode_events(payload: memoryview) -> str | None:
    """The job whose ranks are to watch other events; None where none are."""
    return _job_in(payload, "watch")


def encode_relayed(ranks: int) -> bytes:
    """The payload that answers: so many ranks were told."""
    return json.dumps({"relayed": ranks}).encode()


def decode_relayed(payload: memoryview) -> int:
    """How many were told.

    Raises:
        WireError: it is no answer.
    """
    ranks = _object(payload).get("relayed")
    if not isinstance(ranks, int):
        raise WireError("no answer to a request to watch other events")
    return ranks


@dataclass(frozen=True)
class Counted:
    """How often the GPUs of a host were sampled, and what stood in the way."""

    samples: int
    lost: int
    troubles: tuple[str, ...] = ()


def encode_counters(hz: float, seconds: float) -> bytes:
    """The payload that asks a processor to sample counters of its GPUs so often and so long."""
    return json.dumps({"counters_hz": hz, "seconds": seconds}).encode()


def decode_counters(payload: memoryview) -> tuple[float, float] | None:
    """How often and how long they are to be sampled; None where they are not, or not sensibly."""
    try:
        said = _object(payload)
        hz, seconds = float(said["counters_hz"]), float(said["seconds"])
    except (WireError, KeyError, TypeError, ValueError):
        return None
    sensible = 1 <= hz <= MOST_COUNTERS_HZ and 0 < seconds <= MOST_COUNTERS_SECONDS
    return (hz, seconds) if sensible else None


def encode_counted(counted: Counted) -> bytes:
    """The payload that answers when that is over."""
    answer = {"samples": counted.samples, "lost": counted.lost, "troubles": counted.troubles}
    return json.dumps({"counted": answer}).encode()


def decode_counted(payload: memoryview) -> Counted:
    """What came of it.

    Raises:
        WireError: it is no answer.
    """
    try:
        said = _object(payload)["counted"]
        troubles = tuple(str(one) for one in said["troubles"])
        return Counted(int(said["samples"]), int(said["lost"]), troubles)
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("no answer to a request to sample counters") from error


def encode_parent(parent: int, stopped: int | None) -> bytes:
    """The payload by which a launcher says that it will tell which of its children stop, and that
    one just did."""
    return json.dumps({"parent": parent, "stopped": stopped}).encode()


def decode_parent(payload: memoryview) -> tuple[int, bool] | None:
    """Whose children are told of, and whether one has stopped; None where that is not said."""
    try:
        said = _object(payload)
    except WireError:
        return None
    parent = said.get("parent")
    if not isinstance(parent, int) or isinstance(parent, bool):
        return None
    return parent, said.get("stopped") is not None


def encode_stored(job: str) -> bytes:
    """The payload that says so; what was stored stands in the job's folder."""
    return json.dumps({"stored": job}).encode()


def encode_flushed(job: str, trouble: str | None) -> bytes:
    """The payload that answers: stored, or why not."""
    return json.dumps({"flushed": job, "trouble": trouble}).encode()


def decode_flushed(payload: memoryview) -> str | None:
    """Why a job was not stored; None when it was.

    Raises:
        WireError: it is no answer.
    """
    answer = _object(payload)
    if "flushed" not in answer:
        raise WireError("no answer to a request to store a job")
    trouble = answer.get("trouble")
    return None if trouble is None else str(trouble)


def _object(payload: memoryview) -> dict[str, Any]:
    try:
        value = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireError("a request that is no JSON") from error
    if not isinstance(value, dict):
        raise WireError("a request that is no JSON object")
    return value


def _job_in(payload: memoryview, request: str) -> str | None:
    try:
        job = _object(payload).get(request)
    except WireError:
        return None
    return job if isinstance(job, str) else None

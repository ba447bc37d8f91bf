"""Requests from the processor to producers, and from commands and launchers to the processor.

Each is the payload of a CONTROL packet: a JSON object. Receivers ignore unknown keys.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from stepscope.errors import WireError
from stepscope.wire.frames import MAX_TEXT, PacketKind, unpack

AS_USUAL = 1 << 16
"""A value outside NCCL's event bits: resets the plugin to the events that it watches by default."""
MOST_COUNTERS_HZ, MOST_COUNTERS_SECONDS = 10_000, 600
"""Limits of counter sampling: beyond them, GPU buffers overflow and job folders get too large."""
_MOST_NOTES = 10
"""In a reply, so that it fits into a packet."""
_MOST_FRAMES, _LONGEST_FRAME = 50, 400
"""Of a traceback, so that it fits into a packet."""
_LONGEST_SECONDS = 60.0
"""Requests for longer are capped: frequent checks cost the training time."""


@dataclass(frozen=True)
class Hurry:
    """Asks a producer to report outstanding operators immediately: a process has stopped."""

    seconds: float
    """For how long the producer does so."""


def encode_hurry(hurry: Hurry) -> bytes:
    """The payload of a CONTROL packet."""
    return json.dumps({"hurry_seconds": hurry.seconds}).encode()


def decode_hurry(data: bytes) -> Hurry:
    """Decodes a packet for a producer; other requests give zero seconds.

    Raises:
        WireError: it is not a packet, or its payload is not a JSON object.
    """
    seconds = _for_producer(data).get("hurry_seconds", 0.0)
    if type(seconds) not in (int, float) or (type(seconds) is float and math.isnan(seconds)):
        raise WireError("hurry_seconds is not a number")
    # capped first: no float holds an integer of 400 digits
    return Hurry(float(min(max(seconds, 0.0), _LONGEST_SECONDS)))


def encode_losses_stored() -> bytes:
    """The confirmation that the rows which a producer's hello named as lost are stored as such."""
    return json.dumps({"losses_stored": 1}).encode()


def decode_losses_stored(data: bytes) -> bool:
    """Whether a packet for a producer is this confirmation.

    Raises:
        WireError: as `decode_hurry`.
    """
    return _for_producer(data).get("losses_stored") == 1


def encode_flush(job: str, *, finish: bool = False) -> bytes:
    """A request to store everything of a job and to reply when done.

    Args:
        finish: the job has ended, so traces of its windows that wait are summarized first.
    """
    return json.dumps({"flush": job, **({"finish": True} if finish else {})}).encode()


def decode_flush(payload: memoryview) -> str | None:
    """The job to store; None if the payload is another request."""
    return _job_in(payload, "flush")


def decode_finish(payload: memoryview) -> bool:
    """From a request to store everything of a job: whether it is to be finished first."""
    return _object(payload).get("finish") is True


def encode_follow(job: str) -> bytes:
    """A request to be notified whenever something of a job was stored."""
    return json.dumps({"follow": job}).encode()


def decode_follow(payload: memoryview) -> str | None:
    """The job to follow; None if the payload is another request."""
    return _job_in(payload, "follow")


def encode_events(job: str, nccl_events: int) -> bytes:
    """A request that NCCL's plugin in a job's ranks on this host watches other events: bits of
    NCCL's activation mask, or AS_USUAL. The processor forwards it to the ranks unchanged."""
    return json.dumps({"watch": job, "nccl_events": nccl_events}).encode()


def decode_events(payload: memoryview) -> str | None:
    """The job whose ranks are to watch other events; None if it is another request."""
    return _job_in(payload, "watch")


def encode_relayed(ranks: int) -> bytes:
    """The reply: the number of ranks that the request was forwarded to."""
    return json.dumps({"relayed": ranks}).encode()


def decode_relayed(payload: memoryview) -> int:
    """The number of ranks that the request was forwarded to.

    Raises:
        WireError: it is not a reply.
    """
    ranks = _object(payload).get("relayed")
    if not isinstance(ranks, int):
        raise WireError("not a reply to a request to watch other events")
    return ranks


@dataclass(frozen=True)
class Counted:
    """The result of a counter window on one host: samples, losses and problems."""

    samples: int
    lost: int
    troubles: tuple[str, ...] = ()


def encode_counters(hz: float, seconds: float) -> bytes:
    """A request to sample counters of the host's GPUs at a rate for some seconds."""
    return json.dumps({"counters_hz": hz, "seconds": seconds}).encode()


def decode_counters(payload: memoryview) -> tuple[float, float] | None:
    """The rate and duration; None if it is another request or a value is out of range."""
    try:
        said = _object(payload)
        hz, seconds = float(said["counters_hz"]), float(said["seconds"])
    except (WireError, KeyError, TypeError, ValueError, OverflowError):
        return None
    sensible = 1 <= hz <= MOST_COUNTERS_HZ and 0 < seconds <= MOST_COUNTERS_SECONDS
    return (hz, seconds) if sensible else None


def encode_counted(counted: Counted) -> bytes:
    """The reply when the window is over."""
    answer = {"samples": counted.samples, "lost": counted.lost, "troubles": counted.troubles}
    return json.dumps({"counted": answer}).encode()


def decode_counted(payload: memoryview) -> Counted:
    """The result of the window.

    Raises:
        WireError: it is not a reply.
    """
    try:
        said = _object(payload)["counted"]
        troubles = tuple(str(one) for one in said["troubles"])
        return Counted(int(said["samples"]), int(said["lost"]), troubles)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError("not a reply to a request to sample counters") from error


def encode_parent(parent: int, stopped: int | None) -> bytes:
    """A launcher's message that it reports stopped children from now on, and whether one just
    stopped."""
    return json.dumps({"parent": parent, "stopped": stopped}).encode()


def decode_parent(payload: memoryview) -> tuple[int, bool] | None:
    """The launcher's pid and whether a child has stopped; None if it is another request."""
    try:
        said = _object(payload)
    except WireError:
        return None
    parent = said.get("parent")
    if not isinstance(parent, int) or isinstance(parent, bool):
        return None
    return parent, said.get("stopped") is not None


@dataclass(frozen=True)
class Leaving:
    """A rank's message that its process ends by itself, with the exception that ends it."""

    error: str | None = None
    frames: tuple[str, ...] = ()
    """Where that was raised, outermost first."""


def encode_leaving(leaving: Leaving) -> bytes:
    """The last message of a rank; a process that is killed cannot send it."""
    error = leaving.error
    frames = [frame[:_LONGEST_FRAME] for frame in leaving.frames[-_MOST_FRAMES:]]
    said = {"leaving": True, "error": error and error[:MAX_TEXT], "frames": frames}
    return json.dumps(said).encode()


def decode_leaving(payload: memoryview) -> Leaving | None:
    """Why the rank's process ends; None if it is another request."""
    try:
        said = _object(payload)
    except WireError:
        return None
    error = said.get("error")
    if said.get("leaving") is not True:
        return None
    frames = said.get("frames")
    kept = [one[:_LONGEST_FRAME] for one in frames if isinstance(one, str)] if (
        isinstance(frames, list)) else []  # fmt: skip
    return Leaving(error[:MAX_TEXT] if isinstance(error, str) else None,
                   tuple(kept[-_MOST_FRAMES:]))  # fmt: skip


def encode_exited(pid: int, returncode: int) -> bytes:
    """A parent's message that a child has exited, as `subprocess` reports it: a status, or minus
    the signal that killed it."""
    return json.dumps({"exited": pid, "returncode": returncode}).encode()


def decode_exited(payload: memoryview) -> tuple[int, int] | None:
    """The pid and its return code; None if it is another request."""
    try:
        said = _object(payload)
    except WireError:
        return None
    pid, returncode = said.get("exited"), said.get("returncode")
    if type(pid) is not int or type(returncode) is not int:
        return None
    return (pid, returncode) if 0 < pid < 1 << 31 and abs(returncode) < 1 << 31 else None


def encode_stored(job: str) -> bytes:
    """The notification that something of a job was stored."""
    return json.dumps({"stored": job}).encode()


def encode_flushed(job: str, trouble: str | None, notes: tuple[str, ...] = ()) -> bytes:
    """The reply to a flush: stored, or the reason why not, and what is missing in the recording."""
    more = {"notes": [note[:MAX_TEXT] for note in notes[:_MOST_NOTES]]} if notes else {}
    return json.dumps({"flushed": job, "trouble": trouble, **more}).encode()


def decode_notes(payload: memoryview) -> tuple[str, ...]:
    """From the reply to a flush: what is missing in the recording, one line each."""
    notes = _object(payload).get("notes", [])
    return tuple(str(note) for note in notes) if isinstance(notes, list) else ()


def decode_flushed(payload: memoryview) -> str | None:
    """Why a job was not stored; None if it was.

    Raises:
        WireError: it is not a reply.
    """
    answer = _object(payload)
    if "flushed" not in answer:
        raise WireError("not a reply to a request to store a job")
    trouble = answer.get("trouble")
    return None if trouble is None else str(trouble)


def _for_producer(data: bytes) -> dict[str, Any]:
    header, payload = unpack(data)
    if header.kind != PacketKind.CONTROL:
        raise WireError(f"a {header.kind.name} packet sent to a producer")
    return _object(payload)


def _object(payload: memoryview) -> dict[str, Any]:
    try:
        value = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireError("a request that is not JSON") from error
    if not isinstance(value, dict):
        raise WireError("a request that is not a JSON object")
    return value


def _job_in(payload: memoryview, request: str) -> str | None:
    try:
        job = _object(payload).get(request)
    except WireError:
        return None
    return job if isinstance(job, str) else None

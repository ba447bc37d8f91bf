"""Requests to profile some steps, from a processor to ranks, and the ranks' replies.

Each is the payload of a CONTROL packet: a JSON object. Receivers ignore unknown keys.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.errors import WireError
from stepscope.wire.frames import MAX_TEXT

LONGEST_SECONDS = 600.0
"""Limit of a window: beyond it, a profiler needs more memory than a rank can spare. Our choice."""
_INT64 = 1 << 63


@dataclass(frozen=True)
class RankProfile:
    """Asks one rank to profile from one step to another, both included.

    A rank counts its optimizer calls (ordinals); the processor knows which step each belongs to.
    """

    window: str
    """The name of the window: the same on all ranks of the job."""
    first_ordinal: int
    """The first ordinal that is profiled; negative: begin at once (the job is stuck)."""
    last_ordinal: int
    """The last one."""
    seconds: float
    """The window ends after this time in any case."""
    path: str
    """Where the rank writes its trace (`torch.profiler`, Chrome format, gzip)."""


@dataclass(frozen=True)
class Profiled:
    """A rank's reply: its trace is written, or why there is none."""

    window: str
    path: str
    first_ordinal: int
    last_ordinal: int
    start_ns: int
    """Wall-clock time at which the profiler was running."""
    end_ns: int
    trouble: str | None = None
    """Why nothing was recorded; None: the trace is complete at `path`."""


def encode_profile(request: RankProfile) -> bytes:
    """The payload of a CONTROL packet to a rank."""
    return json.dumps({"profile": asdict(request)}).encode()


def decode_profile(payload: memoryview) -> RankProfile | None:
    """The request; None if the payload is another one.

    Raises:
        WireError: it asks to profile, but not in a way that makes sense.
    """
    asked = _section(payload, "profile")
    if asked is None:
        return None
    try:
        seconds = float(asked["seconds"])
        first, last = _whole(asked["first_ordinal"]), _whole(asked["last_ordinal"])
        window, path = _text(asked["window"]), _text(asked["path"], most=4096)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError("a request to profile without its steps, its time or its path") from error
    if not (0 < seconds < math.inf) or last < first:
        raise WireError("a request to profile no time or no step")
    return RankProfile(window, first, last, min(seconds, LONGEST_SECONDS), path)


def encode_profiled(result: Profiled) -> bytes:
    """The payload of a CONTROL packet to the processor."""
    return json.dumps({"profiled": asdict(result)}).encode()


def decode_profiled(payload: memoryview) -> Profiled | None:
    """A rank's reply; None if the payload is something else.

    Raises:
        WireError: it is a reply without its window, its steps or its times.
    """
    said = _section(payload, "profiled")
    if said is None:
        return None
    try:
        trouble = said.get("trouble")
        return Profiled(
            window=_text(said["window"]),
            path=_text(said["path"], most=4096),
            first_ordinal=_whole(said["first_ordinal"]),
            last_ordinal=_whole(said["last_ordinal"]),
            start_ns=_whole(said["start_ns"]),
            end_ns=_whole(said["end_ns"]),
            trouble=None if trouble is None else str(trouble)[:MAX_TEXT],
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError("a reply to a request to profile without its steps or times") from error


def _section(payload: memoryview, name: str) -> dict[str, Any] | None:
    try:
        value = json.loads(bytes(payload))
    except (ValueError, RecursionError):
        return None
    section = value.get(name) if isinstance(value, dict) else None
    return section if isinstance(section, dict) else None


def _whole(value: object) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError("not a whole number of 64 bits")
    return value


def _text(value: object, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or not value or len(value) > most or "\0" in value:
        raise ValueError("not a text")
    return value

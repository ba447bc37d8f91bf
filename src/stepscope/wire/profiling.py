"""Requests to profile some steps: to all processors of a job, to a rank, and the rank's reply.

`ProfileOrder` is an object in the job folder, `control/profile-<window>.json`; the other two are
payloads of CONTROL packets. Each is a JSON object. Readers ignore unknown keys.
"""

from __future__ import annotations

import json
import math
import string
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast, get_args

from stepscope.errors import WireError
from stepscope.wire.frames import MAX_TEXT

LONGEST_SECONDS = 600.0
"""Limit of a window: beyond it, a profiler needs more memory than a rank can spare. Our choice."""
MOST_ORDERED_RANKS = 100_000
"""Limit of the ranks that an order names, as it is read from a file. Our choice."""
_INT64 = 1 << 63
_LONGEST_WINDOW = 100
_IN_WINDOW = frozenset(string.ascii_letters + string.digits + "._-")

Why = Literal["user", "degradation", "blockage", "stall"]
"""Who asked for a window, or what was detected."""


@dataclass(frozen=True)
class ProfileOrder:
    """Asks all processors of a job to have its ranks profile the same steps, both included."""

    window: str
    """Its name. It is part of file names: letters, digits and, but not in front, `._-`."""
    first_step: int
    """The first step that is profiled; negative: begin at once (the job is stuck)."""
    last_step: int
    ranks: tuple[int, ...]
    """Which ranks; none: all."""
    seconds: float
    """The window ends after this time in any case."""
    why: Why
    asked_ns: int
    """Wall-clock time of the request."""
    suspects: bool = False
    """Whether each host adds those of its ranks for which others seem to wait."""


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
    ordinals_per_step: int = 1
    """How many ordinals make a step. A rank may record fewer steps, but never a part of one."""


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
    note: str | None = None
    """What the trace leaves out of what was asked for, and why."""


def order_name(window: str) -> str:
    """The object of an order in the job folder."""
    return f"control/profile-{window}.json"


def encode_order(order: ProfileOrder) -> bytes:
    """The content of the object."""
    return json.dumps(asdict(order)).encode()


def decode_order(data: bytes) -> ProfileOrder:
    """The order in an object of a job folder, which anybody may have written.

    Raises:
        WireError: it is not an order, or not one that makes sense.
    """
    try:
        asked = json.loads(data)
        order = ProfileOrder(
            window=_window(asked["window"]),
            first_step=_whole(asked["first_step"]),
            last_step=_whole(asked["last_step"]),
            ranks=_ranks(asked["ranks"]),
            seconds=float(asked["seconds"]),
            why=_why(asked["why"]),
            asked_ns=_whole(asked["asked_ns"]),
            suspects=asked.get("suspects", False) is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError("not an order to profile some steps") from error
    if not (0 < order.seconds < math.inf) or order.last_step < order.first_step:
        raise WireError("an order to profile no time or no step")
    return replace(order, seconds=min(order.seconds, LONGEST_SECONDS))


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
        per_step = max(_whole(asked.get("ordinals_per_step", 1)), 1)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError("a request to profile without its steps, its time or its path") from error
    if not (0 < seconds < math.inf) or last < first:
        raise WireError("a request to profile no time or no step")
    return RankProfile(window, first, last, min(seconds, LONGEST_SECONDS), path, per_step)


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
        trouble, note = said.get("trouble"), said.get("note")
        return Profiled(
            window=_text(said["window"]),
            path=_text(said["path"], most=4096),
            first_ordinal=_whole(said["first_ordinal"]),
            last_ordinal=_whole(said["last_ordinal"]),
            start_ns=_whole(said["start_ns"]),
            end_ns=_whole(said["end_ns"]),
            trouble=None if trouble is None else str(trouble)[:MAX_TEXT],
            note=None if note is None else str(note)[:MAX_TEXT],
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


def _window(value: object) -> str:
    name = _text(value, most=_LONGEST_WINDOW)
    if name[0] in "._-" or not all(character in _IN_WINDOW for character in name):
        raise ValueError("not the name of a window")
    return name


def _ranks(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_ORDERED_RANKS:
        raise ValueError("not a list of ranks")
    ranks = tuple(_whole(rank) for rank in value)
    if ranks and min(ranks) < 0:
        raise ValueError("a negative rank")
    return ranks


def _why(value: object) -> Why:
    if value not in get_args(Why):
        raise ValueError("no reason to profile")
    return cast("Why", value)


def _whole(value: object) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError("not a whole number of 64 bits")
    return value


def _text(value: object, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or not value or len(value) > most or "\0" in value:
        raise ValueError("not a text")
    return value

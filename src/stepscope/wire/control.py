"""The one message that flows back: what the processor asks of a producer.

Its payload is a JSON object; what a producer does not know in it, it leaves alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from stepscope.errors import WireError
from stepscope.wire.frames import PacketKind, unpack

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


def _object(payload: memoryview) -> dict[str, Any]:
    try:
        value = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireError("a request that is no JSON") from error
    if not isinstance(value, dict):
        raise WireError("a request that is no JSON object")
    return value

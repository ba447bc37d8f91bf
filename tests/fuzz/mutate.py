"""Changes of an input that keep its form, which libFuzzer's own changes mostly break."""

from __future__ import annotations

import json
import math
import random
from typing import Any

MOST_CHANGES = 4
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, -0.5, 1 << 31, 1 << 63, -(1 << 63), 10**400, math.inf,
    math.nan, "", "0", "-1", "\x00", "\ud800", "[0, 1]", "x" * 5000, [], {}, [[]], [None], [0, 0],
)  # fmt: skip


def in_place(data: bytes, chance: random.Random) -> bytes:
    """Some bytes are others. An insertion would make a file with offsets in it unreadable, and what
    lies behind the check of that would never be reached."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, MOST_CHANGES)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def other_json(data: bytes, chance: random.Random) -> bytes | None:
    """JSON with other values in some places, or without them; None if the input is not JSON."""
    try:
        tree = [json.loads(data)]
        for _ in range(chance.randint(1, MOST_CHANGES)):
            _change(tree, chance)
        return json.dumps(tree[0]).encode() if tree else b""
    except (ValueError, RecursionError):
        return None


def _change(tree: list[Any], chance: random.Random) -> None:
    places = _places(tree)
    if not places:
        return
    inside, key = chance.choice(places)
    match chance.randrange(4):
        case 0:
            del inside[key]
        case 1:
            other, place = chance.choice(places)
            inside[key] = json.loads(json.dumps(other[place]))
        case _:
            inside[key] = json.loads(json.dumps(chance.choice(ODD)))


def _places(tree: list[Any]) -> list[tuple[Any, Any]]:
    """Every container with each of its keys or positions."""
    found: list[tuple[Any, Any]] = []
    ahead: list[Any] = [tree]
    while ahead:
        one = ahead.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        found += [(one, key) for key in keys]
        ahead += [one[key] for key in keys if isinstance(one[key], dict | list)]
    return found

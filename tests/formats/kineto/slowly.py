"""A slow version of the native scanner: the standard library's JSON, one event at a time."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from stepscope.formats.kineto.calls import COMMUNICATES
from stepscope.formats.kineto.recording import _CATEGORIES
from stepscope.window import NULL


class Members(dict[str, Any]):
    """An object that remembers names that came twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


Row = tuple[Any, ...]
NUMBER, TIME, TEXT = (int, Decimal, str, type(None)), (int, Decimal, type(None)), (str, type(None))
FIELDS: dict[str, tuple[type, ...]] = {
    "ph": (str,), "cat": TEXT, "name": TEXT, "ts": TIME, "dur": TIME, "tid": NUMBER, "pid": NUMBER,
    "args": (Members, type(None)),
}  # fmt: skip
CALL: dict[str, tuple[type, ...]] = {
    "Collective name": TEXT, "In msg nelems": NUMBER, "Out msg nelems": NUMBER, "dtype": TEXT,
    "Group size": NUMBER, "Process Group Name": NUMBER, "Process Group Description": TEXT,
    "Process Group Ranks": TEXT, "Global rank start": NUMBER, "Global rank stride": NUMBER,
    "Src Rank": NUMBER, "Dst Rank": NUMBER, "Input Dims": (object,), "Input type": (object,),
    "Concrete Inputs": (object,),
}  # fmt: skip
NUMBERS = ("External id", "correlation", "stream", "Python id", "Python parent id", "Seq")
ARGUMENTS = {**dict.fromkeys(NUMBERS, NUMBER), **CALL}
NO_JSON = re.compile(r"(?<=[:\s,\[])-?(?:nan(?:\(\w*\))?|inf(?:inity)?)(?=\s*[,}\]])", re.I)


@dataclass
class Slow:
    """Rows by table, with names, threads and calls as they are instead of their numbers."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    unreadable: int = 0
    impossible: int = 0


def slowly(text: bytes) -> Slow:
    """The events of bytes that begin behind the bracket of an array."""
    found = Slow()
    for element in elements(text.decode("latin-1")):
        event = decoded(element.encode("latin-1").decode("utf-8", "replace"))
        if event is None:
            found.unreadable += 1
        elif event.get("ph", "") == "X" and event.get("cat") in _CATEGORIES:
            keep(event, _CATEGORIES[event["cat"]], found)
    return found


def elements(text: str) -> list[str]:
    """Up to the array's end; brackets in strings do not count."""
    found, begin, depth, quoted, slashes = [], 0, 0, False, 0
    for at, char in enumerate(text):
        if char == '"' and slashes % 2 == 0:
            quoted = not quoted
        elif not quoted and char in "{[":
            depth += 1
        elif not quoted and char in "}]":
            depth -= 1
            if depth < 0:
                break
            if depth == 0:
                found.append(text[begin : at + 1].lstrip(", \t\r\n"))
                begin = at + 1
        slashes = slashes + 1 if char == "\\" else 0
    return found


def decoded(text: str) -> Members | None:
    for attempt in (text, NO_JSON.sub("null", text)):
        try:
            event = json.loads(attempt, parse_float=number, parse_constant=lambda _: None,
                               object_pairs_hook=Members)  # fmt: skip
        except (ValueError, RecursionError):
            continue
        return event if isinstance(event, Members) and well_typed(event) else None
    return None


def number(written: str) -> Decimal:
    try:
        value = Decimal(written)
    except ArithmeticError:  # its exponent is too large even for Decimal
        return Decimal("Infinity")
    return value if value.adjusted() < 400 else Decimal("Infinity")


def well_typed(event: Members) -> bool:
    return kinds_of(event, FIELDS) and all(
        kinds_of(args, ARGUMENTS)
        for name, args in event.pairs
        if name == "args" and args is not None
    )


def kinds_of(members: Members, kinds: dict[str, tuple[type, ...]]) -> bool:
    return all(of(value, kinds[name]) for name, value in members.pairs if name in kinds)


def of(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (not isinstance(value, bool) or object in kinds)


def keep(event: dict[str, Any], kind: str, found: Slow) -> None:
    start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur") or 0)
    if start == NULL or duration < 0:
        found.impossible += 1
        return
    args = event.get("args") or {}
    name, thread = event.get("name") or "", event.get("tid")
    id, parent = (whole(args.get(word)) for word in ("Python id", "Python parent id"))
    correlation, stream = whole(args.get("correlation")), whole(args.get("stream"))
    call = (said(args), whole(args.get("External id")), whole(args.get("Seq")))
    times, called = (start, duration), (start, duration, name, thread)
    stream = whole(thread) if stream == NULL else stream
    found.rows[kind].append({
        "cpu": called, "mark": called, "python": (*called, id, parent),
        "runtime": (*times, name, correlation),
        "device": (*times, name, correlation, stream, *call),
    }[kind])  # fmt: skip
    if kind in ("cpu", "mark") and name.startswith(COMMUNICATES):
        found.rows["calls"].append((*called, *call))


def said(args: dict[str, Any]) -> dict[str, Any] | None:
    if args.get("Collective name") is None and not {"Input type", "Concrete Inputs"} & set(args):
        return None
    return {name: args[name] for name in CALL if name in args}


def nanoseconds(time: Any) -> int:
    if time is None or abs(time) > 10**30:
        return NULL
    ns = int((Decimal(time) * 1000).to_integral_value(ROUND_HALF_EVEN))
    return ns if abs(ns) < 2**61 else NULL


def whole(value: Any) -> int:
    try:
        exact = Decimal(value.strip() if isinstance(value, str) else value)
        return int(exact) if abs(exact) < 2**53 else NULL
    except (ArithmeticError, TypeError, ValueError):
        return NULL

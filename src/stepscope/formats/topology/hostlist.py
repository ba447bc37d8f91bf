"""Slurm's host lists: `node[001-004,7],login1` names five nodes.

Numbers keep their leading zeros. Several brackets in one name multiply: `rack[1-2]-node[1-3]` names
six nodes (Slurm's `slurm.conf`, "NodeName").
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MOST_NAMES = 1 << 20
"""Names of one list; more are a typing error in a range."""
LONGEST = 1 << 20
"""Characters of one list."""
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(text: str) -> tuple[str, ...]:
    """The names in a list, in order and without repetition.

    Raises:
        ValueError: the list is malformed; the message says where.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a list of {len(text)} characters")
    found: dict[str, None] = {}
    for part in _parts(text):
        for name in _names(part):
            found[name] = None
            if len(found) > MOST_NAMES:
                raise ValueError(f"{part!r} and those before it name over {MOST_NAMES} hosts")
    return tuple(found)


def _parts(text: str) -> Iterator[str]:
    """The parts between commas that are not in brackets."""
    depth, begin = 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(f"unmatched {char!r} in {_short(text)}")
        if char == "," and not depth:
            yield from _part(text[begin:at])
            begin = at + 1
    if depth:
        raise ValueError(f"unmatched '[' in {_short(text)}")
    yield from _part(text[begin:])


def _part(text: str) -> Iterator[str]:
    part = text.strip()
    if any(char.isspace() for char in part):
        raise ValueError(f"a space within {_short(part)}")
    if part:
        yield part


def _names(part: str) -> Iterator[str]:
    pieces = _BRACKETS.split(part)
    ranges = [_numbers(piece, part) for piece in pieces[1::2]]
    total = 1
    for numbers in ranges:
        total *= len(numbers)
    if total > MOST_NAMES:
        raise ValueError(f"{_short(part)} names {total} hosts")
    for chosen in itertools.product(*ranges):
        mixed = itertools.zip_longest(pieces[::2], chosen, fillvalue="")
        yield "".join(itertools.chain.from_iterable(mixed))


def _numbers(ranges: str, part: str) -> list[str]:
    """`001-003,7` as 001, 002, 003 and 7."""
    found: list[str] = []
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one.strip())
        if match is None:
            raise ValueError(f"{one.strip()!r} in {_short(part)} is no number or range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError(f"the range {one.strip()} in {_short(part)} runs backwards")
        if int(high) - int(low) >= MOST_NAMES:
            raise ValueError(f"the range {one.strip()} in {_short(part)} is too long")
        found += [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

"""Where the events of a JSON array begin and end, found on all bytes at once.

    {"a": "}\"", "b": [1]}, {…
    ^depth 0 → 1         ^depth 1 → 0: an event ends here

Braces count outside strings only; a quote ends a string unless an odd run of backslashes precedes
it. Everything is a few passes over the bytes, whatever they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Ints, Mask

Bytes = NDArray[np.uint8]
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1


@dataclass(frozen=True)
class Structure:
    """Ends (exclusive) of the whole elements of an array, and where the array itself ends."""

    ends: tuple[int, ...]
    closed_at: int | None


def scan(data: bytes) -> Structure:
    """The structure of bytes that begin between two elements of an array."""
    text = np.frombuffer(data, np.uint8)
    quotes = _quotes(text)
    brackets = np.flatnonzero(_DEPTH[text])
    outside = np.searchsorted(quotes, brackets) % 2 == 0
    brackets = brackets[outside]
    change = _DEPTH[text[brackets]]
    depth = np.cumsum(change, dtype=np.int64)
    closing = np.flatnonzero(depth < 0)
    stop = int(closing[0]) if closing.size else depth.size
    ends = brackets[:stop][(depth[:stop] == 0) & (change[:stop] < 0)] + 1
    return Structure(tuple(ends.tolist()), int(brackets[stop]) if closing.size else None)


def _quotes(text: Bytes) -> Ints:
    """Positions of the quotes that begin and end strings."""
    quotes = np.flatnonzero(text == _QUOTE)
    after = quotes[(quotes > 0) & (text[quotes - 1] == _BACKSLASH)]
    if not after.size:
        return quotes
    return quotes[~np.isin(quotes, after[_escaped(text, after)])]


def _escaped(text: Bytes, quotes: Ints) -> Mask:
    """Which quotes follow an odd number of backslashes."""
    slashes = np.flatnonzero(text == _BACKSLASH)
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    last = np.searchsorted(slashes, quotes) - 1
    run = begins[np.searchsorted(begins, last, side="right") - 1]
    odd: Mask = (last - run) % 2 == 0
    return odd

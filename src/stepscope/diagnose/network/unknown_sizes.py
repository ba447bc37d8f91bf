"""Operators whose bytes were not recorded: equal places move as much data in the same position.

In every step a program runs the same operators in the same order, so the n-th of a name in a place
is compared with the n-th elsewhere. That one place is given more data cannot be excluded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import NULL, Ints, Mask, Table, numbered, occurrence

UNKNOWN = 1
"""Stands for the bytes of an operator whose size was not recorded."""
UNEVEN = "AllToAll"
"""Its members may move unequal amounts by design, so without its bytes it shows nothing."""
POSITIONS = 128
"""Positions in a step that are distinguished; as many as size classes (`rates`). Our choice."""


def with_sizes(comm: Table) -> Table:
    """The operators with `UNKNOWN` in place of bytes that were not recorded."""
    if comm.has("bytes") and not any(
        (part.ints("bytes") == NULL).any() for _, part in comm.parts()
    ):
        return comm
    size = comm.ints("bytes") if comm.has("bytes") else np.full(len(comm), NULL)
    unknown = (size == NULL) & ~comm.strings("op").equals(UNEVEN)
    return comm.with_column("bytes", np.where(unknown, UNKNOWN, size))


Whole = NDArray[np.signedinteger[Any]]
"""Numbers of any width: there are millions of them."""


def by_position(kind: Whole, unknown: Mask, place: Whole, column: Whole, ended_ns: Ints) -> Whole:
    """A number for each kind of operator, of unknown size for each position in a step."""
    if not unknown.any():
        return kind
    found = kind.copy()
    same = numbered(*(each[unknown].astype(np.int64) for each in (kind, place, column)))
    found[unknown] += POSITIONS + occurrence(same, ended_ns[unknown]) % POSITIONS
    return found

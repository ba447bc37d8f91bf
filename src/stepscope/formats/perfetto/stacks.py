"""Call stacks from nested slices: the reverse of `stepscope.perfetto.stacks`.

Each stretch of time between two changes of the stack becomes a row. Lossy: a frame across a gap
between two samples has the gap, too, and so has its stack.
"""

from __future__ import annotations

import numpy as np

from stepscope.formats.perfetto.columns import same
from stepscope.perfetto.stacks import DEEPEST
from stepscope.window import Strings, Table

_NO_FRAME = "?"


class _Stretches:
    """Stretches of time with one stack each, from slices in drawing order."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = (*names, _NO_FRAME)
        self._open: list[tuple[int, int]] = []
        """The end and the name's number of each frame, the outermost first."""
        self._since_ns = 0
        self._is_new = False
        """Whether the innermost frame is not in any stretch yet."""
        self._known: dict[str, int] = {}
        self.begin: list[int] = []
        self.end: list[int] = []
        self.code: list[int] = []

    def until(self, time_ns: int) -> None:
        """Ends the frames that end until then."""
        while self._open and self._open[-1][0] <= time_ns:
            end_ns, _ = self._open[-1]
            if end_ns > self._since_ns or self._is_new:
                self._stretch(end_ns)
            self._open.pop()
            self._is_new = False

    def begins(self, begin_ns: int, end_ns: int, code: int) -> None:
        """A slice begins, inside of those that have not ended."""
        self.until(begin_ns)
        if self._open and begin_ns > self._since_ns:
            self._stretch(begin_ns)
        self._since_ns = begin_ns
        if len(self._open) < DEEPEST:
            inside = min(end_ns, self._open[-1][0]) if self._open else end_ns
            self._open.append((inside, code))
            self._is_new = True

    def _stretch(self, until_ns: int) -> None:
        stack = ";".join(self._names[code] for _, code in self._open)
        self.begin.append(self._since_ns)
        self.end.append(until_ns)
        self.code.append(self._known.setdefault(stack, len(self._known)))
        self._since_ns = until_ns

    def stacks(self) -> Strings:
        return Strings(np.array(self.code, np.int32), tuple(self._known))


def flattened(rank: int, thread: str | None, slices: Table) -> Table:
    """The stacks of one thread, from slices by begin and with callers before callees."""
    name = slices.strings("name")
    stretches = _Stretches(name.values)
    rows = zip(slices.ints("begin_ns").tolist(), slices.ints("end_ns").tolist(),
               name.codes.tolist(), strict=True)  # fmt: skip
    last_ns = 0
    for begin_ns, end_ns, code in rows:
        stretches.begins(begin_ns, end_ns, code)
        last_ns = max(last_ns, end_ns)
    stretches.until(last_ns)
    begin, end = np.array(stretches.begin, np.int64), np.array(stretches.end, np.int64)
    return Table({
        "rank": np.full(begin.size, rank),
        "thread": same(thread, begin.size),
        "start_ns": begin,
        "duration_ns": end - begin,
        "frames": stretches.stacks(),
    })  # fmt: skip

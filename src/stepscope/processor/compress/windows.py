"""Summarises the kernel events of a host's ranks for every minute that is over.

    add ─▶ [ window ][ window ][ window ]   by the end of a kernel, on the host's clock
               └─ over for GRACE_NS ─▶ Finished ─▶ rows of `kernel_summaries`

Pure: the caller passes the time. Windows are the same on all hosts, whose clocks differ little.
Memory is bounded: at most three windows, each with limited groups and octaves. Events that are too
late, impossible or without room are counted by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.processor.compress import compiled
from stepscope.processor.compress.modes import (
    MOST_BLOCKS,
    MOST_GROUPS,
    Histograms,
    Modes,
    packed,
)
from stepscope.trace.modes import WINDOW_NS
from stepscope.window import Ints, Strings

GRACE_NS = 5_000_000_000
"""How long a window waits for late events, and how far clocks may be ahead: a busy rank sends twice
a second (`state.steps.ON_THE_WAY_NS`), and CUPTI's buffers arrive late."""
MODE = ("count", "p50_ns", "p99_ns", "max_ns")
"""The values kept of each mode."""
_KEY = np.dtype([("rank", "<i8"), ("kernel", "<i8"), ("stream", "<i8")])


@dataclass(frozen=True)
class Lost:
    """Kernel events of one rank that no summary counts, and the interval in which they ended."""

    rank: int
    start_ns: int
    end_ns: int
    events: int

    def __add__(self, other: Lost) -> Lost:
        start, end = min(self.start_ns, other.start_ns), max(self.end_ns, other.end_ns)
        return Lost(self.rank, start, end, self.events + other.events)


@dataclass(frozen=True)
class Finished:
    """A window that is over: its modes, and the rank, kernel and stream of each group."""

    window_start_ns: int
    window_ns: int
    modes: Modes
    keys: NDArray[Any]

    def rows(self, name_of: Callable[[int, int], str | None]) -> Mapping[str, Any]:
        """Rows of `kernel_summaries`; `name_of` returns a kernel's name by its rank and number.

        Rows that are alike on all ranks are adjacent, which makes Parquet files a fifth smaller.
        """
        names = Strings.of([name_of(int(k["rank"]), int(k["kernel"])) for k in self.keys])
        modes = self._in_order(names)
        group = modes["group"]
        return {
            "rank": self.keys["rank"][group].astype(np.int32),
            "window_start_ns": np.full(len(modes), self.window_start_ns),
            "window_ns": np.full(len(modes), self.window_ns),
            "kernel": names.take(group),
            "stream": self.keys["stream"][group],
            "cluster": modes["cluster"].astype(np.int32),
            **{name: modes[name].copy() for name in MODE},
        }

    def _in_order(self, names: Strings) -> Modes:
        """Modes sorted by kernel, stream, cluster and rank; `names` are those of the groups."""
        group = self.modes["group"]
        rank, stream = self.keys["rank"][group], self.keys["stream"][group]
        return self.modes[np.lexsort((rank, self.modes["cluster"], stream, names.codes[group]))]


class _Open:
    """A window that is not over yet."""

    def __init__(self, most_groups: int, most_blocks: int) -> None:
        self._keys = compiled.Keys(most_groups)
        self._weights: dict[int, tuple[int, int]] = {}
        """Of each rank: events, and how many they stand for."""
        self._histograms = Histograms(most_groups, most_blocks)

    def add(self, rank: int, kernels: Ints, streams: Ints, durations_ns: Ints, parts: int) -> int:
        """Adds events; returns how many were refused."""
        events, stand_for = self._weights.get(rank, (0, 0))
        self._weights[rank] = events + len(kernels), stand_for + len(kernels) * parts
        groups = self._keys.codes(rank, packed(kernels), packed(streams))
        refused = self._histograms.add_packed(groups, packed(durations_ns))
        return refused.impossible + refused.no_room

    def finished(self, start_ns: int, window_ns: int) -> Finished:
        keys = np.frombuffer(self._keys.known(), _KEY)
        return Finished(start_ns, window_ns, self._weighted(self._histograms.modes(), keys), keys)

    def _weighted(self, modes: Modes, keys: NDArray[Any]) -> Modes:
        """With the counts of what the events of each rank stand for."""
        partly = {rank: n for rank, n in self._weights.items() if n[0] != n[1]}
        if not partly:
            return modes
        modes = modes.copy()
        for rank, (events, stand_for) in partly.items():
            of_rank = keys["rank"][modes["group"]] == rank
            modes["count"][of_rank] = np.rint(modes["count"][of_rank] * (stand_for / events))
        return modes

    @property
    def size_bytes(self) -> int:
        return self._histograms.size_bytes


class SummaryWindows:
    """The open windows of a host's ranks."""

    def __init__(
        self,
        window_ns: int = WINDOW_NS,
        most_groups: int = MOST_GROUPS,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        assert window_ns >= GRACE_NS, "a shorter window would have many of them open at a time"
        self._window_ns = window_ns
        self._room = most_groups, most_blocks
        self._open: dict[int, _Open] = {}
        self._oldest = 0
        self._lost: dict[int, Lost] = {}

    def add(
        self,
        rank: int,
        kernels: Ints,
        streams: Ints,
        durations_ns: Ints,
        ends_ns: Ints,
        now_ns: int,
        parts: int = 1,
    ) -> list[Finished]:
        """Takes one rank's events; returns the windows that are over.

        Args:
            kernels: numbers of the kernels' names, which may differ between ranks.
            ends_ns: when the kernels ended, by the clock of `now_ns`; a kernel that hung for an
                hour belongs to the minute of its end.
            parts: one in how many parts of the time they were recorded; counts are those of all.
        """
        done = self.tick(now_ns)
        self.count(rank, kernels, streams, durations_ns, ends_ns, now_ns, parts)
        return done

    def count(
        self,
        rank: int,
        kernels: Ints,
        streams: Ints,
        durations_ns: Ints,
        ends_ns: Ints,
        now_ns: int,
        parts: int = 1,
    ) -> None:
        """Takes one rank's events like `add`, without ending windows."""
        if not len(ends_ns):
            return
        newest = (now_ns + GRACE_NS) // self._window_ns
        first, last = (int(end) // self._window_ns for end in (ends_ns.min(), ends_ns.max()))
        if first < self._oldest or last > newest:
            numbers = ends_ns // self._window_ns
            outside = (numbers < self._oldest) | (numbers > newest)
            self._lose(rank, ends_ns[outside], int(outside.sum()))
        for number in range(max(first, self._oldest), min(last, newest) + 1):
            # nearly always all of them
            inside = slice(None) if first == last else ends_ns // self._window_ns == number
            refused = self._window(number).add(
                rank, kernels[inside], streams[inside], durations_ns[inside], parts
            )
            self._lose(rank, ends_ns[inside], refused)

    def tick(self, now_ns: int) -> list[Finished]:
        """Returns the windows that are over by now."""
        oldest = (now_ns - GRACE_NS) // self._window_ns
        if oldest <= self._oldest:
            return []
        self._oldest = oldest
        return self._close([number for number in sorted(self._open) if number < oldest])

    def finish(self) -> list[Finished]:
        """Returns all windows, over or not, because the job has ended."""
        return self._close(sorted(self._open))

    def take_lost(self) -> list[Lost]:
        """The events lost since the last call, by rank."""
        lost, self._lost = self._lost, {}
        return list(lost.values())

    @property
    def size_bytes(self) -> int:
        return sum(window.size_bytes for window in self._open.values())

    def _window(self, number: int) -> _Open:
        if number not in self._open:
            self._open[number] = _Open(*self._room)
        return self._open[number]

    def _close(self, numbers: list[int]) -> list[Finished]:
        return [
            self._open.pop(number).finished(number * self._window_ns, self._window_ns)
            for number in numbers
        ]

    def _lose(self, rank: int, ends_ns: Ints, events: int) -> None:
        if events:
            lost = Lost(rank, int(ends_ns.min()), int(ends_ns.max()), events)
            self._lost[rank] = self._lost[rank] + lost if rank in self._lost else lost

"""Which process records a rank. A second one that claims the same rank is refused.

Two runs under one job name, or a script that starts the same rank twice, would mix their rows. A
rank that was restarted is accepted: its old process has gone, even if its connection has not been
read to the end yet. Native producers are not checked: they do not know the rank that a script sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stepscope.errors import WireError
from stepscope.processor.records.normalise import Rows
from stepscope.processor.state.natives import is_native
from stepscope.processor.state.producer import Producer
from stepscope.wire.frames import Hello

MOST_REFUSED = 64
"""Remembered processes per rank: beyond that the count no longer matters."""


class ClaimedError(WireError):
    """Another live process records this rank."""


class Claims:
    """The refused processes, by job and rank."""

    def __init__(self, is_live: Callable[[int], bool]) -> None:
        """`is_live` tells whether the process at the other end of a connection still lives."""
        self._is_live = is_live
        self._refused: dict[str, dict[int, set[int]]] = {}

    def check(self, connection: int, hello: Hello, producers: Mapping[int, Producer]) -> None:
        """Raises ClaimedError if another live process has claimed the rank of a hello."""
        for at, other in producers.items():
            if at != connection and _is_same_rank(hello, other.hello) and self._is_live(at):
                message = (
                    f"rank {hello.rank} of {hello.job} is recorded from process {other.hello.pid},"
                    f" so process {hello.pid} is not"
                )
                raise ClaimedError(message)

    def refused(self, hello: Hello) -> Rows | None:
        """Counts a refused process; a row of `hardware` unless it was known already."""
        pids = self._refused.setdefault(hello.job, {}).setdefault(hello.rank, set())
        if hello.pid in pids or len(pids) >= MOST_REFUSED:
            return None
        pids.add(hello.pid)
        return {
            "rank": [hello.rank],
            "host": [hello.host],
            "metric": ["rank_claims_refused"],
            "ts_ns": [hello.wall_ns],
            "value": [float(len(pids))],
        }

    def notes(self, job: str) -> tuple[str, ...]:
        """One line per rank that more than one process claimed."""
        return tuple(
            f"rank {rank} was claimed by {len(pids) + 1} live processes at once; only the first "
            f"was recorded, not {', '.join(map(str, sorted(pids)))}"
            for rank, pids in sorted(self._refused.get(job, {}).items())
        )

    def forget(self, job: str) -> None:
        self._refused.pop(job, None)


def _is_same_rank(hello: Hello, other: Hello) -> bool:
    if is_native(hello) or is_native(other) or hello.pid == other.pid:
        return False
    return (hello.job, hello.rank) == (other.job, other.rank)

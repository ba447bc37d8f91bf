"""A job that stands: the operators that somebody waits in, and who keeps them open."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnose.operators.liveness import Pace
from stepscope.diagnose.operators.open_ops import Open, is_finished, open_operators
from stepscope.window import Window

_NEVER = 2**63


@dataclass(frozen=True)
class Scene:
    """All open operators and who keeps them open."""

    open: tuple[Open, ...]
    now_ns: int
    pace: Pace

    @property
    def waiting(self) -> frozenset[int]:
        return frozenset().union(*(one.waiting for one in self.open))

    @property
    def missed(self) -> tuple[Open, ...]:
        return tuple(one for one in self.open if one.absent)

    @property
    def full(self) -> tuple[Open, ...]:
        """Operators that all members entered, whose data does not move."""
        return tuple(one for one in self.open if not one.absent)

    @property
    def roots(self) -> frozenset[int]:
        """Absent ranks that nothing keeps which comes before the operator they are missed in.

        A device waits on several streams at once: what its host called after the operator it is
        missed in does not keep it from coming.
        """
        held, jammed = _since(self.missed), self._jammed
        return frozenset(
            rank
            for one in self.missed
            for rank in one.absent - jammed
            if held.get(rank, _NEVER + 1) > one.called_ns.get(rank, _NEVER)
        )

    @property
    def _jammed(self) -> frozenset[int]:
        """Ranks whose device has not come to an operator because data before it does not move.

        Their hosts may have called nothing since: they wait for their devices now and then.
        """
        moving = _since(self.full)
        return frozenset(
            rank
            for one in self.missed
            for rank in one.unreached
            if moving.get(rank, _NEVER) <= one.called_ns[rank]
        )

    @property
    def jam(self) -> Open | None:
        """The first operator whose data does not move, where that is what keeps others."""
        kept = [one for one in self.full if one.waiting & self._jammed]
        return min(kept, key=lambda one: one.since_ns, default=None)

    @property
    def since_ns(self) -> int:
        return min(one.since_ns for one in self.open)


def _since(waited: tuple[Open, ...]) -> dict[int, int]:
    """When each rank called the first of some operators in which it waits."""
    since: dict[int, int] = {}
    for one in waited:
        for rank in one.waiting:
            since[rank] = min(since.get(rank, _NEVER), one.called_ns[rank])
    return since


def read_scene(window: Window, now: int, at_pace: Pace) -> Scene | None:
    """The open operators of a window; None where none is, or nobody recorded ends."""
    comm = window.table("comm_ops")
    if comm is None or not (comm.has("end_ns") or comm.has("state")):
        return None
    finished = is_finished(comm)
    if finished.all():
        return None
    return Scene(open_operators(window, comm, finished), now, at_pace)

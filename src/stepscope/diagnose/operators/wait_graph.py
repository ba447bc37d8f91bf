"""Which rank waits for which, over all blocked operators of flight recorder dumps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from stepscope.diagnose.operators.blocked import Blocked
from stepscope.diagnose.operators.equals import Departure, equal_lanes, families, find_departures
from stepscope.diagnose.operators.numbers import find_misnumbered
from stepscope.diagnose.operators.progress import Recording


@dataclass(frozen=True)
class WaitGraph:
    """All blocked operators, and which rank waits for which."""

    recording: Recording
    blocked: tuple[Blocked, ...]

    @cached_property
    def blockers(self) -> Mapping[int, frozenset[int]]:
        """The ranks that each waiting rank waits for: in the operators in which its device stands,
        not in those that are queued behind them."""
        found: dict[int, set[int]] = {rank: set() for one in self.blocked for rank in one.waiting}
        for one in self.blocked:
            for rank in one.standing:
                found[rank].update(one.blockers - {rank})
        return {rank: frozenset(held) for rank, held in found.items()}

    @cached_property
    def waiting(self) -> frozenset[int]:
        return frozenset(self.blockers)

    @cached_property
    def roots(self) -> frozenset[int]:
        """Ranks that others wait for and that do not wait themselves."""
        held = self._held
        free = held - self.waiting
        late = frozenset().union(*(one.late for one in self.blocked if one.standing - one.late))
        # a late rank that waits only in operators that no rank blocks is late by itself
        found = free | {rank for rank in late if not self.blockers.get(rank)}
        if not found and self.idle:
            return self.idle
        if not found and self.stalled():
            return found
        queued = frozenset().union(*(one.missing for one in self.blocked))
        return found | (queued - self.waiting)  # a second rank may be missing in what is queued

    @cached_property
    def idle(self) -> frozenset[int]:
        """Ranks that others wait for and whose device has not started the first operator that is
        open: it stands in something else, before that."""
        if not self.recording.reports_starts:
            return frozenset()
        begun = self.recording.standing & self.recording.comm.strings("seen").equals("started")
        ranks = frozenset(self.recording.comm.ints("rank")[begun].tolist())
        return (self._held & self.waiting) - ranks - self.recording.front_lost

    @cached_property
    def _held(self) -> frozenset[int]:
        return frozenset().union(*self.blockers.values())

    @cached_property
    def circling(self) -> frozenset[int]:
        """Ranks that wait for one another, and those that wait for these."""
        left = dict(self.blockers)
        while True:
            ends = {rank for rank, held in left.items() if not held & left.keys()}
            if not ends:
                return frozenset(left)
            for rank in ends:
                del left[rank]

    @cached_property
    def singled_out(self) -> frozenset[int]:
        """The roots, or those of them that are absent by themselves.

        If sends are not recorded, a rank that waits for one looks absent. Then it is absent
        together with its whole group, while the partners of the rank that stopped wait for it.
        """
        if self.recording.records_sends or len(self.roots) < 2:
            return self.roots
        found = (self._alone_in(family) for family in families(self.recording))
        return min((few for few in found if few), key=len, default=self.roots)

    def _alone_in(self, family: list[str]) -> frozenset[int]:
        """The roots that a partner in a group of this family waits for, if all other roots are
        absent from it with their whole group."""
        few = frozenset().union(*(one.blockers for one in self.blocked if one.group in family))
        others = self.roots - few
        groups = [self.recording.members(group) & self.recording.recorded for group in family]
        in_unison = frozenset().union(*(group for group in groups if group <= others))
        return few & self.roots if others <= in_unison else frozenset()

    def departures(self) -> list[Departure]:
        """How those ranks left the common order of calls that may have caused the hang: roots,
        lone callers, and all that wait, if none of the roots has a dump."""
        lone = (one.waiting for one in self.blocked if len(one.waiting) <= len(one.absent))
        known = self.roots & self.recording.recorded
        suspects = known.union(*lone) if known else self.waiting
        found = find_departures(self.recording, suspects & self.recording.recorded)
        return found or find_misnumbered(self.recording)

    def new_peers(self) -> tuple[Blocked, ...]:
        """Sends and receives to a peer with which the rank never exchanged a message before."""
        return tuple(one for one in self.blocked if one.new_peer)

    def stalled(self) -> tuple[Blocked, ...]:
        """Operators that no rank blocks, if the recorders would have noticed their end."""
        unblocked = (one for one in self.blocked
                     if one.standing and not one.blockers and not one.unknown)  # fmt: skip
        ends_known = self.recording.reports_ends or self.recording.expired.any()
        return tuple(unblocked) if ends_known else ()

    def blocked_by(self, ranks: Iterable[int]) -> tuple[Blocked, ...]:
        """The operators that these ranks block, those in which devices stand first."""
        wanted = frozenset(ranks)
        found = (one for one in self.blocked if one.blockers & wanted)
        return tuple(sorted(found, key=lambda one: not one.standing))

    def lone_caller(self, blocked: tuple[Blocked, ...], roots: frozenset[int]) -> int | None:
        """The single rank that made a call that none of its peers made, if all of these stopped at
        the same point before it."""
        one = blocked[0]
        if len(blocked) > 1 or len(one.waiting | one.left) != 1 or roots != one.absent:
            return None
        if self.recording.may_hide_sends:  # its peers may wait in a pipeline, for one of them
            return None
        lanes = self.recording.lanes.get(one.group, {})
        ends = {lanes[rank].last for rank in roots if rank in lanes}
        if len(roots) < 2:  # of two ranks neither is odd, unless equal groups show it
            equal = equal_lanes(self.recording, one.group)
            ends |= {lane.last for lane in equal}
            if len(equal) < 2 or self.waiting != one.waiting:
                return None
        return min(one.waiting) if ends == {one.seq - 1} else None

"""Where ranks fell out of step, from what each one's flight recorder last held.

Fault: a rank that never entered a collective, entered another one, or with other sizes or types;
a send or receive nobody answered; ranks that wait in a circle; data that does not move.
Paper: none of ours. VenusTrace (Jiao et al., 2025), section 3.3, names the rank with missing calls;
torchfrtrace (PyTorch) compares what members called at one sequence number, group by group.
Where we differ: the order alone decides, no clock; waiting is followed from group to group to the
ranks that wait for nobody, so victims are counted and not named; a missing or older dump accuses
nobody while a recorded rank explains the hang.
Cost: one sort of the operators, then work for each rank's first open operator in each group.
Cannot see: when a dump was taken, thus how long a wait has lasted (`docs/methods` says what is done
about it); what a rank does after its last call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.finding import Cause, Stuck, Value
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.blocked import (
    SLOW_DUMP_NS,
    Blocked,
    find_blocked,
    is_young,
    until_ns,
)
from stepscope.diagnose.operators.calls import Clash, find_clashes
from stepscope.diagnose.operators.liveness import latest_stack
from stepscope.diagnose.operators.progress import Recording
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import Window

COLUMNS = ("state", "call", "seen", "retired", "record", "given", "taken", "dumped_ns")
"""What only recorders' dumps have."""
SURE, LESS_SURE = 0.9, 0.6
"""Fewer are missing than wait; as many, or the dumps may have been written while all was well."""
UNSEEN_SURE = 0.5
"""A rank without a dump is likelier to be stuck than its file is to be lost."""
EXPIRED_SURE, NETWORK_SURE = 0.85, 0.6
"""All entered and nobody left: after the watchdog gave up, and before."""
MOST_SHOWN = 8
"""Calls told in a sentence."""
LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/", "<frozen")


class Desync:
    """The mismatch and the hang that Flight Recorder dumps show by order alone."""

    name = "desync"
    needs = Needs("comm_ops")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Stuck]:
        yield from find_desync(job.window)


def applies(window: Window) -> bool:
    """Whether the window was read from flight recorder dumps."""
    comm = window.table("comm_ops")
    return comm is not None and comm.has(*COLUMNS)


def find_desync(window: Window) -> tuple[Stuck, ...]:
    """The mismatch and the hang that the dumps show, the explaining one first."""
    comm = window.table("comm_ops")
    if comm is None or not applies(window):
        return ()
    recording = Recording(window, comm)
    scene = Scene(recording, tuple(find_blocked(recording)))
    clashes = find_clashes(recording)
    mismatch = _mismatch(scene, clashes[0]) if clashes else None
    hang = None if mismatch is not None and mismatch.unfinished else _hang(scene)
    if mismatch is not None and hang is not None and mismatch.group == hang.group:
        hang = None
    return tuple(one for one in (mismatch, hang) if one is not None)


@dataclass(frozen=True)
class Scene:
    """All that is blocked, and who waits for whom."""

    recording: Recording
    blocked: tuple[Blocked, ...]

    @cached_property
    def holders(self) -> Mapping[int, frozenset[int]]:
        """Whom each waiting rank waits for."""
        found: dict[int, set[int]] = {}
        for one in self.blocked:
            for rank in one.waiting:
                found.setdefault(rank, set()).update(one.holders - {rank})
        return {rank: frozenset(held) for rank, held in found.items()}

    @cached_property
    def waiting(self) -> frozenset[int]:
        return frozenset(self.holders)

    @cached_property
    def roots(self) -> frozenset[int]:
        """Ranks that others wait for and that wait for nobody."""
        held = frozenset().union(*self.holders.values())
        late = frozenset().union(*(one.late for one in self.blocked))
        # who waits only in operators that nobody holds up is late on its own account
        return held - self.waiting | {rank for rank in late if not self.holders.get(rank)}

    @property
    def now_ns(self) -> int:
        return int(self.recording.comm.ints("enqueue_ns").max())

    def stalled(self) -> tuple[Blocked, ...]:
        """Operators that nobody holds up, by recorders that would say if they had ended."""
        seen = self.recording.comm.strings("seen")
        told = {value for value in seen.values if value != "scheduled"}
        faithful = self.recording.expired.any() or bool(told)
        held = (one for one in self.blocked if not one.holders and not one.unknown)
        return tuple(held) if faithful else ()

    def holding(self, ranks: Iterable[int]) -> tuple[Blocked, ...]:
        """The operators that these ranks keep open."""
        wanted = frozenset(ranks)
        return tuple(one for one in self.blocked if one.holders & wanted)


def _hang(scene: Scene) -> Stuck | None:
    if not scene.blocked or is_young(scene.recording, scene.blocked):
        return None
    found = _explained(scene)
    unsure = is_young(scene.recording, scene.blocked, SLOW_DUMP_NS) or all(
        scene.recording.doubtful[list(one.rows)].all() for one in scene.blocked)  # fmt: skip
    if found is not None and unsure:
        return replace(found, score=min(found.score, LESS_SURE))
    return found


def _explained(scene: Scene) -> Stuck | None:
    seen = scene.roots & scene.recording.recorded
    if seen:
        return _missing(scene, seen)
    if scene.roots:
        return _unseen(scene, scene.roots)
    stalled = scene.stalled()
    if stalled:
        return _stalled(scene, stalled)
    return _circle(scene) if any(scene.holders.values()) else None


def _missing(scene: Scene, roots: frozenset[int]) -> Stuck:
    """Ranks with a dump that shows that they did not come."""
    held = scene.holding(roots)
    first = held[0]
    alone = _alone(scene, held, roots)
    if alone is not None:
        why = (f"rank {alone} is alone in {first.where}: none of its "
               f"{len(roots)} peers called it")  # fmt: skip
        return _finding(scene, first, frozenset({alone}), "code", LESS_SURE, why, told=True)
    late = roots <= first.late
    if late:
        why = "its device has not begun it, and others' have"
    elif first.peer >= 0:
        answer = "Recv" if first.op == "Send" else "Send"
        why = f"never posted the {answer}"
    else:
        why = "never entered it"
    sure = SURE if len(roots) < len(first.waiting) or first.peer >= 0 else LESS_SURE
    return _finding(scene, first, roots, "compute" if late else _cause(scene, roots), sure, why)


def _alone(scene: Scene, held: tuple[Blocked, ...], roots: frozenset[int]) -> int | None:
    """The one rank that called what none of several peers did, all of which stopped before it."""
    one = held[0]
    if len(held) > 1 or len(one.waiting | one.left) != 1 or len(roots) < 2 or roots != one.absent:
        return None
    lanes = scene.recording.lanes.get(one.group, {})
    ends = {lanes[rank].last for rank in roots if rank in lanes}
    return min(one.waiting) if len(ends) == 1 and one.seq == ends.pop() + 1 else None


def _cause(scene: Scene, roots: frozenset[int]) -> Cause:
    """`code` where the rank is known to have gone another way: it called what peers did not."""
    stacks = [latest_stack(scene.recording.window, rank) for rank in sorted(roots)]
    if any("dataload" in frame.lower() for stack in stacks for frame in stack):
        return "data_loading"
    return "unknown"


def _unseen(scene: Scene, roots: frozenset[int]) -> Stuck:
    """Only ranks without a dump can be the reason."""
    first = scene.holding(roots)[0]
    known = len(scene.recording.recorded)
    few = len(roots) < max(len(scene.waiting), 2)
    why = f"there is no dump of {name_ranks(tuple(sorted(roots)))}"
    if not few:
        why = f"only {known} of {known + len(roots)} ranks have a dump"
    named = roots if few else frozenset()
    sure = UNSEEN_SURE if len(roots) == 1 else UNSEEN_SURE - 0.1
    return _finding(scene, first, named, "unknown", sure if few else 0.3, why)


def _stalled(scene: Scene, stalled: tuple[Blocked, ...]) -> Stuck:
    """Everyone came and nobody, or only some, left: no data moves."""
    first = stalled[0]
    members = len(first.waiting | first.left)
    if first.left:
        why = f"{len(first.left)} of {members} ranks left {first.where}, the others cannot"
    else:
        why = f"all {members} ranks entered {first.where} and nobody left"
    rows = np.array(first.rows, np.int64)
    sure = EXPIRED_SURE if scene.recording.expired[rows].any() else NETWORK_SURE
    return _finding(scene, first, frozenset(), "network", sure, why, told=True)


def _circle(scene: Scene) -> Stuck:
    """All wait for one another: somebody called in another order."""
    fullest = max(scene.blocked, key=lambda one: (len(one.waiting), -one.since_ns))
    few = fullest.absent if len(fullest.absent) < len(fullest.waiting) else frozenset()
    others = [one for one in scene.blocked if one is not fullest and few and few <= one.waiting]
    same = any(fullest.waiting & one.absent for one in others)
    if same:
        why = (f"{_ranks(few)} entered {others[0].where} before {fullest.where}, its peers in the "
               "other order")  # fmt: skip
    else:
        places = ", ".join(one.where for one in scene.blocked[:3])
        why = f"ranks wait for one another in {places}"
    named = few if same else frozenset()
    return _finding(scene, fullest, named, "code", LESS_SURE, why, same, told=True)


def _mismatch(scene: Scene, clash: Clash) -> Stuck:
    comm = scene.recording.comm
    unfinished = bool((~scene.recording.done | scene.recording.doubtful)[clash.rows].any())
    sides = f"{clash.what}: {_told(scene.recording, clash)}"
    members = scene.recording.members(clash.group)
    victims = (members | scene.waiting if unfinished else members) - clash.odd
    begin = clash.since_ns
    return Stuck(
        method="desync", mismatched=True, cause="code", ranks=tuple(sorted(clash.odd)),
        group=clash.group, function=_function(scene, clash.odd),
        detail=f"members of {clash.group} disagree at operator {clash.seq} in {sides}",
        time_ns=(begin, max(begin, scene.now_ns)), score=0.95 if clash.odd else 0.8,
        victims=len(victims), unfinished=unfinished,
        values={"members": len(members), "odd": len(clash.odd), "victims": len(victims),
                "what": clash.what, "unfinished": unfinished, "seq": clash.seq,
                "op": comm.strings("op")[int(clash.rows[0])] or "?"},
    )  # fmt: skip


def _told(recording: Recording, clash: Clash) -> str:
    """`rank 2 all_gather [4] Float; ranks 0, 1 and 3 all_reduce [4] Float`, the odd ones first."""
    by_call: dict[str, list[int]] = {}
    for row in map(int, clash.rows):
        by_call.setdefault(_call(recording, row), []).append(int(recording.comm.ints("rank")[row]))
    order = sorted(by_call.items(), key=lambda item: (len(item[1]), item[1]))
    told = [f"{name_ranks(tuple(sorted(ranks)))} {call}" for call, ranks in order[:MOST_SHOWN]]
    return "; ".join(told)


def _call(recording: Recording, row: int) -> str:
    comm = recording.comm
    dtype = comm.strings("dtype_given")[row] or comm.strings("dtype_taken")[row] or ""
    return f"{comm.strings('call')[row]} {comm.strings('shape')[row] or ''} {dtype}".rstrip()


def _finding(
    scene: Scene, first: Blocked, ranks: frozenset[int], cause: Cause, sure: float, why: str,
    mismatched: bool = False, told: bool = False,
) -> Stuck:  # fmt: skip
    waiting = scene.waiting - ranks
    named = tuple(sorted(ranks))
    if told:
        detail = why
    elif named:
        they = f"{name_ranks(named)}, which {why}" if why.startswith("never") else (
            f"{name_ranks(named)}: {why}")  # fmt: skip
        detail = f"{_count(waiting)} in {first.where} for {they}"
    else:
        detail = f"{_count(waiting)} in {first.where}: {why}"
    function = _function(scene, ranks)
    if function is not None and not told:
        detail += f"; last seen in {_short(function)}"
    missing = tuple(sorted(_members(scene) - scene.recording.recorded)[:MOST_SHOWN])
    values: dict[str, Value] = {
        "waiting": len(waiting), "victims": len(waiting), "op": first.op, "seq": first.seq,
        "without_dump": list(missing),
        "older_dump": sorted(scene.recording.outdated)[:MOST_SHOWN], "unfinished": True,
    }  # fmt: skip
    return Stuck(
        method="desync", mismatched=mismatched, cause=cause, detail=detail, ranks=named,
        group=first.group, function=function,
        time_ns=(first.since_ns, max(first.since_ns, until_ns(scene.recording, first))),
        score=sure, victims=len(waiting), unfinished=True, without_dump=missing, values=values,
    )  # fmt: skip


def _members(scene: Scene) -> frozenset[int]:
    return frozenset(range(scene.recording.window.job.world_size))


def _count(waiting: frozenset[int]) -> str:
    return "1 rank waits" if len(waiting) == 1 else f"{len(waiting)} ranks wait"


def _ranks(ranks: frozenset[int]) -> str:
    return name_ranks(tuple(sorted(ranks)))


def _function(scene: Scene, ranks: frozenset[int]) -> str | None:
    """The innermost frame of the job's own code in the culprit's last call."""
    stack = latest_stack(scene.recording.window, min(ranks)) if ranks else ()
    own = [frame for frame in stack if not any(word in frame for word in LIBRARIES)]
    return own[-1] if own else (stack[-1] if stack else None)


def _short(frame: str) -> str:
    function, opened, place = frame.rpartition(" (")
    return f"{function}{opened}{place.rpartition('/')[2]}" if opened else frame

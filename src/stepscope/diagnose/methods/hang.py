"""A hang: operators that somebody entered and that will not end, and the rank that never came.

Fault: a rank that stopped, died, sleeps, loops or took another way; a network that moves nothing.
Paper: VenusTrace (Jiao et al., 2025), section 3.3, algorithm 1: T_i > n * T_batch, n = 2, then the
rank with missing calls. EROICA (2026), section 4.1, calls a job blocked after five step times.
T_i -> age of the waiters, T_batch -> `Pace.step_ns`, n -> STUCK_STEPS.
Where we differ: one timeout for all is too long for a stopped process and too short for a rank
that writes a checkpoint, so the time allowed follows what the absent rank is seen to do. The
culprit is absent from an operator while itself waiting in none that others keep open.
Cost: vectorised selection, then loops over the few open operators only.
Cannot see: ranks stuck outside communication while nobody waits for them yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import Cause, Finding
from stepscope.diagnose.liveness import Doing, Pace, Signs, now_ns, pace, signs_of, while_alive
from stepscope.diagnose.matching import POINT_TO_POINT, Matched, match
from stepscope.window import NULL, Ints, Mask, Table, Window

LATE_STEPS = 1.5
"""No hang while the last finished step is younger than one and a half steps."""
STOPPED_STEPS = 0.5
"""A process known to be stopped needs no patience beyond what sorts out one slow step."""
STUCK_STEPS, STUCK_NS = 2.0, 5 * 10**9
"""VenusTrace, section 3.3: n = 2; the floor covers a sampling gap or two of a short-step job."""
BLOCKED_STEPS, BLOCKED_NS = 5.0, 10 * 10**9
"""EROICA, section 4.1: five step times; the floor covers evaluation and compilation."""
SAVING_NS = 120 * 10**9
"""A rank seen saving, evaluating or compiling gets two minutes: large checkpoints take that."""
LONGER_PAUSE = 1.5
"""And any working rank half as long again as the longest pause this job has taken before."""
STARTING_NS = 300 * 10**9
"""Before the first step one rank downloads, tokenises or compiles while the others wait for it."""
_NEVER = 2**63
MOST_OPEN = 256
"""Open operators looked at, the oldest first: those behind them wait for the same ranks."""


@dataclass(frozen=True)
class Open:
    """One operator that has begun on some rank and not ended."""

    group: str
    op: str
    step: int
    seq: int
    entered: frozenset[int]
    waiting: frozenset[int]
    absent: frozenset[int]
    unreached: frozenset[int]
    """Those of the absent whose host called it, but whose device has not come to it."""
    called_ns: Mapping[int, int]
    """When the host of each member called it."""
    since_ns: int
    """The last arrival."""


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
    def roots(self) -> frozenset[int]:
        """Absent ranks that wait in no operator which others keep open, and which comes before.

        A device waits on several streams at once: what its host called after the operator it is
        missed in does not keep it from coming.
        """
        held = self._held_since()
        return frozenset(
            rank
            for one in self.missed
            for rank in one.absent
            if rank not in held or held[rank] > one.called_ns.get(rank, _NEVER)
        )

    def _held_since(self) -> dict[int, int]:
        """When each rank called the first operator in which it waits for another."""
        since: dict[int, int] = {}
        for one in self.missed:
            for rank in one.waiting:
                since[rank] = min(since.get(rank, _NEVER), one.called_ns[rank])
        return since

    @property
    def since_ns(self) -> int:
        return min(one.since_ns for one in self.open)


def find_hang(window: Window) -> Finding | None:
    """The hang the window ends in, or None."""
    scene = _scene(window)
    if scene is None or not scene.open:
        return None
    ended = scene.pace.last_end_ns
    if ended is not None and scene.now_ns - ended <= LATE_STEPS * scene.pace.step_ns:
        return None
    window = while_alive(window, scene.waiting)
    members = scene.roots or frozenset().union(*(one.entered for one in scene.open))
    signs = {rank: signs_of(window, rank, scene.since_ns) for rank in sorted(members)}
    stopped = _stopped_members(window, scene, signs)
    return _judge(window, scene, signs, stopped)


def _scene(window: Window) -> Scene | None:
    comm, now = window.table("comm_ops"), now_ns(window)
    if comm is None or now is None or not (comm.has("end_ns") or comm.has("state")):
        return None
    finished = _finished(comm)
    if finished.all():
        return None
    stuck = ~finished & ~_overtaken(comm, finished)
    return Scene(_open(window, comm, finished, stuck), now, pace(window))


def _finished(comm: Table) -> Mask:
    done = comm.strings("state").equals("done") if comm.has("state") else np.zeros(
        len(comm), np.bool_)  # fmt: skip
    return done | (comm.ints("end_ns") != NULL) if comm.has("end_ns") else done


def _overtaken(comm: Table, finished: Mask) -> Mask:
    """Rows whose rank has since finished a later operator of their lane: their end was lost."""
    lane = _lanes(comm)
    newest = np.full(lane.max(initial=0) + 1, NULL)
    np.maximum.at(newest, lane[finished], comm.ints("seq")[finished])
    return comm.ints("seq") < newest[lane]


def _lanes(comm: Table) -> Ints:
    """Numbers of what ends in order: a rank's collectives of a group, its sends to one peer."""
    pairs = comm.strings("op").equals(*POINT_TO_POINT)
    key = comm.ints("rank")
    ways = [comm.strings("group").codes, np.where(pairs, comm.strings("op").codes, -1)]
    if comm.has("peer"):
        ways.append(np.where(pairs, comm.ints("peer"), -1))
    for way in ways:
        _, part = np.unique(way, return_inverse=True)
        _, key = np.unique(key * (part.max(initial=0) + 1) + part, return_inverse=True)
    return key


def _open(window: Window, comm: Table, finished: Mask, stuck: Mask) -> tuple[Open, ...]:
    matched = match(comm)
    waits = stuck & (matched.key >= 0)
    on_device = waits & _started(comm, slice(None))
    # what no device has come to keeps nobody, unless none is known to have come to anything
    waits = on_device if on_device.any() else waits
    keys, place = np.unique(matched.key[waits], return_index=True)
    called = comm.ints("enqueue_ns")[waits][place]
    keys = keys[np.argsort(called, kind="stable")][:MOST_OPEN]
    return tuple(
        one for key in keys if (one := _one(window, matched, finished, int(key))) is not None
    )


def _started(comm: Table, rows: Ints | slice) -> Mask:
    """Which of the rows a device has come to, as far as that was recorded."""
    called = comm.ints("enqueue_ns")[rows]
    if not comm.has("start_ns"):
        return np.zeros(len(called), np.bool_)
    return np.asarray(comm.ints("start_ns")[rows] != NULL)


def _one(window: Window, matched: Matched, finished: Mask, key: int) -> Open | None:
    comm = matched.table
    rows = np.flatnonzero(matched.key == key)
    ranks = comm.ints("rank")[rows]
    group = comm.strings("group")[int(rows[0])] or ""
    if matched.p2p[rows[0]]:
        members = set(map(int, ranks)) | {int(peer) for peer in comm.ints("peer")[rows]}
    else:
        members = _members(window, comm, group)
    begun = _begun(comm, rows) | finished[rows]
    entered, called = frozenset(map(int, ranks[begun])), frozenset(map(int, ranks))
    lost = (members - called) & _moved_on(matched, rows)
    return Open(
        group, comm.strings("op")[int(rows[0])] or "?",
        int(comm.ints("step")[rows[0]]) if comm.has("step") else -1, int(comm.ints("seq")[rows[0]]),
        entered | lost, frozenset(map(int, ranks[begun & ~finished[rows]])),
        frozenset(rank for rank in members - entered - lost if rank >= 0), called - entered,
        dict(zip(map(int, ranks), map(int, comm.ints("enqueue_ns")[rows]), strict=True)),
        int(_arrivals(comm, rows[begun]).max()),
    )  # fmt: skip


def _begun(comm: Table, rows: Ints) -> Mask:
    """Which members are in an operator, of those that called it.

    A host calls ahead of its device. Where some devices have come to the operator and others have
    not, those others are still busy with what is before it.
    """
    started = _started(comm, rows)
    return started if started.any() else np.ones(len(rows), np.bool_)


def _arrivals(comm: Table, rows: Ints) -> Ints:
    called = comm.ints("enqueue_ns")[rows]
    started = _started(comm, rows)
    return np.where(started, comm.ints("start_ns")[rows], called) if started.any() else called


def _members(window: Window, comm: Table, group: str) -> set[int]:
    known = window.job.group(group)
    if known is not None:
        return set(known.ranks)
    return {int(rank) for rank in np.unique(comm.ints("rank")[comm.strings("group").equals(group)])}


def _moved_on(matched: Matched, rows: Ints) -> set[int]:
    """Ranks with rows of the same group beyond this operator: their row of it was lost."""
    comm = matched.table
    if matched.p2p[rows[0]]:
        return set()
    group = comm.strings("group").codes
    later = (group == group[rows[0]]) & ~matched.p2p
    later &= comm.ints("seq") > int(comm.ints("seq")[rows].max())
    return set(map(int, np.unique(comm.ints("rank")[later])))


def _stopped_members(window: Window, scene: Scene, signs: dict[int, Signs]) -> frozenset[int]:
    """Ranks in or awaited by an open operator whose process is stopped while another one lives."""
    stopped = {rank for rank, sign in signs.items() if sign.doing == "stopped"}
    others = scene.waiting - stopped
    alive = {rank: signs_of(window, rank, scene.since_ns) for rank in sorted(others)}
    stopped |= {rank for rank, sign in alive.items() if sign.doing == "stopped"}
    return frozenset(stopped) if others - stopped else frozenset()


def _judge(
    window: Window, scene: Scene, signs: dict[int, Signs], stopped: frozenset[int]
) -> Finding | None:
    age = _age(window, scene, stopped)
    if stopped:
        if age < STOPPED_STEPS * scene.pace.step_ns:
            return None
        signs = {rank: signs_of(window, rank, scene.since_ns) for rank in sorted(stopped)}
        return _finding(scene, signs, "host", 0.97, "its process is stopped or dead")
    if not scene.missed:
        return _nobody_missing(window, scene, age)
    if not scene.roots:
        return _circle(scene, age)
    doing = {sign.doing for sign in signs.values()}
    if age <= max(allowed_ns(one, scene.pace) for one in doing):
        return None
    return _absent(window, scene, signs)


def _age(window: Window, scene: Scene, stopped: frozenset[int]) -> int:
    """How long the youngest arrival has waited, as far as a waiter was seen alive."""
    seen = [signs_of(window, rank, scene.since_ns).seen_ns for rank in scene.waiting - stopped]
    known = [time for time in seen if time is not None]
    until = min(scene.now_ns, max(known)) if known else scene.now_ns
    return until - scene.since_ns


def allowed_ns(doing: Doing, pace: Pace) -> float:
    """How long others may wait for a rank that does this before it is a hang."""
    pause = LONGER_PAUSE * pace.longest_ns if pace.started else STARTING_NS
    if doing == "idle":
        return max(STUCK_STEPS * pace.step_ns, STUCK_NS, pause)
    if doing == "saving":
        return max(BLOCKED_STEPS * pace.step_ns, SAVING_NS, pause)
    return max(BLOCKED_STEPS * pace.step_ns, BLOCKED_NS, pause)


def _nobody_missing(window: Window, scene: Scene, age: int) -> Finding | None:
    """Everyone entered and some cannot leave: the data does not move."""
    if age <= allowed_ns("unknown", scene.pace):
        return None
    recorded = window.job.recorded_ranks
    partial = recorded is not None and len(recorded) < window.job.world_size
    why = "all members entered and nobody left"
    return _finding(scene, {}, "unknown" if partial else "network", 0.5 if partial else 0.7, why)


def _circle(scene: Scene, age: int) -> Finding | None:
    """Every absent rank waits in another open operator: they wait for one another."""
    if age <= allowed_ns("idle", scene.pace):
        return None
    return _finding(scene, {}, "code", 0.7, "the members wait for one another in different orders")


def _absent(window: Window, scene: Scene, signs: dict[int, Signs]) -> Finding:
    unseen = {rank for rank in signs if _unknown(window, rank, scene)}
    if unseen == set(signs):
        why = f"nothing is known of rank {_list(sorted(unseen))}, which the others wait for"
        return _finding(scene, {}, "unknown", 0.3, why)
    known = {rank: sign for rank, sign in signs.items() if rank not in unseen}
    if known.keys() <= frozenset().union(*(one.unreached for one in scene.open)):
        return _stuck_device(scene, known)
    doing = {sign.doing for sign in known.values()}
    sure = 0.9 if doing <= {"idle", "active"} else 0.75
    return _finding(scene, known, _cause(known), sure, _says(doing))


def _stuck_device(scene: Scene, signs: dict[int, Signs]) -> Finding:
    """Who among several is kept by an operator that no device has come to, nobody recorded."""
    if len(signs) > 1:
        why = f"a kernel does not end on one of ranks {_list(sorted(signs))}"
        return _finding(scene, {}, "compute", 0.4, why)
    why = "its host called it, its device has not come to it: a kernel before it does not end"
    return _finding(scene, signs, "compute", 0.7, why)


def _unknown(window: Window, rank: int, scene: Scene) -> bool:
    """Whether the rank's silence may be the recorder's: never recorded, or rows lost just then."""
    recorded = window.job.recorded_ranks
    if rank not in window.ranks or (recorded is not None and rank not in recorded):
        return True
    losses = window.table("losses")
    if losses is None:
        return False
    lost = (losses.ints("rank") == rank) & losses.strings("table").equals("comm_ops")
    return bool((lost & (losses.ints("end_ns") >= scene.since_ns)).any())


def _cause(signs: dict[int, Signs]) -> Cause:
    stacks = [sign.stack for sign in signs.values() if sign.stack]
    if any("dataload" in frame.lower() for stack in stacks for frame in stack):
        return "data_loading"
    return "code" if stacks or any(s.doing == "active" for s in signs.values()) else "unknown"


def _says(doing: set[Doing]) -> str:
    if doing == {"idle"}:
        return "it uses no processor time"
    return "it is still busy" if doing <= {"active", "saving"} else "what it does is not known"


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _finding(scene: Scene, signs: dict[int, Signs], cause: Cause, sure: float, why: str) -> Finding:
    first = min(scene.missed or scene.open, key=lambda one: one.since_ns)
    waiting = len(scene.waiting - set(signs))
    where = f"{first.op} {first.seq} of {first.group}" if first.group else first.op
    if signs:
        detail = f"{waiting} ranks wait in {where} for rank {_list(sorted(signs))}: {why}"
    else:
        detail = f"{waiting} ranks wait in {where}: {why}"
    touched = frozenset().union(*(one.entered | one.absent for one in scene.open))
    return Finding(
        method="hang", kind="hang", cause=cause, detail=detail, ranks=tuple(sorted(signs)),
        group=first.group or None, steps=(first.step, first.step) if first.step >= 0 else None,
        time_ns=(first.since_ns, max(scene.now_ns, first.since_ns)), confidence=sure,
        values={"waiting": waiting, "victims": len(touched - set(signs)), "op": first.op,
                "age_ns": scene.now_ns - first.since_ns, "step_ns": scene.pace.step_ns},
    )  # fmt: skip

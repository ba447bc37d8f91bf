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

from collections.abc import Collection, Iterator
from dataclasses import replace

from stepscope.diagnose.detect import desync
from stepscope.diagnose.finding import Cause, Device, Stuck
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.liveness import (
    Doing,
    Pace,
    Signs,
    Watch,
    now_ns,
    pace,
    while_alive,
)
from stepscope.diagnose.operators.open_ops import Open
from stepscope.diagnose.operators.requests import StuckConnection, stuck_connection
from stepscope.diagnose.operators.standstill import cause_of
from stepscope.diagnose.operators.unrecorded import coupled_with, not_kept
from stepscope.diagnose.operators.wait_state import Scene, read_scene
from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.window import Window

LATE_STEPS = 1.5
"""No hang while the last finished step is younger than one and a half steps."""
OVERDUE_STEPS = 1.0
"""With a process known to be stopped, while it is younger than one step."""
STOPPED_STEPS = 0.5
"""A process known to be stopped needs no patience beyond what sorts out one slow step, or a
debugger that stops it for a look: either the others have waited, or it was stopped, for so long."""
STUCK_STEPS, STUCK_NS = 2.0, 5 * 10**9
"""VenusTrace, section 3.3: n = 2; the floor covers a sampling gap or two of a short-step job."""
BLOCKED_STEPS, BLOCKED_NS = 5.0, 10 * 10**9
"""EROICA, section 4.1: five step times; the floor covers evaluation and compilation."""
SAVING_NS = 120 * 10**9
"""A rank seen saving, evaluating or compiling gets two minutes: large checkpoints take that."""
LONGER_PAUSE = 1.5
"""And any working rank half as long again as the longest pause this job has taken before."""
SURE_BY_REQUESTS = 0.8
"""Requests in flight tell the connection; which of its ends it is they do not."""
STARTING_NS = 300 * 10**9
"""Before the first step one rank downloads, tokenises or compiles while the others wait for it."""


class Hang:
    """The operators that will not end, and the rank that never came."""

    name = "hang"
    needs = Needs("comm_ops")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Stuck]:
        found = None if desync.applies(job.window) else find_hang(job.window)
        if found is not None:
            yield found


def find_hang(window: Window) -> Stuck | None:
    """The hang the window ends in, or None."""
    now, usual = now_ns(window), pace(window)
    if now is None or _goes_on(now, usual, OVERDUE_STEPS):
        return None
    scene = read_scene(window, now, usual)
    if scene is None or not scene.open:
        return None
    window = while_alive(window, scene.waiting)
    watch = Watch(window, scene.since_ns)
    members = scene.roots or frozenset().union(*(one.entered for one in scene.open))
    signs = {rank: watch.of(rank) for rank in sorted(members)}
    stopped = _stopped_members(watch, scene, signs)
    if stopped:
        return _halted(watch, scene, stopped)
    return None if _goes_on(now, usual, LATE_STEPS) else _judge(window, watch, scene, signs)


def _goes_on(now: int, usual: Pace, steps: float) -> bool:
    """Whether the last step ended less than so many steps ago."""
    ended = usual.last_end_ns
    return ended is not None and now - ended <= steps * usual.step_ns


def _stopped_members(watch: Watch, scene: Scene, signs: dict[int, Signs]) -> frozenset[int]:
    """Ranks in or awaited by an open operator whose process is stopped while another one lives."""
    stopped = {rank for rank, sign in signs.items() if sign.doing == "stopped"}
    others = scene.waiting - stopped
    stopped |= {rank for rank in others if watch.of(rank).doing == "stopped"}
    return frozenset(stopped) if others - stopped else frozenset()


def _halted(watch: Watch, scene: Scene, stopped: frozenset[int]) -> Stuck | None:
    signs = {rank: watch.of(rank) for rank in sorted(stopped)}
    since = [sign.stopped_ns for sign in signs.values() if sign.stopped_ns is not None]
    lasted = max(_age(watch, scene, stopped), scene.now_ns - min(since, default=scene.now_ns))
    if lasted < STOPPED_STEPS * scene.pace.step_ns:
        return None
    return _finding(scene, signs, "host", 0.97, "its process is stopped or dead")


def _judge(window: Window, watch: Watch, scene: Scene, signs: dict[int, Signs]) -> Stuck | None:
    age = _age(watch, scene)
    if not scene.missed:
        return _nobody_missing(window, scene, age)
    if not scene.roots:
        return _circle(scene, age) if scene.jam is None else _jammed(window, scene, scene.jam, age)
    doing = {sign.doing for sign in signs.values()}
    if age <= max(allowed_ns(one, scene.pace) for one in doing):
        return None
    return _absent(window, scene, signs, age)


def _age(watch: Watch, scene: Scene, stopped: frozenset[int] = frozenset()) -> int:
    """How long the youngest arrival has waited, as far as a waiter was seen alive."""
    seen = [watch.of(rank).seen_ns for rank in scene.waiting - stopped]
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


def _nobody_missing(window: Window, scene: Scene, age: int) -> Stuck | None:
    """Everyone entered and some cannot leave: the data does not move."""
    if age <= allowed_ns("unknown", scene.pace):
        return None
    stuck = stuck_connection(window, scene.waiting)
    if stuck is not None:
        return _dead_way(window, scene, stuck)
    recorded = window.job.recorded_ranks
    partial = recorded is not None and len(recorded) < window.job.world_size
    why = "all members entered and nobody left"
    return _finding(scene, (), "unknown" if partial else "network", 0.5 if partial else 0.7, why)


def _jammed(window: Window, scene: Scene, jam: Open, age: int) -> Stuck | None:
    """Devices stand in an operator that all members entered, and keep the others."""
    if age <= allowed_ns("unknown", scene.pace):
        return None
    stuck = stuck_connection(window, jam.waiting)
    if stuck is not None:
        return _dead_way(window, scene, stuck, jam)
    way = f" from rank {jam.sender}" if jam.sender >= 0 else ""
    why = f"all members entered it and its data does not move{way}"
    finding = _finding(scene, (), "network", 0.7, why, jam)
    return replace(finding, devices=_between(window, jam) if jam.op in POINT_TO_POINT else ())


def _dead_way(
    window: Window, scene: Scene, stuck: StuckConnection, about: Open | None = None
) -> Stuck:
    """Everybody entered, and the requests of one rank do not complete."""
    why = f"all members entered it, and {stuck.requests} requests that it posted do not complete"
    finding = _finding(scene, (stuck.rank,), "network", SURE_BY_REQUESTS, why, about)
    nic = Devices(window).nic(stuck.rank)
    devices = () if nic is None else (Device("nic", nic, SURE_BY_REQUESTS),)
    return replace(finding, devices=devices,
                   values={**finding.values, "requests": stuck.requests})  # fmt: skip


def _between(window: Window, jam: Open) -> tuple[Device, ...]:
    """What a send may pass: the host's NVLink, or the adapter of either end, the sender's first."""
    known, ends = Devices(window), sorted(jam.waiting, key=lambda rank: rank != jam.sender)
    if len({window.host_of(rank) for rank in ends}) == 1:
        nvlink = known.nvlink(ends[0])
        return () if nvlink is None else (Device("nvlink", nvlink, 0.7),)
    nics = [nic for rank in ends if (nic := known.nic(rank)) is not None]
    return tuple(Device("nic", nic, 0.7 / len(nics)) for nic in nics)


def _circle(scene: Scene, age: int) -> Stuck | None:
    """Every absent rank waits in another open operator: they wait for one another."""
    if age <= allowed_ns("idle", scene.pace):
        return None
    return _finding(scene, (), "code", 0.7, "the members wait for one another in different orders")


def _absent(window: Window, scene: Scene, signs: dict[int, Signs], age: int) -> Stuck | None:
    unseen = {rank for rank in signs if _unknown(window, rank, scene)}
    if unseen == set(signs):
        why = f"nothing is known of rank {_list(sorted(unseen))}, which the others wait for"
        return _finding(scene, (), "unknown", 0.3, why)
    known = {rank: sign for rank, sign in signs.items() if rank not in unseen}
    unreached = frozenset().union(*(one.unreached for one in scene.open))
    free = not_kept(window, known, unreached)
    if not free or known.keys() <= unreached:
        jam = _jam_of(window, scene, frozenset(known))
        return _stuck_device(scene, known) if jam is None else _jammed(window, scene, jam, age)
    known = {rank: known[rank] for rank in sorted(free)}
    doing = {sign.doing for sign in known.values()}
    sure = 0.9 if doing <= {"idle", "active"} else 0.75
    cause = cause_of(window, tuple(known.items()), scene.since_ns)
    if cause == "compute":
        why = "its host waits for its device: a kernel does not end"
        return _finding(scene, known, cause, 0.7, why)
    return _finding(scene, known, cause, sure, _says(doing))


def _jam_of(window: Window, scene: Scene, ranks: frozenset[int]) -> Open | None:
    """The operator whose data does not move, if devices may wait for its members unrecorded."""
    moving = frozenset().union(*(one.waiting for one in scene.full))
    if not moving or not ranks <= coupled_with(window, moving):
        return None
    return min(scene.full, key=lambda one: one.since_ns)


def _stuck_device(scene: Scene, signs: dict[int, Signs]) -> Stuck:
    """Who among several is kept by an operator that no device has come to, nobody recorded."""
    if len(signs) > 1:
        why = f"a kernel does not end on one of ranks {_list(sorted(signs))}"
        return _finding(scene, (), "compute", 0.4, why)
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


def _says(doing: set[Doing]) -> str:
    if doing == {"idle"}:
        return "it uses no processor time"
    return "it is still busy" if doing <= {"active", "saving"} else "what it does is not known"


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _finding(
    scene: Scene,
    ranks: Collection[int],
    cause: Cause,
    sure: float,
    why: str,
    about: Open | None = None,
) -> Stuck:
    first = about or min(scene.missed or scene.open, key=lambda one: one.since_ns)
    waiting = len(scene.waiting - set(ranks))
    where = f"{first.op} {first.seq} of {first.group}" if first.group else first.op
    if ranks:
        detail = f"{waiting} ranks wait in {where} for rank {_list(sorted(ranks))}: {why}"
    else:
        detail = f"{waiting} ranks wait in {where}: {why}"
    touched = frozenset().union(*(one.entered | one.absent for one in scene.open))
    return Stuck(
        method="hang", cause=cause, detail=detail, ranks=tuple(sorted(ranks)),
        group=first.group or None, steps=(first.step, first.step) if first.step >= 0 else None,
        time_ns=(first.since_ns, max(scene.now_ns, first.since_ns)),
        victims=len(touched - set(ranks)), score=sure,
        values={"waiting": waiting, "victims": len(touched - set(ranks)), "op": first.op,
                "age_ns": scene.now_ns - first.since_ns, "step_ns": scene.pace.step_ns},
    )  # fmt: skip

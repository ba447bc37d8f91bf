"""Hangs: operators that some ranks entered and that never end, and the rank that is missing.

Fault: a rank that stopped, died, sleeps, loops or took a different branch; a network that moves no
data.
Paper: VenusTrace (Jiao et al., 2025), section 3.3, algorithm 1: T_i > n * T_batch, n = 2, then the
rank with missing calls. EROICA (2026), section 4.1, calls a job blocked after five step times.
T_i -> time that the waiting ranks have waited, T_batch -> `StepTiming.step_ns`,
n -> `liveness.IDLE_STEPS`.
Where we differ: a single timeout is too long for a stopped process and too short for a rank that
writes a checkpoint, so the timeout depends on what the absent rank is observed to do. The culprit
is a rank that is absent from an operator and does not itself wait in another open operator.
Cost: vectorised selection, then loops over the few open operators only.
Cannot see: ranks that are stuck outside communication while no other rank waits for them yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from stepscope.diagnose.detect.stuck import desync
from stepscope.diagnose.detect.stuck.hang_by_rows import find_silence
from stepscope.diagnose.finding import Cause, Decision, Device, Stuck
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.cut_off import cut_off, unreached_host
from stepscope.diagnose.operators.endings import (
    TOGETHER_NS,
    first_ending,
    observed_before,
    until_it_ended,
)
from stepscope.diagnose.operators.liveness import (
    CALLS_NS,
    CALLS_STEPS,
    Activity,
    LifeSigns,
    Liveness,
    StepTiming,
    allowed_ns,
    is_saving,
    now_ns,
    step_timing,
)
from stepscope.diagnose.operators.open_ops import OpenOperator
from stepscope.diagnose.operators.own_order import departed, departed_from_equals
from stepscope.diagnose.operators.own_steps import WITNESSES
from stepscope.diagnose.operators.places import in_words, places
from stepscope.diagnose.operators.requests import StuckConnection, stuck_connection
from stepscope.diagnose.operators.standstill import cause_of, waits_for_device, waits_for_ranks
from stepscope.diagnose.operators.unrecorded import coupled_with, not_blocked_by_others
from stepscope.diagnose.operators.wait_state import WaitState, read_wait_state
from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.words.advice import list_ranks
from stepscope.diagnose.words.numbers import ranks_wait
from stepscope.window import Window

LATE_STEPS = 1.5
"""No hang is reported within one and a half step times of the last finished step. Our simulator."""
OVERDUE_STEPS = 1.0
"""The same limit if a process is known to be stopped: one step time. Our simulator."""
STOPPED_STEPS = 0.5
"""A stopped process is reported once it has been stopped, or the others have waited, for half a
step. That excludes one slow step and a debugger that stops the process briefly. Our simulator."""
REQUESTS_CONFIDENCE = 0.8
"""Outstanding requests identify the connection, but not which of its two ends is at fault. Our
simulator."""
ALONE_CONFIDENCE = 0.7
"""Of ranks that wait in a circle, the few in an operator that most did not call are at fault: most
run the right program. Our simulator."""
CUT_OFF_CONFIDENCE = 0.75
"""That a host moves nothing while its neighbour moves data identifies the host, but not whether its
adapter, its cable or the switch's port is at fault; it may have had little to move. Our lab."""
CALLS_CONFIDENCE = 0.6
"""That nothing ended is inferred from calls, steps and stacks. Our simulator."""
STOPPED = "its process is stopped or dead"
NO_MORE: tuple[Activity, ...] = ("ended", "gone")
"""What is known of a process that is no more."""
BEHIND_CONFIDENCE, UNSEEN_CONFIDENCE = 0.8, 0.4
"""Of a host that made fewer calls, with and without a stack that shows what it does instead; the
second also of several hosts of which nothing shows what they do. Our simulator."""


class Hang:
    """Operators that will not finish, and the ranks that the others wait for."""

    name = "hang"
    needs = Needs("comm_ops|phases|kernels|steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Stuck]:
        found = None if desync.applies(job.window) else find_hang(job.window)
        if found is not None:
            yield found


def find_hang(window: Window) -> Stuck | None:
    """The hang in which the window ends, or None."""
    window = until_it_ended(window)
    found = _find(window)
    return None if found is None else _located(window, found)


def _located(window: Window, found: Stuck) -> Stuck:
    """The same with pass, stage and microbatch of the ranks that hang; data that does not move is
    in none of their passes."""
    where = () if found.cause == "network" else places(window, found.ranks)
    detail = f"{found.detail}, {in_words(where)}" if where else found.detail
    return replace(found, detail=detail, places=where)


def _find(window: Window) -> Stuck | None:
    now, timing = now_ns(window), step_timing(window)
    if now is None or _is_progressing(now, timing, OVERDUE_STEPS):
        return None
    state = read_wait_state(window, now, timing)
    if state is None or not state.open:
        return find_silence(window)
    members = state.roots or frozenset().union(*(one.entered for one in state.open))
    ended = first_ending(window, members | state.waiting)
    if ended is None:
        return _of_alive(window, state, members)
    before = _of_alive(observed_before(window, ended), state.as_of(ended), members)
    return before or _of_stopped(window, state, members)


def _is_progressing(now: int, timing: StepTiming, steps: float) -> bool:
    """Whether the last step ended less than this many step times ago."""
    ended = timing.last_end_ns
    return ended is not None and now - ended <= steps * timing.step_ns


def _of_alive(window: Window, state: WaitState, members: frozenset[int]) -> Stuck | None:
    """The hang of a job in which no process has stopped."""
    if _is_progressing(state.now_ns, state.timing, LATE_STEPS):
        return None
    liveness = Liveness(window, state.since_ns)
    return _judge(window, liveness, state, {rank: liveness.of(rank) for rank in sorted(members)})


def _of_stopped(window: Window, state: WaitState, members: frozenset[int]) -> Stuck | None:
    """The hang because of the processes that stopped first, while others lived on."""
    liveness = Liveness(window, state.since_ns)
    signs = {rank: liveness.of(rank) for rank in sorted(members | state.waiting)}
    stopped = {rank: sign for rank, sign in signs.items() if sign.stopped_ns is not None}
    first = min((sign.stopped_ns or 0 for sign in stopped.values()), default=0)
    culprits = {rank: sign for rank, sign in stopped.items()
                if (sign.stopped_ns or 0) <= first + TOGETHER_NS}  # fmt: skip
    others = state.waiting - culprits.keys()
    if not culprits or not others:
        return None
    lived = [alive for rank in others if (alive := signs[rank].alive_ns) is not None]
    if max(lived, default=state.now_ns) - first < STOPPED_STEPS * state.timing.step_ns:
        return None
    return _finding(state, culprits, "host", 0.97, STOPPED)


def _judge(
    window: Window, liveness: Liveness, state: WaitState, signs: dict[int, LifeSigns]
) -> Stuck | None:
    waited = _waited_ns(liveness, state)
    if not state.roots and (dead := _dead_inside(liveness, state)):
        enough = waited > allowed_ns("unknown", state.timing)
        return _of_free(window, state, dead) if enough else None
    if not state.incomplete:
        return _nobody_missing(window, state, waited)
    if not state.roots and state.stalled is None:
        return _circle(window, state, waited)
    if not state.roots and state.stalled is not None:
        return _stalled_transfer(window, state, state.stalled, waited)
    if waited <= max(allowed_ns(sign.activity, state.timing) for sign in signs.values()):
        return None
    return _absent(window, state, liveness, signs, waited)


def _dead_inside(liveness: Liveness, state: WaitState) -> dict[int, LifeSigns]:
    """Ranks whose process was no more when the others began to wait, though it called all that they
    called: what it called does not end without it."""
    signs = {rank: liveness.of(rank) for rank in sorted(state.waiting)}
    dead = {rank: one for rank, one in signs.items() if one.activity in NO_MORE}
    return dead if len(dead) <= HALF * len(signs) else {}


def _waited_ns(liveness: Liveness, state: WaitState) -> int:
    """Time from the last arrival until a waiting rank was last observed alive.

    Samples that end while those of the hosts end as well, before now, only say that nobody took
    any: the rank may have waited on.
    """
    observed = [liveness.of(rank).alive_ns for rank in state.waiting]
    known = [time for time in observed if time is not None]
    if not known or not liveness.sampled_after(max(known)):
        return state.now_ns - state.since_ns
    return min(state.now_ns, max(known)) - state.since_ns


def _nobody_missing(window: Window, state: WaitState, waited: int) -> Stuck | None:
    """All members entered and some cannot leave: no data moves."""
    if waited <= allowed_ns("unknown", state.timing) or (
            state.by_calls and waited <= _allowed_of_all(window, state)):  # fmt: skip
        return None
    stuck = stuck_connection(window, state.waiting)
    # a single receiver may not have reached the transfer: calls do not show how far devices got
    if stuck is not None and (not state.by_calls or len(stuck.peers) > 1):
        return _stuck_requests(window, state, stuck)
    if state.by_calls:
        why = "all ranks made the same calls, and their devices finish nothing"
        if stuck is not None:
            why += f"; {stuck.requests} network requests of rank {stuck.rank} never completed"
        return _finding(state, (), "unknown", CALLS_CONFIDENCE, why)
    first = min(state.open, key=lambda one: one.since_ns)
    if host := unreached_host(window, first, state.since_ns):
        return _of_host(window, state, first, host, f"all members entered it, {_unanswered(host)}")
    recorded = window.job.recorded_ranks
    partial = recorded is not None and len(recorded) < window.job.world_size
    why = "all members entered it and none completed it"
    return _finding(state, (), "unknown" if partial else "network", 0.5 if partial else 0.7, why)


def _allowed_of_all(window: Window, state: WaitState) -> float:
    """How long all ranks may do nothing but wait for their devices, or something else."""
    liveness = Liveness(window, state.since_ns)
    stacks = [liveness.of(rank).stack for rank in sorted(state.waiting)]
    if all(stacks) and not any(is_saving(one) for one in stacks) and all(
            waits_for_device(one) or waits_for_ranks(one) for one in stacks):  # fmt: skip
        return max(CALLS_STEPS * state.timing.step_ns, CALLS_NS)
    return allowed_ns("saving", state.timing)


def _stalled_transfer(
    window: Window, state: WaitState, stalled: OpenOperator, waited: int,
    seen: str = "all members entered it",
) -> Stuck | None:  # fmt: skip
    """All members entered an operator, its data does not move, and it blocks the other devices."""
    if waited <= allowed_ns("unknown", state.timing):
        return None
    stuck = stuck_connection(window, stalled.waiting)
    if stuck is not None:
        return _stuck_requests(window, state, stuck, stalled)
    source = f" from rank {stalled.sender}" if stalled.sender >= 0 else ""
    why = f"{seen}, but no data arrives{source}"
    if host := cut_off(window, stalled, state.open):
        why += f", and none has moved to or from {host} since"
        return _of_host(window, state, stalled, host, why)
    if host := unreached_host(window, stalled, stalled.since_ns):
        return _of_host(window, state, stalled, host, f"{seen}, {_unanswered(host)}")
    finding = _finding(state, (), "network", 0.7, why, stalled)
    point_to_point = stalled.op in POINT_TO_POINT
    return replace(finding, devices=_devices_between(window, stalled) if point_to_point else ())


def _unanswered(host: str) -> str:
    return f"and what its neighbours send to {host} stays unanswered"


def _of_host(window: Window, state: WaitState, about: OpenOperator, host: str, why: str) -> Stuck:
    """No data moves to or from one host, and the ranks behind its link are named."""
    ranks = tuple(rank for rank in window.ranks if window.host_of(rank) == host)
    finding = _finding(state, ranks, "network", CUT_OFF_CONFIDENCE, why, about)
    nics = next(one.nics for one in window.job.hosts if one.name == host)
    likely = CUT_OFF_CONFIDENCE / max(len(nics), 1)
    return replace(finding, devices=tuple(Device("nic", f"{host}/{nic}", likely) for nic in nics))


def _stuck_requests(
    window: Window, state: WaitState, stuck: StuckConnection, about: OpenOperator | None = None
) -> Stuck:
    """All members entered, and the network requests of one rank do not complete."""
    requests = f"{stuck.requests} network requests of rank {stuck.rank}"
    why = f"all members entered it, but {requests} never completed"
    finding = _finding(state, (stuck.rank,), "network", REQUESTS_CONFIDENCE, why, about)
    nic = Devices(window).nic(stuck.rank)
    devices = () if nic is None else (Device("nic", nic, REQUESTS_CONFIDENCE),)
    return replace(finding, devices=devices,
                   values={**finding.values, "requests": stuck.requests})  # fmt: skip


def _devices_between(window: Window, stalled: OpenOperator) -> tuple[Device, ...]:
    """Devices that a send may pass: NVLink within a host, else both NICs, the sender's first."""
    known, ends = Devices(window), sorted(stalled.waiting, key=lambda rank: rank != stalled.sender)
    if len({window.host_of(rank) for rank in ends}) == 1:
        nvlink = known.nvlink(ends[0])
        return () if nvlink is None else (Device("nvlink", nvlink, 0.7),)
    nics = [nic for rank in ends if (nic := known.nic(rank)) is not None]
    return tuple(Device("nic", nic, 0.7 / len(nics)) for nic in nics)


def _circle(window: Window, state: WaitState, waited: int) -> Stuck | None:
    """Deadlock: every absent rank waits in another open operator."""
    if waited <= allowed_ns("idle", state.timing):
        return None
    odd, why = _left_order(window, state.circle)
    confidence = 0.9 if odd else ALONE_CONFIDENCE
    if not odd:
        odd, why = state.alone, "it alone called what the others did not call"
    if odd:
        missed = next((one for one in state.incomplete if one.absent & odd), None)
        return _finding(state, odd, "code", confidence, why, missed)
    why = "deadlock, members called their operators in different orders"
    return _finding(state, (), "code", 0.7, why)


def _left_order(window: Window, ranks: frozenset[int]) -> tuple[frozenset[int], str]:
    """Those of these ranks that called something too early or not at all, unless all did; and by
    what that shows."""
    odd = departed(window.tables["comm_ops"], ranks)
    if odd and odd != ranks:
        return odd, "it left the order of calls of its earlier steps"
    odd = departed_from_equals(window, ranks)
    why = "it left the order of calls that ranks with the same program kept"
    return (odd, why) if odd != ranks else (frozenset(), "")


def _absent(
    window: Window, state: WaitState, liveness: Liveness, signs: dict[int, LifeSigns], waited: int
) -> Stuck | None:
    unobserved = {rank for rank in signs if _is_unobserved(window, rank, state)}
    if unobserved == set(signs):
        if state.alone and state.alone <= state.circle:  # they would hang without the others, too
            return _circle(window, state, waited)
        ranks = list_ranks(sorted(unobserved))
        why = f"nothing was recorded about {ranks}, which the others wait for"
        return _finding(state, (), "unknown", 0.3, why)
    known = {rank: sign for rank, sign in signs.items() if rank not in unobserved}
    unreached = frozenset().union(*(one.unreached for one in state.open))
    free = not_blocked_by_others(window, known, unreached)
    if state.by_calls:
        return _behind(window, state, liveness, known, free)
    if not free or known.keys() <= unreached:
        return _without_free(window, state, known, waited)
    if all(_waits_too(known[rank]) for rank in free) and len(free) > 1:
        first = min(state.open, key=lambda one: one.since_ns)
        return _stalled_transfer(window, state, first, waited, "all ranks wait for others")
    # one that is itself waiting waits for the others, though nobody recorded in what
    free = frozenset(rank for rank in free if not _waits_too(known[rank])) or free
    return _of_free(window, state, {rank: known[rank] for rank in sorted(free)})


def _of_free(window: Window, state: WaitState, known: dict[int, LifeSigns]) -> Stuck:
    """Ranks that the others wait for, and that wait for nobody."""
    activities = {sign.activity for sign in known.values()}
    if activities == {"stopped"}:
        return _finding(state, known, "host", 0.97, STOPPED)
    if activities == {"ended"}:
        return _finding(state, known, "code", 0.9, "its process has ended")
    confidence = 0.9 if activities <= {"idle", "active"} else 0.75
    if "unknown" in activities and len({*map(window.host_of, known)}) > 1:
        confidence = UNSEEN_CONFIDENCE  # one of them may wait for another in what nobody recorded
    cause = cause_of(window, tuple(known.items()), state.since_ns)
    if cause == "compute":
        why = "its host waits for its device, where a kernel does not end"
        return _finding(state, known, cause, 0.7, why)
    return _finding(state, known, cause, confidence, _activity_text(activities, len(known)))


def _without_free(
    window: Window, state: WaitState, known: dict[int, LifeSigns], waited: int
) -> Stuck | None:
    """All ranks that the others wait for may themselves be blocked by another rank."""
    stalled = _stalled_with(window, state, frozenset(known))
    if stalled is None:
        return _stuck_device(state, known)
    return _stalled_transfer(window, state, stalled, waited)


def _waits_too(sign: LifeSigns) -> bool:
    """Whether a rank that others wait for is itself stuck waiting for others."""
    return sign.activity == "idle" and waits_for_ranks(sign.stack)


def _behind(
    window: Window, state: WaitState, liveness: Liveness, signs: dict[int, LifeSigns],
    free: frozenset[int],
) -> Stuck:  # fmt: skip
    """Some hosts made fewer calls than their peers. One that waits for its device is held up, too,
    unless it left a call out, and one whose stack is unknown may be."""
    free = frozenset(rank for rank in free if not waits_for_device(signs[rank].stack))
    if not free or len(free) > HALF * len(window.ranks):
        return _behind_on_device(window, state, signs)
    why = "its host made fewer calls than the others'"
    apart = frozenset() if any(signs[rank].stack for rank in free) else (
        _unlike_all(free, signs, [liveness.of(rank) for rank in state.waiting - free]))  # fmt: skip
    known = {rank: signs[rank] for rank in sorted(apart or free)}
    if apart:
        text = _activity_text({sign.activity for sign in known.values()}, len(known))
        why += f", and unlike those that wait for it, {text}"
    cause = cause_of(window, tuple(known.items()), state.since_ns)
    seen = bool(apart) or all(sign.stack for sign in known.values())
    confidence = BEHIND_CONFIDENCE if seen else UNSEEN_CONFIDENCE
    return _finding(state, known, cause, confidence, why)


def _unlike_all(
    free: frozenset[int], signs: dict[int, LifeSigns], waiting: list[LifeSigns]
) -> frozenset[int]:
    """Of ranks without a stack, those that do something else than all ranks that wait: a rank that
    waits would do the same as they."""
    theirs = {one.activity for one in waiting}
    if len(waiting) < WITNESSES or len(theirs) != 1 or not theirs <= {"idle", "active"}:
        return frozenset()
    return frozenset(rank for rank in free
                     if signs[rank].activity not in (*theirs, "unknown", "saving"))  # fmt: skip


def _behind_on_device(window: Window, state: WaitState, signs: dict[int, LifeSigns]) -> Stuck:
    """All hosts that made fewer calls wait for their devices. One that left a call out and went on
    holds up the others nevertheless."""
    odd, left = _left_order(window, state.waiting | signs.keys())
    if odd and odd <= signs.keys():
        return _finding(state, odd, "code", BEHIND_CONFIDENCE, left)
    why = "no host makes calls, and those that made fewer wait for their devices"
    return _finding(state, (), "unknown", CALLS_CONFIDENCE, why)


def _stalled_with(window: Window, state: WaitState, ranks: frozenset[int]) -> OpenOperator | None:
    """The stalled operator, if all of these ranks may be blocked by it through unrecorded ones."""
    moving = frozenset().union(*(one.waiting for one in state.complete))
    if not moving or not ranks <= coupled_with(window, moving):
        return None
    return min(state.complete, key=lambda one: one.since_ns)


def _stuck_device(state: WaitState, signs: dict[int, LifeSigns]) -> Stuck:
    """A device never reached an operator that its host called; with several ranks, one of them."""
    if len(signs) > 1:
        why = f"a kernel does not end on one of {list_ranks(sorted(signs))}"
        return _finding(state, (), "compute", 0.4, why)
    why = "its host called it, but its device never started it: an earlier kernel hangs"
    return _finding(state, signs, "compute", 0.7, why)


def _is_unobserved(window: Window, rank: int, state: WaitState) -> bool:
    """Whether the rank was never recorded, or rows were lost at that time."""
    recorded = window.job.recorded_ranks
    if rank not in window.ranks or (recorded is not None and rank not in recorded):
        return True
    losses = window.table("losses")
    if losses is None:
        return False
    lost = (losses.ints("rank") == rank) & losses.strings("table").equals("comm_ops")
    return bool((lost & (losses.ints("end_ns") >= state.since_ns)).any())


def _activity_text(activities: Collection[Activity], count: int) -> str:
    it, its, uses, is_ = ("it", "its", "uses", "is") if count == 1 else (
        "they", "their", "use", "are")  # fmt: skip
    if set(activities) == {"idle"}:
        return f"{it} {uses} no CPU time"
    if set(activities) == {"gone"}:
        return "its process is gone" if count == 1 else "their processes are gone"
    if set(activities) <= {"active", "saving"}:
        return f"{it} {is_} still busy"
    return f"{its} activity is not known"


def _finding(
    state: WaitState,
    ranks: Collection[int],
    cause: Cause,
    confidence: float,
    why: str,
    about: OpenOperator | None = None,
) -> Stuck:
    first = about or min(state.incomplete or state.open, key=lambda one: one.since_ns)
    others = state.waiting - set(ranks)
    waiting, inside = len(others), len(others & first.entered)
    where = f"{first.op} {first.seq} of {first.group}" if first.group else first.op
    detail = ranks_wait(waiting, inside, where)
    detail += f" for {list_ranks(sorted(ranks))}: {why}" if ranks else f": {why}"
    touched = frozenset().union(*(one.entered | one.absent for one in state.open))
    return Stuck(
        method="hang", cause=cause, detail=detail, ranks=tuple(sorted(ranks)),
        group=first.group or None, steps=(first.step, first.step) if first.step >= 0 else None,
        time_ns=(first.since_ns, max(state.now_ns, first.since_ns)),
        victims=len(touched - set(ranks)), score=confidence,
        decisions=tuple(_decisions(state, ranks, why)),
        values={"waiting": waiting, "victims": len(touched - set(ranks)), "op": first.op,
                "age_ns": state.now_ns - first.since_ns, "step_ns": state.timing.step_ns},
    )  # fmt: skip


def _decisions(state: WaitState, ranks: Collection[int], why: str) -> Iterator[Decision]:
    """How long nothing has moved, and that the culprits are awaited and wait for nobody."""
    waited = (state.now_ns - state.since_ns) / 1e9
    step = f"a step takes {state.timing.step_ns / 1e9:.2g} s"
    yield Decision("no-progress", True, waited, None, f"seconds the others have waited; {step}")
    if ranks:
        says = f"{list_ranks(sorted(ranks))} is awaited and waits for nobody: {why}"
        yield Decision("explained-backwards", True, says=says)

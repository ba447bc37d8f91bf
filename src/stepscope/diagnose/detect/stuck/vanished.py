"""A rank whose process ended before the others': killed, crashed, by an exception, or too early.

Fault: the out-of-memory killer, a crash, an uncaught exception, a kill by hand, a loop that ends
earlier than on other ranks.
Ours: no paper. The first process that ended badly is the culprit; if others failed only because a
peer was gone, those that had ended normally before. Launchers then terminate the
others (SIGTERM), and the others' operators fail because their peer is gone; neither is a culprit.
Nor is a process that a communication library ended because calls do not match: that is a symptom of
what the ranks called (`mismatch`). A process that ends itself (SIGABRT) is no fault of a device.
Cost: the rows of `exits`, one for each process that ended.
Cannot see: processes that ended while no processor ran on their host, and how a process ended whose
parent was faster than the processor in reading its status.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from stepscope.diagnose.detect.stuck import hang
from stepscope.diagnose.detect.stuck.hang_by_rows import BETWEEN
from stepscope.diagnose.detect.stuck.mismatch import find_mismatch
from stepscope.diagnose.finding import Cause, Decision, Device, Ended, Stuck
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators import endings
from stepscope.diagnose.operators.endings import as_of
from stepscope.diagnose.operators.exits import Exit, read_exits
from stepscope.diagnose.operators.liveness import last_progress_ns, lasting_stack
from stepscope.diagnose.views.frames import waits
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import time_apart
from stepscope.trace.signals import signal_name
from stepscope.window import NULL, Window

TOGETHER_NS = endings.TOGETHER_NS
"""All processes that the same signal ends within a second were ended by somebody outside the job,
for example by the scheduler."""
CONFIDENCE = 0.97
"""As of a stopped process (`hang`): the kernel itself says how the process ended."""
UNKNOWN_CONFIDENCE = 0.6
"""That it ended first and without a word is known, and not how. Our judgement."""
SUSPECT = 0.4
"""Confidence if the process ended itself inside of communication: what it complains of may be what
another rank called. As `hang_by_rows.SUSPECT`."""


class Vanished:
    """Ranks whose processes were killed, crashed or failed while the others still worked."""

    name = "vanished"
    needs = Needs()

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Stuck]:
        found = find_vanished(job.window)
        if found is not None:
            yield found


def find_vanished(window: Window) -> Stuck | None:
    """The processes that ended first, or None if the job ended normally, or hung before."""
    exits = read_exits(window)
    culprits = _culprits(window, exits)
    if not culprits:
        return _left_early(window, exits) or _unmatched(window, exits)
    if _hung_before(window, culprits[0].ts_ns):
        return None
    return _finding(window, culprits, exits)


def find_fatal_mismatch(window: Window) -> Stuck | None:
    """The mismatch of calls because of which processes ended, or None."""
    ended = any(one.is_mismatched or one.is_abort for one in read_exits(window))
    return find_mismatch(window) if ended else None


def _unmatched(window: Window, exits: Sequence[Exit]) -> Stuck | None:
    """A library ended processes because calls do not match, and no call shows whose."""
    said = [one for one in exits if one.is_mismatched]
    if not said or find_mismatch(window) is not None:
        return None
    first = said[0]
    says = f"rank {first.rank} ended because the ranks' calls do not match in size or kind"
    return Stuck(
        method="vanished", mismatched=True, unfinished=True, cause="code", detail=first.detail,
        time_ns=(first.ts_ns, exits[-1].ts_ns), score=UNKNOWN_CONFIDENCE, says=says,
    )  # fmt: skip


def _left_early(window: Window, exits: Sequence[Exit]) -> Stuck | None:
    """Processes that ended normally before others failed because a peer was gone."""
    failed = next((one for one in exits if one.lost_peer), None)
    left = [one for one in exits if failed and one.is_normal and one.ts_ns < failed.ts_ns]
    if failed is None or not left or _hung_before(window, failed.ts_ns):
        return None
    return _finding(window, left, exits)


def _culprits(window: Window, exits: Sequence[Exit]) -> list[Exit]:
    """The first processes that ended badly and for no reason outside of them."""
    own = [one for one in exits if not one.is_normal and not one.is_echo]
    own = [one for one in own if not one.is_unknown] or own
    if not own or _ended_from_outside(window, exits):
        return []
    if any(one.is_abort for one in own) and find_mismatch(window) is not None:
        own = [one for one in own if not one.is_abort]
    if not own:
        return []
    first = own[0]
    if first.is_unknown and _is_harmless(window, exits, first):
        return []
    return [one for one in own if one.ts_ns == first.ts_ns or _is_alike(one, first)]


def _is_alike(one: Exit, first: Exit) -> bool:
    """Whether a process raised the same exception in the same place, and not because a peer was
    gone: neither followed from the other then, whoever was first."""
    place = first.frames[-1:]
    if not first.reason or not place or one.frames[-1:] != place:
        return False
    if waits(place[0]) or "torch/distributed/" in place[0]:
        return False
    return one.reason == first.reason and one.exception == first.exception


def _ended_from_outside(window: Window, exits: Sequence[Exit]) -> bool:
    """Whether one signal ended all processes of the job at once."""
    numbers = {one.signal for one in exits}
    if len(exits) < 2 or len(exits) < len(window.ranks) or len(numbers) > 1 or None in numbers:
        return False
    if any(one.reason == "out of memory" for one in exits):
        return False
    return exits[-1].ts_ns - exits[0].ts_ns <= TOGETHER_NS


def _is_harmless(window: Window, exits: Sequence[Exit], first: Exit) -> bool:
    """Whether all others ended with it, or normally afterwards."""
    known = [one for one in exits if not one.is_unknown]
    ended = {one.rank for one in exits}.issuperset(window.ranks)
    if ended and known and all(one.is_normal for one in known):
        return True
    return _outlived_ns(window, exits, first) < TOGETHER_NS


def _outlived_ns(window: Window, exits: Sequence[Exit], first: Exit) -> int:
    """How long other processes were still there."""
    newest = max(one.ts_ns for one in exits)
    alive = set(window.ranks) - {one.rank for one in exits}
    return max(newest, last_progress_ns(window) if alive else NULL) - first.ts_ns


def _hung_before(window: Window, until_ns: int) -> bool:
    """Whether the job already hung when the first process ended badly: people kill jobs that
    hang."""
    found = hang.find_hang(as_of(window, until_ns))
    return found is not None and found.score > BETWEEN


def _finding(window: Window, culprits: Sequence[Exit], exits: Sequence[Exit]) -> Stuck:
    first = culprits[0]
    ranks = tuple(sorted(one.rank for one in culprits))
    how, ended, cause = _how(first)
    step, alike = _step(window, first), len(ranks) > 1 and _is_alike(culprits[-1], first)
    everyone = alike and len(ranks) == len(window.ranks)
    who = "all ranks" if everyone else name_ranks(ranks)
    says = f"{who} {how.format(was='were' if len(ranks) > 1 else 'was')}"
    says += "" if step is None else f" in step {step}"
    victims = len(set(window.ranks) - set(ranks))
    apart = (
        f", {time_apart(culprits[-1].ts_ns - first.ts_ns)} apart and in the same place"
        if alike
        else ""
    )
    says += apart + _fate(exits, ranks, victims)
    score = _score(window, first)
    first_of = (f"{who} failed alike, and none of them because another one did" if alike
                else f"{who} ended first")  # fmt: skip
    return Stuck(
        method="vanished", cause=cause, detail=first.detail or says,
        ranks=() if everyone else ranks,
        devices=_devices(window, ranks, cause),
        steps=None if step is None else (step, step),
        time_ns=(first.ts_ns, max(one.ts_ns for one in exits)), victims=victims, score=score,
        decisions=(Decision("earliest-cause", True, says=first_of),),
        values={"status": first.status, "signal": first.signal, "announced": first.announced},
        says=says, ended=ended,
        stack=first.frames if (first.reason and ended == "failed") or ended == "left" else None,
    )  # fmt: skip


def _score(window: Window, first: Exit) -> float:
    if first.is_abort and any(map(waits, lasting_stack(window, first.rank))):
        return SUSPECT
    return UNKNOWN_CONFIDENCE if first.is_unknown else CONFIDENCE


def _devices(window: Window, ranks: Sequence[int], cause: Cause) -> tuple[Device, ...]:
    """The hosts whose memory ran out; no device is known to be at fault otherwise."""
    hosts = dict.fromkeys(window.host_of(rank) for rank in ranks if cause == "host")
    return tuple(Device("host", host, CONFIDENCE) for host in hosts if host is not None)


def _how(one: Exit) -> tuple[str, Ended, Cause]:
    """What happened to the process, in words and by kind, and the cause."""
    if one.reason == "out of memory":
        return "{was} killed (SIGKILL, out of memory)", "out of memory", "host"
    if one.reason:
        name = one.exception
        ended: Ended = "aborted" if one.is_abort else "failed"
        return f"ended with an exception ({name})", ended, "code"
    if one.is_abort:
        return "ended itself (SIGABRT)", "aborted", "unknown"
    if one.signal is not None:
        name = signal_name(one.signal)
        killed = one.signal == signal.SIGKILL
        return (f"{{was}} killed ({name})", "killed", "unknown") if killed else (
            f"crashed ({name})", "crashed", "unknown")  # fmt: skip
    if one.is_normal or one.status is not None:
        how = "ended normally while the others went on", f"exited with status {one.status}"
        return (how[0], "left", "code") if one.is_normal else (how[1], "failed", "code")
    return "vanished; how the process ended is unknown", "killed", "unknown"


def _step(window: Window, one: Exit) -> int | None:
    """The step in which the job was, after the last that any rank completed: what a process did in
    its last moments may not have been sent."""
    steps = window.table("steps")
    if steps is None or not steps.has("step"):
        return None
    before = steps.ints("step")[steps.ints("start_ns") <= one.ts_ns]
    return int(before.max()) + 1 if before.size else None


def _fate(exits: Sequence[Exit], culprits: Sequence[int], victims: int) -> str:
    """What happened to the other ranks."""
    others = [one for one in exits if one.rank not in culprits]
    if not victims:
        return ""
    if len(others) < victims:
        left = victims - len(others)
        return f"; {left} other rank{'s' * (left > 1)} did not end"
    if all(one.signal is not None for one in others):
        return "; the others were terminated"
    return "; the others ended after it"

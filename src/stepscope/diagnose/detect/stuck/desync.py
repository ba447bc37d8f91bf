"""Desynchronised ranks: hangs and mismatched collectives, from PyTorch Flight Recorder dumps.

Fault: a rank that never entered a collective, or entered a different one, or called it with other
sizes or types; a send or receive without its counterpart; a deadlock; data that does not move.
Paper: no paper of its own. VenusTrace (Jiao et al., 2025), section 3.3, names the rank with missing
calls; torchfrtrace (PyTorch) compares what the members of a group called at each sequence number.
Where we differ: only the order of calls decides, no clock. Waiting is followed across groups to the
ranks that do not wait themselves, so victims are counted and not named. A missing or older dump is
blamed only if no rank with a dump explains the hang.
Cost: one sort of the operators, then work for each rank's first open operator in each group.
Cannot see: when a dump was taken, hence how long a wait has lasted (`docs/methods` describes how
this is handled); what a rank does after its last call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepscope.diagnose.finding import Cause, Stuck, Value
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.blocked import (
    SLOW_DUMP_NS,
    Blocked,
    find_blocked,
    have_lasted,
    is_young,
    until_ns,
    was_going_on,
)
from stepscope.diagnose.operators.calls import Clash, find_clashes
from stepscope.diagnose.operators.equals import Departure
from stepscope.diagnose.operators.liveness import lasting_stack
from stepscope.diagnose.operators.own_steps import OwnDeparture, find_own_departure
from stepscope.diagnose.operators.progress import Recording
from stepscope.diagnose.operators.tardy import Tardy, find_tardy
from stepscope.diagnose.operators.wait_graph import WaitGraph
from stepscope.diagnose.thresholds import SUSPECT_SCORE
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import ranks_wait
from stepscope.diagnose.words.summary import short_frame
from stepscope.window import Window

COLUMNS = (
    "state", "call", "seen", "retired", "record", "given", "taken", "dtype_given", "dtype_taken",
    "dumped_ns",
)  # fmt: skip
"""Columns that only flight recorder dumps have."""
CONFIDENT, LESS_CONFIDENT = 0.9, 0.6
"""Confidence if fewer ranks are missing than wait; and if at least as many are missing, or if the
dumps may have been written while the job was healthy. Our simulator."""
NO_DUMP_CONFIDENCE = 0.5
"""A rank, or a host, without a dump is more likely stuck than its file lost. Our simulator."""
EXPIRED_CONFIDENCE, NETWORK_CONFIDENCE = 0.85, 0.6
"""All ranks entered and none completed: after the watchdog timed out, and before. Our simulator."""
SENDS_UNSEEN = "gloo records no sends and receives"
FEW_DUMPS = 0.5
"""If fewer ranks have a dump, a job in which nothing is open may hang all the same. Our choice."""
LEAST_WITNESSES = 1
"""Where calls clash, one side that kept the order of its own steps is enough. Our choice."""
MOST_SHOWN = 8
"""Calls listed in one sentence."""
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
    """The mismatch and the hang that the dumps show, the one that explains the other first."""
    comm = window.table("comm_ops")
    if comm is None or not applies(window):
        return ()
    recording = Recording(window, comm)
    graph = WaitGraph(recording, tuple(find_blocked(recording)))
    clashes = find_clashes(recording)
    mismatch = _mismatch(graph, clashes[0]) if clashes else None
    author = _author(graph, clashes[0]) if clashes and not clashes[0].odd else None
    if author is not None:
        return (author,)
    hang = None if mismatch is not None and mismatch.unfinished else _hang(graph)
    if mismatch is not None and hang is not None:
        if mismatch.ranks and mismatch.ranks == hang.ranks:  # one fault, and what it led to
            mismatch, hang = replace(mismatch, unfinished=True, victims=hang.victims), None
        elif mismatch.group == hang.group:
            hang = None
    return tuple(one for one in (mismatch, hang) if one is not None)


def undecided(window: Window) -> str:
    """Why nothing found in the dumps does not mean that nothing hangs; empty where it does."""
    comm = window.table("comm_ops")
    if comm is None or not applies(window):
        return ""
    recording = Recording(window, comm)
    known, world = len(recording.recorded), window.job.world_size
    if known < FEW_DUMPS * world and not was_going_on(recording):
        return f"only {known} of {world} ranks have a dump, so others may wait for one of these"
    if recording.records_sends or recording.has_no_sends or was_going_on(recording):
        return ""
    return f"{SENDS_UNSEEN}, so these dumps cannot tell whether ranks wait in one"


def _hang(graph: WaitGraph) -> Stuck | None:
    if not graph.blocked or is_young(graph.recording, graph.blocked):
        return None
    found = _explained(graph)
    if found is not None and is_young(graph.recording, graph.blocked, even_retired=True):
        # gloo does not tell an operator that failed from one that succeeded: if all members that
        # called it left it soon before, the absent one was dumped a moment earlier, or left
        return replace(found, score=min(found.score, SUSPECT_SCORE))
    unsure = is_young(graph.recording, graph.blocked, SLOW_DUMP_NS) or all(
        graph.recording.doubtful[list(one.rows)].all() for one in graph.blocked)  # fmt: skip
    if found is not None and unsure:
        found = replace(found, score=min(found.score, LESS_CONFIDENT))
    if found is None or have_lasted(graph.recording, graph.blocked):
        return found
    # in a job that trains, some ranks compute at any moment; several do not stop at one
    scattered = len(found.ranks) > 1 and not _fail_together(frozenset(found.ranks))
    several = scattered and found.cause == "unknown"
    return replace(found, score=min(found.score, SUSPECT_SCORE)) if several else found


def _explained(graph: WaitGraph) -> Stuck | None:
    departures = graph.departures()
    if departures:
        return _departed(graph, departures)
    new_peers = graph.new_peers()
    if new_peers:
        return _wrong_peer(graph, new_peers)
    with_dump = graph.singled_out & graph.recording.recorded
    if with_dump:
        return _missing(graph, with_dump)
    tardy = find_tardy(graph.recording, graph.blocked)
    if tardy:
        return _came_too_late(graph, tardy)
    return _without_dump(graph, graph.roots) if graph.roots else _rootless(graph)


def _rootless(graph: WaitGraph) -> Stuck | None:
    """A hang in which every rank waits."""
    lost = _members(graph) - graph.recording.recorded  # each of them may be the reason
    own = None if lost else find_own_departure(graph.recording)
    if own is not None and own.rank in graph.waiting:
        return _left_own_order(graph, own)
    if graph.circling:
        return _circle(graph)
    stalled = graph.stalled()
    return _stalled(graph, stalled) if stalled else None


def _missing(graph: WaitGraph, roots: frozenset[int]) -> Stuck:
    """Ranks whose own dump shows that they did not enter the operator."""
    blocked = graph.blocked_by(roots)
    first = blocked[0]
    alone = graph.lone_caller(blocked, roots)
    if alone is not None:
        peers = f"none of its {len(roots)} peers" if len(roots) > 1 else "no rank in an equal place"
        why = f"rank {alone} waits alone in {first.where}: {peers} called it"
        return _finding(graph, first, frozenset({alone}), "code", LESS_CONFIDENT, why, whole=True)
    idle = not first.late & roots and roots <= graph.idle
    late = idle or roots <= first.late
    if idle:
        why = "its device has not started what it called"
    elif late:
        why = "its device has not started it, while others have"
    elif first.peer >= 0:
        answer = "Recv" if first.op == "Send" else "Send"
        why = f"never posted the {answer}"
    else:
        why = "never entered it"
    confidence = CONFIDENT if len(roots) < len(first.waiting) or first.peer >= 0 else LESS_CONFIDENT
    found = _finding(
        graph, first, roots, "compute" if late else _cause(graph, roots), confidence, why
    )
    return _as_suspects(found) if graph.recording.may_hide_sends else found


def _came_too_late(graph: WaitGraph, tardy: list[Tardy]) -> Stuck:
    """Ranks that entered when the watchdogs of the others had given up."""
    first = min(tardy, key=lambda one: one.since_ns)
    ranks = frozenset().union(*(one.ranks for one in tardy))
    waiting = graph.waiting - ranks
    held_up = ranks_wait(len(waiting), len(waiting & first.where.waiting), first.where.where)
    why = (f"{held_up} for {name_ranks(ranks)}, which came {first.late_ns / 1e9:.0f} s late, when "
           f"they had given up after {first.timeout_ms / 1e3:g} s")  # fmt: skip
    where = replace(first.where, since_ns=first.since_ns)
    return _finding(graph, where, ranks, _cause(graph, ranks), CONFIDENT, why, whole=True)


def _as_suspects(found: Stuck) -> Stuck:
    """The same of ranks that may wait in a send or receive which nobody recorded."""
    who = "it" if len(found.ranks) == 1 else "each of them"
    detail = f"{found.detail}; {SENDS_UNSEEN}, so {who} may itself wait for another rank in one"
    return replace(found, score=min(found.score, SUSPECT_SCORE), detail=detail)


def _departed(graph: WaitGraph, departures: list[Departure]) -> Stuck:
    """Ranks whose calls deviate from the order that ranks with the same program kept."""
    ranks = frozenset(one.rank for one in departures)
    where = graph.blocked_by(ranks) or tuple(one for one in graph.blocked if one.waiting & ranks)
    first, waiting = where[0], graph.waiting - ranks
    why = "; ".join(one.text for one in departures[:MOST_SHOWN])
    if waiting:
        why = f"{_count(waiting)}, in {first.where} and after it: {why}"
    else:
        why = f"{name_ranks(ranks)} waits alone in {first.where}: {why}"
    return _finding(
        graph, first, ranks, "code", CONFIDENT, why, mismatched=not graph.roots, whole=True
    )


def _author(graph: WaitGraph, clash: Clash) -> Stuck | None:
    """Who left the common order or its own, and so led to a clash that names nobody."""
    if not graph.blocked or is_young(graph.recording, graph.blocked):
        return None
    departures = graph.departures()
    if departures:
        return _departed(graph, departures)
    own = find_own_departure(graph.recording, LEAST_WITNESSES)
    sides = graph.recording.comm.ints("rank")[clash.rows]
    if own is None or own.rank not in sides or own.rank not in graph.waiting:
        return None
    return _left_own_order(graph, own)


def _left_own_order(graph: WaitGraph, own: OwnDeparture) -> Stuck:
    """A rank whose calls in one step differ from those of its own steps before."""
    ranks = frozenset({own.rank})
    where = graph.blocked_by(ranks) or tuple(one for one in graph.blocked if one.waiting & ranks)
    made, usual = (_own_call(graph.recording, row) for row in (own.row, own.usual))
    why = (f"{_count(graph.waiting - ranks)} for rank {own.rank}, which left the order of its own "
           f"steps: it called {made} where it had called {usual} before")  # fmt: skip
    return _finding(graph, where[0], ranks, "code", CONFIDENT, why, whole=True)


def _own_call(recording: Recording, row: int) -> str:
    """`all_reduce of tp-tp0`, or `Recv from rank 3 of pp-pp0`."""
    comm = recording.comm
    op, peer, group = comm.strings("op")[row], int(comm.ints("peer")[row]), comm.strings("group")
    if peer < 0:
        return f"{comm.strings('call')[row]} of {group[row]}"
    return f"{op} {'to' if op == 'Send' else 'from'} rank {peer} of {group[row]}"


def _wrong_peer(graph: WaitGraph, new_peers: tuple[Blocked, ...]) -> Stuck:
    """A send or receive with a rank that was no partner of this one before."""
    ranks = frozenset().union(*(one.waiting for one in new_peers))
    first = new_peers[0]
    why = (f"{name_ranks(ranks)} waits in {first.where}, with which it never exchanged a message "
           "before")  # fmt: skip
    return _finding(graph, first, ranks, "code", CONFIDENT, why, whole=True)


def _cause(graph: WaitGraph, roots: frozenset[int]) -> Cause:
    """The cause that the stacks of the missing ranks show."""
    stacks = [lasting_stack(graph.recording.window, rank) for rank in sorted(roots)]
    if any("dataload" in frame.lower() for stack in stacks for frame in stack):
        return "data_loading"
    return "unknown"


def _without_dump(graph: WaitGraph, roots: frozenset[int]) -> Stuck:
    """Only ranks without a dump can explain the hang."""
    first = graph.blocked_by(roots)[0]
    known = len(graph.recording.recorded)
    few = len(roots) < max(len(graph.waiting), 2)
    why = f"there is no dump of {name_ranks(roots)}"
    if not few:
        why = f"only {known} of {known + len(roots)} ranks have a dump"
    named = roots if few else frozenset()
    confidence = NO_DUMP_CONFIDENCE if _fail_together(roots) else NO_DUMP_CONFIDENCE - 0.1
    found = _finding(graph, first, named, "unknown", confidence if few else 0.3, why)
    return _as_suspects(found) if named and graph.recording.may_hide_sends else found


def _fail_together(ranks: frozenset[int]) -> bool:
    """Whether one failure explains that these dumps are missing: of one rank, or of a block of
    ranks that begins where a host of that size does."""
    return max(ranks) - min(ranks) + 1 == len(ranks) and min(ranks) % len(ranks) == 0


def _stalled(graph: WaitGraph, stalled: tuple[Blocked, ...]) -> Stuck:
    """All ranks entered and not all completed: no data moves.

    Without starts, a member may have called it and never got there; nor is that known of a member
    whose ring buffer may have overwritten where its device stands.
    """
    first = stalled[0]
    ranks = graph.recording.members(first.group)
    members = len(ranks)
    if first.peer >= 0:
        why = (f"{name_ranks(first.waiting)} waits in {first.where}, and rank {first.peer} has "
               "called its end of it")  # fmt: skip
    elif first.left:
        why = f"{len(first.left)} of {members} ranks completed {first.where}, the others are stuck"
    else:
        why = f"all {members} ranks entered {first.where} and none completed it"
    ends = ranks if first.peer < 0 else first.waiting | {first.peer}
    starts_known = graph.recording.reports_starts and not ends & graph.recording.front_lost
    if not starts_known:
        why += ": a link stands still, or a kernel on one of them"
    cause: Cause = "network" if starts_known else "unknown"
    rows = np.array(first.rows, np.int64)
    confidence = EXPIRED_CONFIDENCE if graph.recording.expired[rows].any() else NETWORK_CONFIDENCE
    return _finding(graph, first, frozenset(), cause, confidence, why, whole=True)


def _circle(graph: WaitGraph) -> Stuck:
    """Deadlock: ranks wait for one another because one of them called in a different order."""
    held_up = [one for one in graph.blocked if one.standing & graph.circling]
    fullest = max(held_up, key=lambda one: (len(one.standing), -one.since_ns))
    here = fullest.absent if len(fullest.absent) < len(fullest.standing) else frozenset()
    other = next((one for one in held_up
                  if one is not fullest and here and here <= one.standing), fullest)  # fmt: skip
    there = other.absent & fullest.standing
    few, early, late = (here, other, fullest) if len(here) < len(there) else (there, fullest, other)
    same = bool(there) and len(here) != len(there)
    if same:
        why = (f"{name_ranks(few)} entered {early.where} before {late.where}, the other ranks in "
               "the opposite order")  # fmt: skip
    else:
        places = ", ".join(one.where for one in held_up[:3])
        why = f"deadlock, ranks wait for one another in {places}"
    named = few if same else frozenset()
    return _finding(graph, fullest, named, "code", LESS_CONFIDENT, why, same, whole=True)


def _mismatch(graph: WaitGraph, clash: Clash) -> Stuck:
    comm = graph.recording.comm
    unfinished = bool((~graph.recording.done | graph.recording.doubtful)[clash.rows].any())
    sides = f"{clash.what}: {_calls_text(graph.recording, clash)}"
    members = graph.recording.members(clash.group)
    victims = (members | graph.waiting if unfinished else members) - clash.odd
    begin = clash.since_ns
    return Stuck(
        method="desync", mismatched=True, cause="code", ranks=tuple(sorted(clash.odd)),
        group=clash.group, function=_function(graph, clash.odd),
        detail=f"members of {clash.group} disagree at operator {clash.seq} in {sides}",
        time_ns=(begin, max(begin, int(comm.ints("enqueue_ns").max()))),
        score=0.95 if clash.odd else 0.8,
        victims=len(victims), unfinished=unfinished,
        values={"members": len(members), "odd": len(clash.odd), "victims": len(victims),
                "what": clash.what, "unfinished": unfinished, "seq": clash.seq,
                "op": comm.strings("op")[int(clash.rows[0])] or "?"},
    )  # fmt: skip


def _calls_text(recording: Recording, clash: Clash) -> str:
    """`rank 2 all_gather [4] Float; ranks 0, 1 and 3 all_reduce [4] Float`, rarest calls first."""
    by_call: dict[str, list[int]] = {}
    for row in map(int, clash.rows):
        by_call.setdefault(_call(recording, row), []).append(int(recording.comm.ints("rank")[row]))
    order = sorted(by_call.items(), key=lambda item: (len(item[1]), item[1]))
    calls = [f"{name_ranks(ranks)} {call}" for call, ranks in order[:MOST_SHOWN]]
    return "; ".join(calls)


def _call(recording: Recording, row: int) -> str:
    comm = recording.comm
    dtype = comm.strings("dtype_given")[row] or comm.strings("dtype_taken")[row] or ""
    return f"{comm.strings('call')[row]} {comm.strings('shape')[row] or ''} {dtype}".rstrip()


def _finding(
    graph: WaitGraph,
    first: Blocked,
    ranks: frozenset[int],
    cause: Cause,
    confidence: float,
    why: str,
    mismatched: bool = False,
    whole: bool = False,
) -> Stuck:
    """A finding of this method.

    Args:
        why: the end of the sentence "ranks wait in this operator for ...".
        whole: `why` is a whole sentence by itself.
    """
    waiting = graph.waiting - ranks
    named = tuple(sorted(ranks))
    held_up = ranks_wait(len(waiting), len(waiting & first.waiting), first.where)
    if whole:
        detail = why
    elif named:
        culprit = f"{name_ranks(named)}, which {why}" if why.startswith("never") else (
            f"{name_ranks(named)}: {why}")  # fmt: skip
        detail = f"{held_up} for {culprit}"
    else:
        detail = f"{held_up}: {why}"
    function = _function(graph, ranks)
    if function is not None and not whole:
        detail += f"; last seen in {short_frame(function)}"
    missing = tuple(sorted(_members(graph) - graph.recording.recorded)[:MOST_SHOWN])
    values: dict[str, Value] = {
        "waiting": len(waiting), "victims": len(waiting), "op": first.op, "seq": first.seq,
        "without_dump": list(missing),
        "older_dump": sorted(graph.recording.outdated)[:MOST_SHOWN], "unfinished": True,
    }  # fmt: skip
    return Stuck(
        method="desync", mismatched=mismatched, cause=cause, detail=detail, ranks=named,
        group=first.group, function=function,
        time_ns=(first.since_ns, max(first.since_ns, until_ns(graph.recording, first))),
        score=confidence, victims=len(waiting), unfinished=True, without_dump=missing,
        values=values,
    )  # fmt: skip


def _members(graph: WaitGraph) -> frozenset[int]:
    return frozenset(range(graph.recording.window.job.world_size))


def _count(waiting: frozenset[int]) -> str:
    return "1 rank waits" if len(waiting) == 1 else f"{len(waiting)} ranks wait"


def _function(graph: WaitGraph, ranks: frozenset[int]) -> str | None:
    """The innermost frame of the job's own code in the culprit's last call."""
    stack = lasting_stack(graph.recording.window, min(ranks)) if ranks else ()
    own = [frame for frame in stack if not any(word in frame for word in LIBRARIES)]
    return own[-1] if own else (stack[-1] if stack else None)

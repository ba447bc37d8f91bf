"""What another thread of a rank does while its training thread waits for that thread.

Fault: a thread that prepares batches and does not keep up, so that the training thread waits at its
queue; a thread that computes in Python and so holds the GIL, which the training thread needs.
Paper: EROICA (Guan et al., 2026), section 4.1, samples all threads, and leaves it to people.
Ours: the training thread waits for another thread if its excess is spent in Python's own queues and
locks; or if the process uses more of its processors beside that thread than peers do, while the
thread neither computes more nor waits for a processor. The other threads' function with the largest
excess over the peers is named, as a share of the training thread's time. Samples that end in
Python's library wait themselves.
Cost: one count over the sampled stacks of the rank and its peers.
Cannot see: threads that wait in a function of the user's own, as a sleep does, and processes.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.explain.cpu import processor_evidence, use_of_excess
from stepscope.diagnose.explain.function import of_slow_steps, slow_function
from stepscope.diagnose.finding import Cause, Evidence, Value
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF, OTHER_PROCESSES, PROCESSOR_TIME
from stepscope.diagnose.views.frames import is_librarys
from stepscope.diagnose.views.stack_rows import in_training
from stepscope.diagnose.views.stacks import LEAST_SHARE, Samples, SlowFunction
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints

HANDOVER = ("/queue.py", "/threading.py")
"""Files of Python's library in which one thread waits for another."""


class OtherThread:
    """A function of another thread, for which the training thread waits."""

    name = "other-thread"
    causes: tuple[Cause, ...] = ("host",)
    needs = Needs("stacks")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        if not (_waits_at_queue(job, suspect) or _has_rival(job, suspect)):
            return None
        slow = _slow_function(job, suspect)
        if slow is None:
            return None
        evidence = (*processor_evidence(job, suspect), _evidence(job, suspect, slow))
        return Explained("host", "measured", evidence, function=slow.named)


def _waits_at_queue(job: Observed, suspect: Suspect) -> bool:
    slow = slow_function(job, suspect)
    return slow is not None and any(file in slow.function for file in HANDOVER)


def _has_rival(job: Observed, suspect: Suspect) -> bool:
    """Whether other threads compute more than its peers' do, and the training thread does not."""
    use = use_of_excess(job, suspect)
    if use.computed is None or use.computed >= PROCESSOR_TIME or use.is_starved:
        return False
    return (use.other_threads or 0.0) >= OTHER_PROCESSES


def _slow_function(job: Observed, suspect: Suspect) -> SlowFunction | None:
    """The function in which the other threads are more often than those of its peers."""
    trains, others = job.samples, job.samples_beside
    if trains is None or others is None:
        return None
    span, lasted_ns = of_slow_steps(job, trains, suspect)
    rows = np.append(suspect.row, job.peers_of(suspect.row, suspect.phase))
    time_ns = np.array([trains.weight[span & (trains.row == row)].sum() for row in rows])
    shares = _shares(job, others, suspect, rows) / np.maximum(time_ns, 1.0)[:, None]
    known = time_ns >= trains.least_ns
    if not known[0] or not known[1:].any():
        return None
    now, before = shares[0], np.median(shares[1:][known[1:]], axis=0)
    at = others.deepest(now - before)
    least = max(LEAST_SHARE, HALF * suspect.whole_ns / max(lasted_ns, 1.0))
    if at is None or now[at] - before[at] < least:
        return None
    own = others.row == suspect.row
    frame = others.line_of(at, own)
    caller = others.caller_of(frame, own)
    return SlowFunction(frame, float(now[at]), float(before[at]), 1.0, caller=caller)


def _shares(job: Observed, others: Samples, suspect: Suspect, rows: Ints) -> Floats:
    """`[rank, function]`: how long the other threads of each rank work in each function."""
    span, _ = of_slow_steps(job, others, suspect)
    works = span & ~others.end_in(is_librarys)
    inside, time_ns = others.shares_of(rows, works)
    return inside * time_ns[:, None]


def _evidence(job: Observed, suspect: Suspect, slow: SlowFunction) -> Evidence:
    thread = _thread_of(job, suspect, slow.function)
    called = f", called in {slow.caller}," if slow.caller else ""
    detail = (
        f"it waits for thread {thread}: {slow.function}{called} is in {percent(slow.share)} of the "
        f"samples, {percent(slow.before)} on its peers"
    )
    values: dict[str, Value] = {"share": slow.share, "peers": slow.before, "thread": thread}
    return Evidence(OtherThread.name, detail, values)


def _thread_of(job: Observed, suspect: Suspect, frame: str) -> str:
    """The name of the thread that was sampled in a frame for longest."""
    stacks = job.window.tables["stacks"]
    own = stacks.take((job.line.rows(stacks.ints("rank")) == suspect.row) & ~in_training(stacks))
    frames, names = own.strings("frames"), own.strings("thread")
    found = np.array([frame in (text or "") for text in frames.values], np.bool_)
    lasted = np.where(found[frames.codes], own.ints("duration_ns"), 0)
    longest = np.bincount(names.codes, lasted, len(names.values))
    return names.values[int(longest.argmax())]

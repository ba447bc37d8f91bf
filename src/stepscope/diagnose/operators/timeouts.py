"""How long ranks may wait for another before the job counts as hung."""

from __future__ import annotations

from stepscope.diagnose.operators.liveness import Activity, StepTiming

IDLE_STEPS, IDLE_NS = 2.0, 5 * 10**9
"""Timeout for an idle rank. VenusTrace, section 3.3: n = 2. The floor covers one or two missed
samples in a job with short steps. Paper."""
BUSY_STEPS, BUSY_NS = 5.0, 10 * 10**9
"""Timeout for a busy rank. EROICA, section 4.1: five step times. The floor covers evaluation and
compilation. Paper."""
SAVING_NS = 120 * 10**9
"""Timeout for a rank that saves, evaluates or compiles: two minutes, because writing a large
checkpoint takes that long. Our simulator."""
LONGER_PAUSE = 1.5
"""The timeout is at least 1.5 times the longest pause between steps so far. Our simulator."""
CALLS_STEPS, CALLS_NS = 10.0, 30 * 10**9
"""Timeout if only calls are known and all ranks made the same: twice and three times that of a
busy rank, because long work of all devices looks alike. Our simulator."""
STARTING_NS = 300 * 10**9
"""Before the first step, one rank may download, tokenise or compile while the others wait for it:
five minutes. Our simulator."""


def allowed_ns(activity: Activity, timing: StepTiming) -> float:
    """How long others may wait for a rank with this activity before it counts as a hang."""
    pause = LONGER_PAUSE * timing.longest_gap_ns if timing.started else STARTING_NS
    if activity == "idle":
        return max(IDLE_STEPS * timing.step_ns, IDLE_NS, pause)
    if activity == "saving":
        return max(BUSY_STEPS * timing.step_ns, SAVING_NS, pause)
    return max(BUSY_STEPS * timing.step_ns, BUSY_NS, pause)


def allowed_of_all_ns(timing: StepTiming) -> float:
    """The same if no rank is known to be behind: all of them may be doing the same long work."""
    return max(CALLS_STEPS * timing.step_ns, CALLS_NS, LONGER_PAUSE * timing.longest_gap_ns)

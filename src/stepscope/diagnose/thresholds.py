"""What a finding must cost before it becomes a verdict, and how its score is built.

Every constant says where it comes from: `paper`, `statistics`, `measured on real data`, or `our
simulator` (to be replaced by real data).
"""

from __future__ import annotations

LEAST_COST = 0.02
"""Below two percent of the step time nobody would act, and noise is as large. Our simulator."""
LEAST_COST_OUTSIDE = 0.1
"""What one rank does between steps is logging and checkpoints, by design: it must cost more. Our
simulator."""
LEAST_COST_IN_GAPS = 0.05
"""Nothing is saved between two phases of a step, but a rank that logs may read the loss there. Our
simulator."""
LEAST_COST_REPEATED = 0.01
"""Repeated spikes are no noise and seldom stay as they are. The same holds for one long spike whose
cause was measured: what was compiled once in mid-job will be compiled again. Our simulator."""
LEAST_COST_ONCE = 0.05
"""A single spike is an episode unless it matters as much as a storm of collections must. Our
simulator."""
LEAST_COST_OF_PAUSES = 0.1
"""A profiler trace is so short that any process may pause in it: a rank's pauses must cost what a
job may lose without a reason before it is no longer called healthy (`run`). Contract."""
LEAST_COST_ALONE = 0.1
"""Of its own steps that a rank must lose for which nobody waits: a job may lose as much before it
is no longer called healthy. Contract."""

SCORE, HIGHEST_SCORE = 0.7, 0.98
SCORE_PER_SIGMA, MOST_SIGMAS = 0.04, 4.0
LATE_BONUS, CAUSE_BONUS = 0.05, 0.05
"""A score grows with the distance to the alarm limit, with arrivals that agree and with a cause
that was measured. It orders verdicts; it is not a probability fitted to labelled jobs. Our
simulator."""

HALF = 0.5
"""More than half of a thing is most of it, whatever it is: a rise, an excess, a wait, the rows of a
phase, the ranks, hosts or steps in question. Only one of two parts can be that. Statistics."""
FAST = 0.25
"""The quantile of times that counts as normal: half of the steps may be slow, so the median is not.
Statistics."""

FALSE_ALARMS = 1e-3
"""Share of healthy jobs, windows or series in which a method may find anything by chance, all its
tests together. Statistics."""

LEAST_SCORE, SUSPECT_SCORE = 0.5, 0.45
"""Below the first a verdict is a suspect and accuses nobody (contract, section 4). The second is
the score of what may be planned or somebody else's fault, or of a group with an unknown culprit.
Our choice."""

THROTTLED = 0.1
"""Share of the time in which a quota must stop a rank, beyond its peers. Bursts of threads reach a
generous quota in one period out of a hundred. Measured on real data (the lab: 0.3 to 1, else 0)."""
PROCESSOR_TIME = 0.4
"""Part of an excess that must be processor time to be called computing: on a busy machine a rank
that computes waits for the processor for up to half of that time. Measured on real data."""
OTHER_PROCESSES = 0.25
"""Cores that other processes use on a rank's processors before they are called the reason. Measured
on real data (shared machines)."""


def score(sigmas: float) -> float:
    """The score of a finding, by how many standard deviations it lies above its alarm limit."""
    return min(SCORE + SCORE_PER_SIGMA * min(sigmas, MOST_SIGMAS), HIGHEST_SCORE)


AT_ONCE_NS = 30_000
"""A start follows an end if it is this close: `consecutive_kernel_delay` of HolisticTraceAnalysis,
the longest time that a device needs from one kernel to the next. Paper."""

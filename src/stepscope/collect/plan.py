"""How much a window of profiling records, from how many Python calls a step makes.

When torch's tracer stops, the training waits 2.2 µs for each recorded call, which take 1.1 KB each
(measured with 20 k, 100 k, 400 k and 1 M calls: 0.047, 0.22, 0.90 and 2.2 s; 32, 131, 496 and
1,094 MB). So the calls are counted before the window begins, and limited.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_CALLS = 500_000
"""Of a window: the training waits 1.1 s at its end, and 0.55 GB are taken. Measured."""
FEW_STEPS = 2
"""Steps of a window whose calls could not be counted. Our choice."""
FEWER = 4
"""A window that is too long has a fourth of its steps, or a fourth of that, and so on: ranks that
make about as many calls record the same steps, without a word between them. Our choice."""
COUNT_SECONDS = 0.5
"""How long calls are counted before a window that begins at once. Our choice."""
LEAST_SECONDS = 2.0
"""A window that begins at once names functions if they can be recorded for this long. Our
choice."""
FEW_SECONDS = 1.0
"""Length of such a window whose calls could not be counted. Our choice."""


@dataclass(frozen=True)
class Plan:
    """What a window records."""

    steps: int
    functions: bool
    """Whether Python's functions are recorded besides operators, kernels and copies."""
    seconds: float
    note: str | None = None
    """What is left out, and why."""


def by_step(calls: int | None, steps: int, seconds: float) -> Plan:
    """The plan of a window of some steps.

    Args:
        calls: Python calls of the step before; None: unknown.
        steps: how many steps were asked for.
        seconds: how long it may last.
    """
    if calls is None:
        few = min(steps, FEW_STEPS)
        return Plan(few, True, seconds, _fewer(few, steps, "calls could not be counted before"))
    if calls > MOST_CALLS:
        return Plan(steps, False, seconds, _without(f"a step makes {calls:,} calls"))
    most = steps
    while most * calls > MOST_CALLS:
        most = max(most // FEWER, 1)
    return Plan(most, True, seconds, _fewer(most, steps, f"a step makes {calls:,} Python calls"))


def at_once(calls: int | None, counted_seconds: float, seconds: float) -> Plan:
    """The plan of a window that begins within a step.

    Args:
        calls: Python calls that were counted; None: unknown.
        counted_seconds: for how long.
        seconds: how long it may last.
    """
    if calls is None:
        return Plan(1, True, min(seconds, FEW_SECONDS))
    rate = calls / max(counted_seconds, COUNT_SECONDS / 10)
    if rate * min(seconds, LEAST_SECONDS) > MOST_CALLS:
        return Plan(1, False, seconds, _without(f"a second has {round(rate):,} calls"))
    return Plan(1, True, min(seconds, MOST_CALLS / max(rate, 1.0)))


def _fewer(steps: int, asked: int, why: str) -> str | None:
    return f"{steps} of {asked} steps were recorded: {why}" if steps < asked else None


def _without(why: str) -> str:
    return f"Python's functions were not recorded: {why}, and {MOST_CALLS:,} are the limit"

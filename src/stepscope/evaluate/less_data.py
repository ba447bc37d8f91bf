"""The tables about jobs from which data was removed, and about stated confidence."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.evaluate.outcome import Tally, tallies
from stepscope.evaluate.reliability import Reliability, reliability
from stepscope.evaluate.runner import Result
from stepscope.evaluate.score import CERTAIN

NOTHING = "-"
RELIABILITY = "Verdicts by stated confidence"
_HEAD = ("data", "jobs", "costly", "exact", "inexact", "suspect", "unknown", "missed",
         "called healthy", "innocents accused", "healthy accused", "not recorded", "failed",
         "diagnosis", "in all")  # fmt: skip
_SHORT_HEAD = ("data", "jobs", "costly", "exact", "inexact", "suspect", "unknown", "missed",
               "called healthy", "innocents", "healthy", "hidden", "failed")  # fmt: skip
_CONFIDENCE = ("confidence", "verdicts", "right", "share right", "mean confidence")


def lines(results: Sequence[Result], short: bool = False) -> list[tuple[str, ...]]:
    """The head and one line for each condition; `short`: fits on a page, without CPU times."""
    found = [_line(one) for one in tallies(results)]
    if short:
        return [_SHORT_HEAD, *(line[: len(_SHORT_HEAD)] for line in found)]
    return [_HEAD, *found]


def _line(one: Tally) -> tuple[str, ...]:
    suspect = f"{one.suspect} ({one.suspect_right} right)" if one.suspect else "0"
    counts = (one.unknown, one.missed)
    shares = (f"{one.called_healthy}/{one.large}", f"{one.accused}/{one.jobs - one.healthy}",
              f"{one.healthy_accused}/{one.healthy}")  # fmt: skip
    seconds = NOTHING if one.seconds is None else f"{one.seconds.value:.2f} s"
    return (one.condition, str(one.jobs), str(one.costly), str(one.exact), str(one.inexact),
            suspect, *map(str, counts), *shares, str(one.unrecorded), str(one.failed),
            seconds, f"{one.total_s:.1f} s")  # fmt: skip


def by_confidence(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The head and one line for each range of confidence."""
    return [_CONFIDENCE, *map(_confidence, reliability(results))]


def _confidence(one: Reliability) -> tuple[str, ...]:
    name = (
        f"below {CERTAIN} (suspects)" if one.low < CERTAIN else f"{one.low:.1f} to {one.high:.1f}"
    )
    if one.stated is None:
        return name, "0", "0", NOTHING, NOTHING
    low, high = one.right.interval
    share = f"{100 * (one.right.value or 0):.0f} % ({100 * low:.0f} to {100 * high:.0f} %)"
    return name, str(one.right.of), str(one.right.hits), share, f"{one.stated:.2f}"

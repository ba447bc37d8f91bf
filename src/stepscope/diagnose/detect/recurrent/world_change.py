"""Ranks that leave a job or join it while it trains, and the restarts that this costs.

An elastic job (`torchrun --nnodes=MIN:MAX`) goes on without a lost host and takes it back later. At
each change all ranks stop, meet again and load a checkpoint, which takes as long as many steps.
A change may be wanted, or follow from a fault that ended ranks; by itself it is no fault. So it is
reported as a suspect, without ranks, where restarts cost more than a tenth of the time.
Paper: none. Cost: one mask of `[rank, step]`.
Cannot see: a host that another one replaced under the same ranks; hosts whose recorder stopped look
as if their ranks had left, but then no step is long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.in_turns import LEAST_LOSS
from stepscope.diagnose.detect.steps.recurring import running_median
from stepscope.diagnose.finding import Decision, Recurring
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Mask

STAYS = 3
"""Steps in a row before and after it: lost rows of single steps are no change. Our choice."""
SUSPECT = 0.4
"""Confidence: nobody knows whether the change was wanted. As `vanished.SUSPECT`."""
ADVICE = (
    "if nobody wanted it, find out why these ranks left (exit codes, logs of their hosts); "
    "otherwise look at what a restart does: rendezvous, loading the checkpoint, compilation"
)


@dataclass(frozen=True)
class Change:
    """A column from which other ranks than before do steps."""

    column: int
    left: tuple[int, ...]
    joined: tuple[int, ...]


class WorldChange:
    """Ranks that leave or join, with restarts that cost more than a tenth of the time."""

    name = "world-change"
    needs = Needs("steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Recurring]:
        changes = find_changes(job)
        lost_ns = [_restart_ns(job, one.column) for one in changes]
        whole = float(np.nansum(job.line.job_period_ns[job.line.warm_up :]))
        loss = sum(lost_ns) / max(whole, 1.0)
        if loss > LEAST_LOSS:
            yield _finding(job, changes, sum(lost_ns) / len(changes), loss)


def find_changes(job: Observed) -> list[Change]:
    """The columns at which ranks leave or join, while others stay."""
    present, found = np.isfinite(job.line.duration_ns), []
    for column in range(STAYS, present.shape[1] - STAYS + 1):
        before = present[:, column - STAYS : column]
        after = present[:, column : column + STAYS]
        left, joined = before.all(axis=1) & _none(after), _none(before) & after.all(axis=1)
        stayed = before.all(axis=1) & after.all(axis=1)
        if (left | joined).any() and stayed.any():
            found.append(Change(column, job.line.ranks_of(left), job.line.ranks_of(joined)))
    return found


def _none(present: Mask) -> Mask:
    return np.asarray(~present.any(axis=1))


def _restart_ns(job: Observed, column: int) -> float:
    """How much longer than usual the job took from the last step before a change to the second
    after it."""
    period, skip = job.period_ns, job.line.warm_up
    beyond = np.nan_to_num(period[skip:] - running_median(period[skip:]))
    return float(np.maximum(beyond[max(column - 1 - skip, 0) : column + 1 - skip], 0.0).sum())


def _finding(job: Observed, changes: list[Change], each_ns: float, loss: float) -> Recurring:
    line, first, stop = job.line, job.line.warm_up, len(job.line.steps)
    detail = "; ".join(_events(job, changes))
    many = f"{len(changes)} restarts take {each_ns / 1e9:.1f} s each"
    if len(changes) == 1:
        many = f"the restart takes {each_ns / 1e9:.1f} s"
    rule = Decision("costs-enough", True, loss, LEAST_LOSS, "lost in restarts", gate=False)
    return Recurring(
        WorldChange.name, "unknown", detail, steps=line.span(first, stop),
        time_ns=line.span_ns(first, stop), slowdown=1 / max(1 - loss, 0.01), lost_ns=each_ns,
        lost_fraction=loss, victims=0, score=SUSPECT, decisions=(rule,),
        values={"changes": len(changes), "each_ns": each_ns, "lost_fraction": loss},
        says=f"{detail}; {many}, which costs {percent(loss)} of the time", advises=ADVICE,
    )  # fmt: skip


def _events(job: Observed, changes: list[Change]) -> Iterator[str]:
    """`ranks 8 and 9 left the job at step 30 and joined it at step 60`, for each set of ranks."""
    said: dict[tuple[int, ...], list[str]] = {}
    for one in changes:
        step = int(job.line.steps[one.column])
        for ranks, verb in ((one.left, "left it"), (one.joined, "joined it")):
            if ranks:
                said.setdefault(ranks, []).append(f"{verb} at step {step}")
    for ranks, events in said.items():
        events[0] = events[0].replace(" it ", " the job ")
        yield f"{name_ranks(ranks)} {' and '.join(events)}"

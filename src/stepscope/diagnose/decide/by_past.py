"""Findings on groups whose communication kernels take longer than before, but not their equals'."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stepscope.diagnose.detect.group_since import Since, slower_since
from stepscope.diagnose.detect.slow_group_kernels import RATIO
from stepscope.diagnose.finding import Decision, SlowLink
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE, SUSPECT_SCORE


def slow_since(job: Observed, method: str, named: Collection[int]) -> Iterator[SlowLink]:
    """The group that moves data slower than before, unless a rank that has a verdict is in it."""
    found = [one for one in slower_since(job) if set(named).isdisjoint(one.group.ranks)]
    if found:
        yield _finding(job, method, found[0])


def _finding(job: Observed, method: str, one: Since) -> SlowLink:
    line, stop = job.line, len(job.line.steps)
    period = line.job_period_ns
    usual, before = stats.median(period[one.split :]), stats.median(period[: one.split])
    lost_ns = max(min(one.rise_ns, usual - before), 0.0)
    lost_fraction = lost_ns / max(usual, 1.0)
    where = f"in {one.group.id} than before"
    detail = (
        f"even the member of {one.group.id} that waits least takes {one.ratio:.2f} times as long "
        f"in {one.kernel} as before step {line.steps[one.split]}, which equal groups do not"
    )
    return SlowLink(
        method, "network", detail, group=one.group.id, kernels=(one.kernel,),
        steps=line.span(one.split, stop), time_ns=line.span_ns(one.split, stop),
        slowdown=one.ratio, lost_ns=lost_ns, lost_fraction=lost_fraction, where=where,
        columns=tuple(range(one.split, stop)), victims=len(line.ranks),
        score=SCORE if one.is_sure else SUSPECT_SCORE,  # an unrecorded member may be late
        values={"where": where, "ratio": one.ratio, "lost_ns": lost_ns,
                "members": list(one.group.ranks), "lost_fraction": lost_fraction},
        decisions=(Decision(method, True, one.ratio, RATIO, detail),),
    )  # fmt: skip

"""Turns findings into verdicts: what each lost, and the order by cost and score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.diagnose.finding import Evidence, Finding, Regression, Slowdown, Stuck, Verdict
from stepscope.diagnose.network.devices import culprit_devices
from stepscope.diagnose.operators.endings import until_it_ended
from stepscope.diagnose.operators.liveness import lasting_stack
from stepscope.diagnose.shown import StepSeries
from stepscope.diagnose.views.frames import is_ours, users_frame
from stepscope.diagnose.words.advice import advise
from stepscope.diagnose.words.summary import summary
from stepscope.window import Window


def verdict_of(window: Window, finding: Finding) -> Verdict:
    """One finding with its hosts, devices, victims, sentence and advice."""
    hosts = tuple(dict.fromkeys(h for rank in finding.ranks if (h := window.host_of(rank))))
    stack = _stack(window, finding)
    return Verdict(
        kind=finding.kind, cause=finding.cause, summary=summary(finding), advice=advise(finding),
        ranks=finding.ranks, hosts=hosts, group=finding.group,
        devices=finding.devices or culprit_devices(window, finding, hosts),
        phase=finding.phase, kernels=finding.kernels,
        function=_function(finding, stack),
        steps=finding.steps, time_ns=finding.time_ns,
        slowdown=finding.slowdown, lost_fraction=_lost_fraction(finding),
        confidence=round(finding.score, 3), victims=_victims(window, finding),
        evidence=_evidence(finding), decisions=finding.decisions, stack=stack,
        ended=finding.ended if isinstance(finding, Stuck) else "",
        lost_of=finding.lost_of,
        places=finding.places if isinstance(finding, Stuck) else (),
    )  # fmt: skip


def _function(finding: Finding, stack: Sequence[str]) -> str | None:
    """The finding's function, or where a rank hangs: never one of stepscope's own."""
    if finding.function is not None and not is_ours(finding.function):
        return finding.function
    return users_frame(stack) if finding.kind == "hang" else None


def _stack(window: Window, finding: Finding) -> tuple[str, ...]:
    """The last stack of a rank that hangs, or that called another operator in a dump: not what it
    did when the job was ended."""
    if not isinstance(finding, Stuck):
        return ()
    if finding.stack is not None or not finding.ranks:
        return finding.stack or ()
    shown = finding.kind == "hang" or finding.method == "desync"
    return lasting_stack(until_it_ended(window), finding.ranks[0]) if shown else ()


def _lost_fraction(finding: Finding) -> float | None:
    if isinstance(finding, Regression) and finding.lost_fraction is None:
        return 1 - 1 / (finding.slowdown or 1.0)
    return finding.lost_fraction


def _victims(window: Window, finding: Finding) -> int:
    """The number of ranks that wait: by the method, else the other members of their groups."""
    if finding.victims is not None:
        return finding.victims
    members = {rank for group in window.groups if set(group.ranks) & set(finding.ranks)
               for rank in group.ranks}  # fmt: skip
    return len(members - set(finding.ranks))


def _evidence(finding: Finding) -> tuple[Evidence, ...]:
    own = Evidence(finding.method, finding.detail, finding.values)
    if not isinstance(finding, Slowdown):
        return (own,)
    if finding.lag_ns is None:
        return (own, *finding.supporting)
    detail = f"it arrived last in collectives, by {finding.lag_ns / 1e6:.1f} ms per step"
    arrival = Evidence("last-arrival", detail, {"lag_ns": finding.lag_ns})
    return (own, arrival, *finding.supporting)


def ranked(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Hangs and mismatches first, then by expected gain; suspects last."""
    return tuple(sorted(verdicts, key=_order))


def _order(verdict: Verdict) -> tuple[bool, bool, float, tuple[int, ...]]:
    gain = verdict.confidence * (verdict.lost_fraction or 0.0)
    return (verdict.is_suspect, verdict.kind == "slowdown", -gain, verdict.ranks)


def with_loss(verdict: Verdict, ranks: int, series: StepSeries) -> Verdict:
    """The verdict with its duration and loss. In a hang everybody who waits, or is stuck, loses all
    of the time; in a slowdown all ranks lose the same share of it."""
    lasted_ns = _lasted_ns(verdict, series)
    if verdict.stands_still:
        lost = float(lasted_ns * (verdict.victims + len(verdict.ranks)))
    else:
        lost = (verdict.lost_fraction or 0.0) * lasted_ns * ranks
    return replace(verdict, lasted_ns=lasted_ns, lost_rank_ns=lost)


def _lasted_ns(verdict: Verdict, series: StepSeries) -> int:
    if verdict.time_ns is not None:
        return verdict.time_ns[1] - verdict.time_ns[0]
    if verdict.steps is None:
        return 0
    first, last = verdict.steps
    steps = zip(series.steps, series.duration_ns, strict=True)
    return sum(took for step, took in steps if first <= step <= last)

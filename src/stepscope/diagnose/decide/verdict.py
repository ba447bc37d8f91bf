"""Blame: findings become verdicts, culprits only, ranked by what they cost and how sure they are.

The six rules and where they are kept: own time counts (own_time); the last to arrive is late
(methods.arrival, which limits the cost); lateness is explained backwards, so a rank late without
own excess is no culprit (blame starts from own time only); an absorbed delay costs nothing (cost);
unequal work is imbalance (causes); what all do slowly is code (methods.everyone).
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.decide.cost import Cost
from stepscope.diagnose.decide.join import Slow, lost_fraction
from stepscope.diagnose.detect.slow_group import SlowTransfer
from stepscope.diagnose.detect.straggler_ranks import is_brief
from stepscope.diagnose.explain import gpu_clock as clock
from stepscope.diagnose.explain import passes
from stepscope.diagnose.explain.reason import Reason
from stepscope.diagnose.finding import Evidence, Finding, Value, Verdict
from stepscope.diagnose.network.devices import culprit_devices
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.liveness import latest_stack
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import (
    CAUSE_BONUS,
    HIGHEST_SCORE,
    LATE_BONUS,
    LEAST_COST,
    LEAST_COST_IN_GAPS,
    LEAST_COST_ONCE,
    LEAST_COST_OUTSIDE,
    LEAST_COST_REPEATED,
    MOST_SIGMAS,
    SCORE,
    SCORE_PER_SIGMA,
    score,
)
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE
from stepscope.diagnose.words.advice import advise, name_ranks
from stepscope.window import Window

SLIGHT = 1.1
"""Below it one digit would say "1.0 times"."""


def slow_finding(job: Observed, one: Suspect, reason: Reason, cost: Cost, at: int) -> Finding:
    """One culprit with its cause and cost."""
    line = job.line
    lag = cost.lag_ns[at]
    sure = SCORE + SCORE_PER_SIGMA * min(one.z - one.needed, MOST_SIGMAS)
    sure += LATE_BONUS * bool(lag) + CAUSE_BONUS * bool(reason.evidence)
    phase = reason.phase or (None if reason.whole_rank else one.named_phase)
    share = cost.fractions[at]
    values: dict[str, Value] = {
        "slowdown": one.slowdown,
        "effect": one.effect,
        "z": one.z,
        "z_needed": one.needed,
        "excess_ns": one.excess_ns,
        "lost_fraction": share,
        "least_fraction": _least_cost(job, one, reason.proven),
        **({"blows": len(one.struck), "steps": one.stop - one.first} if one.struck else {}),
        "lag_ns": lag,
    }
    if reason.cause == "compute":
        values["clock"] = clock.relative(job, one.row, one.first, one.stop)
        values["slow_in"] = passes.extent(job, one)
    if reason.of_gpu:
        values["of_gpu"] = True
    rank = int(line.ranks[one.row])
    if not one.phases:
        sure = SCORE + LATE_BONUS * bool(lag) + MOST_SIGMAS * SCORE_PER_SIGMA
    detail = _above_peers(one) + (
        f" (z {one.z:.1f}, noise reaches {one.needed:.1f})" if one.phases else ""
    )
    return Finding(
        method=_method(job, one), kind="slowdown", cause=reason.cause,
        detail=detail, ranks=(rank,),
        phase=phase, kernels=reason.kernels, function=reason.function,
        steps=line.span(one.first, one.stop),
        time_ns=line.span_ns(one.first, one.stop), lost_ns=one.excess_ns,
        slowdown=reason.slowdown or one.slowdown,
        confidence=min(sure, HIGHEST_SCORE), values=values,
    )  # fmt: skip


def _above_peers(one: Suspect) -> str:
    if not one.struck:
        return f"own time {one.excess_ns / 1e6:.1f} ms per step above its peers"
    each_ns = one.whole_ns / len(one.struck)
    often = _often(len(one.struck), one.stop - one.first)
    return f"own time {each_ns / 1e6:.1f} ms above its peers{often}"


def _often(blows: int, steps: int) -> str:
    if blows == steps:
        return "" if steps > 1 else " in one step"
    return f" in {blows} of {steps} steps"


def _method(job: Observed, one: Suspect) -> str:
    if one.struck:
        return "episodes"
    if not one.phases:
        return "pauses"
    return "brief" if is_brief(job) else "argus-l2"


def costs_enough(finding: Finding) -> bool:
    """Whether a slow rank costs the job anything worth a verdict."""
    share = lost_fraction(finding)
    least = finding.values.get("least_fraction")
    return share is not None and share >= (least if isinstance(least, float) else LEAST_COST)


def _least_cost(job: Observed, one: Suspect, proven: bool) -> float:
    """Of a culprit. Traces have gaps between operators, within a phase, outside as well.

    What may be noise, or a rank's duty, must cost more, unless its cause was measured.
    """
    if job.window.table("host_ops") is not None:
        return LEAST_COST
    if one.struck and (proven or not one.alone) and one.phase != OUTSIDE:
        return LEAST_COST_REPEATED
    if proven:
        return LEAST_COST
    if one.struck and one.phase != OUTSIDE:
        return LEAST_COST_ONCE
    return {OUTSIDE: LEAST_COST_OUTSIDE, GAPS: LEAST_COST_IN_GAPS}.get(one.phase or "", LEAST_COST)


def slow_verdict(window: Window, one: Slow) -> Verdict:
    """A slow rank as people read it."""
    finding, share = one.finding, lost_fraction(one.finding)
    evidence = [Evidence(finding.method, finding.detail, finding.values)]
    lag = finding.values.get("lag_ns")
    if isinstance(lag, float):
        detail = f"it came last in collectives, by {lag / 1e6:.1f} ms per step"
        evidence.append(Evidence("arrival", detail, {"lag_ns": lag}))
    return _verdict(
        window, finding, _slow_summary(one), (*evidence, *one.evidence),
        _victims(window, finding), share,
    )  # fmt: skip


def everyones_verdict(window: Window, finding: Finding) -> Verdict:
    """A rise that all ranks share."""
    slowdown = finding.slowdown or 1.0
    own = Evidence(finding.method, finding.detail, finding.values)
    return _verdict(window, finding, _everyones_summary(finding), (own,), 0, 1 - 1 / slowdown)


def network_finding(job: Observed, one: SlowTransfer) -> Finding:
    """Data that moves slower in one place than in its equals."""
    line = job.line
    lost_ns = one.own_ns - one.usual_ns
    where = f"{one.group} (ranks {', '.join(map(str, one.members))})"
    detail = (
        f"after the last arrival data moves for {one.own_ns / 1e6:.1f} ms per step in {where}, "
        f"{one.usual_ns / 1e6:.1f} ms in {'others' if one.equals > 1 else 'the other'} like it "
        f"(z {one.z:.1f}, noise reaches {one.needed:.1f})"
    )
    values: dict[str, Value] = {
              "where": f"in {one.group} than in equal groups",
              "own_ns": one.own_ns, "usual_ns": one.usual_ns, "equals": one.equals, "z": one.z,
              "z_needed": one.needed, "victims": len(job.window.ranks) - len(one.culprits),
              "lost_fraction": min(lost_ns / max(line.typical_ns, 1.0), 1.0)}  # fmt: skip
    return Finding(
        method="transfer", kind="slowdown", cause="network", detail=detail, ranks=one.culprits,
        group=one.group, steps=line.span(one.first, one.stop),
        time_ns=line.span_ns(one.first, one.stop), slowdown=one.ratio, lost_ns=lost_ns,
        confidence=score(one.z - one.needed), values=values,
    )  # fmt: skip


def network_verdict(window: Window, finding: Finding) -> Verdict:
    """A slow link as people read it."""
    victims = finding.values["victims"]
    text = f"data moves {_times(finding.slowdown)} slower {finding.values['where']}"
    if finding.ranks:
        text += f", at {name_ranks(finding.ranks)}"
    return _verdict(
        window, finding, text + _since(finding),
        (Evidence(finding.method, finding.detail, finding.values),),
        victims if isinstance(victims, int) else 0, lost_fraction(finding),
    )  # fmt: skip


def stuck_verdict(window: Window, finding: Finding) -> Verdict:
    """A hang or a mismatch."""
    own = Evidence(finding.method, finding.detail, finding.values)
    victims = finding.values.get("victims")
    stack = (
        latest_stack(window, finding.ranks[0]) if finding.kind == "hang" and finding.ranks else ()
    )
    count = victims if isinstance(victims, int) else _victims(window, finding)
    return _verdict(window, finding, _stuck_summary(finding), (own,), count, None, stack)


def _verdict(
    window: Window,
    finding: Finding,
    summary: str,
    evidence: tuple[Evidence, ...],
    victims: int,
    lost_fraction: float | None,
    stack: tuple[str, ...] = (),
) -> Verdict:
    hosts = tuple(dict.fromkeys(h for rank in finding.ranks if (h := window.host_of(rank))))
    function = finding.function or (stack[-1] if stack else None)
    return Verdict(
        kind=finding.kind, cause=finding.cause, summary=summary, advice=advise(finding),
        ranks=finding.ranks, hosts=hosts, group=finding.group,
        devices=finding.devices or culprit_devices(window, finding, hosts),
        phase=finding.phase, kernels=finding.kernels,
        function=function, steps=finding.steps, time_ns=finding.time_ns,
        slowdown=finding.slowdown, lost_fraction=lost_fraction,
        confidence=round(finding.confidence, 3), victims=victims, evidence=evidence, stack=stack,
    )  # fmt: skip


def _victims(window: Window, finding: Finding) -> int:
    """Members of the culprits' groups, culprits aside."""
    members = {rank for group in window.groups if set(group.ranks) & set(finding.ranks)
               for rank in group.ranks}  # fmt: skip
    return len(members - set(finding.ranks))


def _slow_summary(one: Slow) -> str:
    finding = one.finding
    plural = len(finding.ranks) > 1
    verb = {
        "compute": "compute" if plural else "computes",
        "data_loading": "load data" if plural else "loads data",
    }.get(finding.cause, "are" if plural else "is")
    text = f"{name_ranks(finding.ranks)} {verb} {_times(finding.slowdown)} slower than "
    text += "their peers" if plural else "its peers"
    if finding.phase is not None and finding.cause != "data_loading":
        text += f" in {finding.phase}"
    blows, steps = finding.values.get("blows"), finding.values.get("steps")
    if isinstance(blows, int) and isinstance(steps, int):
        text += _often(blows, steps)
    return text + _because(one) + _since(finding)


def _because(one: Slow) -> str:
    finding = one.finding
    reason = {
        "memory_copy": ", copying between host and device",
        "gc": ", held up by garbage collection",
        "contention": ", as other processes take the processors",
        "jit_compile": ", compiling",
        "load_imbalance": ", with more work to do",
    }.get(finding.cause, "")
    if finding.values.get("of_gpu"):
        reason = ", as other processes compute on its device"
    if finding.values.get("shared_devices"):
        reason = ", as something else seems to use the devices"
    if finding.cause == "host" and finding.function is None:
        traced = any(each.method == "breakdown" for each in one.evidence)
        reason = ", its host being late" if traced else ", waiting for a processor or blocked"
    if finding.function is not None:
        reason += f", in {short_frame(finding.function)}"
    return reason


def _times(slowdown: float | None) -> str:
    if slowdown is None:
        return "times"
    if slowdown > 100:
        return "more than 100x"
    return f"{slowdown:.1f}x" if slowdown >= SLIGHT else f"{slowdown:.2f}x"


def _since(finding: Finding) -> str:
    return "" if finding.steps is None else f" from step {finding.steps[0]}"


def _everyones_summary(finding: Finding) -> str:
    if finding.values.get("paused_steps") is not None:
        lost = f"{100 * (1 - 1 / (finding.slowdown or 1.0)):.0f} %"
        return f"ranks collect garbage by turns, and all lose {lost} of the time{_since(finding)}"
    text = f"all ranks take {_times(finding.slowdown).replace('x', '')} times as long per step"
    if finding.function is not None:
        text += f" because of {short_frame(finding.function)}"
    elif finding.cause == "gc":
        text += " because of garbage collection"
    elif finding.cause == "load_imbalance":
        text += ", waiting for ever another rank that has more work to do"
    elif finding.values.get("exposed") is not None:
        who = finding.phase or "computing"
        text += f", as {who} waits for {finding.values['exposed']} between replicas"
    elif finding.phase is not None:
        text += f", most of it in {finding.phase}"
    return text + _since(finding)


def _stuck_summary(finding: Finding) -> str:
    if finding.kind == "mismatch":
        return finding.detail
    if not finding.ranks:
        return f"the job hangs: {finding.detail}"
    verb = "hang" if len(finding.ranks) > 1 else "hangs"
    return f"{name_ranks(finding.ranks)} {verb}: {finding.detail}"


def ranked(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Hangs and mismatches first, then by expected gain."""
    return tuple(sorted(verdicts, key=_order))


def _order(verdict: Verdict) -> tuple[int, float, tuple[int, ...]]:
    gain = verdict.confidence * (verdict.lost_fraction or 0.0)
    return (verdict.kind == "slowdown", -gain, verdict.ranks)


def short_frame(frame: str) -> str:
    """`step (/home/me/job/train.py:7)` as `step (train.py:7)`: sentences want names, not paths."""
    function, opened, place = frame.rpartition(" (")
    return f"{function}{opened}{place.rpartition('/')[2]}" if opened else frame

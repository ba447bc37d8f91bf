"""Writes each finding as one sentence: who is slow, by how much, where, why and since when."""

from __future__ import annotations

from stepscope.diagnose.finding import (
    Finding,
    Recurring,
    Regression,
    Slowdown,
    SlowLink,
    Stuck,
    Waste,
)
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent

SLIGHT = 1.1
"""Below this ratio two digits are shown, because one would read "1.0x"."""
LONG = 10.0
"""From this ratio on a rank's excess is shown in milliseconds: the ratio says how short the time of
its peers is, and not what is lost. Our choice."""


def summary(finding: Finding) -> str:
    """The one-sentence summary of a finding, which users read first."""
    match finding:
        case Slowdown():
            return finding.says or _slow_summary(finding)
        case SlowLink():
            return _link_summary(finding)
        case Waste() | Recurring():
            return finding.says
        case Regression():
            return _everyones_summary(finding)
        case Stuck():
            return _stuck_summary(finding)
    return finding.detail


def _link_summary(finding: SlowLink) -> str:
    text = f"data moves {_slower(finding.slowdown)} {finding.where}"
    if finding.ranks:
        text += f", at {name_ranks(finding.ranks)}"
    if finding.lost_of is not None and finding.steps is not None:
        text += often(len(finding.columns), finding.steps[1] - finding.steps[0] + 1)
    return text + _since(finding)


def _slow_summary(finding: Slowdown) -> str:
    plural, suspect = len(finding.ranks) > 1, finding.suspect
    verb = {
        "compute": "compute" if plural else "computes",
        "data_loading": "load data" if plural else "loads data",
    }.get("" if finding.values.get("host_timers") else finding.cause, "are" if plural else "is")
    usual = "its peers" if suspect is None else suspect.usual
    usual = usual.replace("its ", "their ") if plural else usual
    text = f"{name_ranks(finding.ranks)} {verb} {_slower(finding.slowdown)} than {usual}"
    if suspect is not None and (finding.slowdown or 0.0) >= LONG:
        takes = "take" if plural else "takes"
        text = f"{name_ranks(finding.ranks)} {takes} {_longer_ms(suspect)} longer than {usual}"
        text += " to load data" if finding.cause == "data_loading" else ""
    if finding.phase is not None and finding.cause != "data_loading":
        text += f" in {finding.phase}"
    if finding.spikes is not None:
        text += often(finding.spikes, finding.of_steps)
    return text + _because(finding) + _since(finding)


def _longer_ms(suspect: Suspect) -> str:
    """`281 ms`: what it takes longer in a step in which it is slow."""
    steps = len(suspect.spikes) or suspect.stop - suspect.first
    return f"{suspect.whole_ns / steps / 1e6:.0f} ms"


def _because(finding: Slowdown) -> str:
    whose = "their" if len(finding.ranks) > 1 else "its"
    reason = {
        "memory_copy": ", copying between host and device",
        "gc": ", held up by garbage collection",
        "contention": f", because other processes use {whose} processors",
        "jit_compile": ", compiling",
        "load_imbalance": ", with more work to do",
    }.get(finding.cause, "")
    if finding.of_gpu:
        reason = f", because other processes compute on {whose} device" + "s" * (whose == "their")
    if finding.shared_devices:
        reason = ", because something else seems to use the devices"
    if finding.cause == "host" and finding.function is None:
        traced = any(each.method == "trace" for each in finding.supporting)
        reason = (
            f", because {whose} host is late" if traced else ", waiting for a processor or blocked"
        )
        if any(each.method == "cpu-quota" for each in finding.supporting):
            reason = f", because a quota limits {whose} processor time"
        if any(each.method == "stopped-process" for each in finding.supporting):
            reason = f", because {whose} process was stopped"
    if finding.function is not None:
        reason += f", in {short_frame(finding.function)}"
    return reason


def often(spikes: int, steps: int) -> str:
    """In how many of the steps something happened, as ` in 3 of 40 steps`."""
    if spikes == steps:
        return "" if steps > 1 else " in one step"
    return f" in {spikes} of {steps} steps"


def _slower(slowdown: float | None) -> str:
    """`3.9x slower`; no number where it is unknown, or where only some steps are longer."""
    known = slowdown is not None and slowdown > 1
    return f"{_times(slowdown or 1.0)} slower" if known else "slower"


def _times(slowdown: float) -> str:
    if slowdown > 100:
        return "more than 100x"
    return f"{slowdown:.1f}x" if slowdown >= SLIGHT else f"{slowdown:.2f}x"


def _since(finding: Finding) -> str:
    return "" if finding.steps is None else f" from step {finding.steps[0]}"


def _everyones_summary(finding: Regression) -> str:
    if finding.paused_steps is not None:
        lost = percent(1 - 1 / (finding.slowdown or 1.0))
        return f"ranks collect garbage in turns, and all lose {lost} of the time{_since(finding)}"
    text = "all ranks take longer per step"
    if finding.slowdown is not None:
        times = _times(finding.slowdown).replace("x", "")
        text = f"all ranks take {times} times as long per step"
    if finding.function is not None and finding.cause == "gc":
        text += f" because of garbage collection in {short_frame(finding.function)}"
    elif finding.function is not None:
        text += f" because of {short_frame(finding.function)}"
    elif finding.of_gpu:
        text += " because other processes compute on their devices"
    elif finding.cause == "gc":
        text += " because of garbage collection"
    elif finding.cause == "load_imbalance":
        text += ", waiting in each step for a different rank that has more work to do"
    elif finding.exposed is not None:
        who = finding.phase or "computing"
        text += f", because {who} waits for {finding.exposed} between replicas"
    elif finding.phases:
        text += f", most of it in {' and '.join(finding.phases)}"
    elif finding.phase is not None:
        text += f", most of it in {finding.phase}"
    if finding.gradual is not None:
        first, last = finding.gradual
        return f"{text}, gradually from step {first} to step {last}"
    return text + _since(finding)


def _stuck_summary(finding: Stuck) -> str:
    if finding.says or finding.kind == "mismatch":
        return finding.says or finding.detail
    if not finding.ranks:
        return f"the job hangs: {finding.detail}"
    verb = "hang" if len(finding.ranks) > 1 else "hangs"
    return f"{name_ranks(finding.ranks)} {verb}: {finding.detail}"


def short_frame(frame: str) -> str:
    """`step (/home/me/job/train.py:7)` as `step (train.py:7)`: a sentence has no room for paths."""
    function, opened, place = frame.rpartition(" (")
    return f"{function}{opened}{place.rpartition('/')[2]}" if opened else frame

"""Why a culprit is slow: the exact cause where something measured shows it, else the plain one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.diagnose.detect.gc_pauses import EXPLAINS, extra_pause_ns
from stepscope.diagnose.explain import experts as inner
from stepscope.diagnose.explain import gpu_clock as clock
from stepscope.diagnose.explain import tokens
from stepscope.diagnose.explain.cpu import Use, use_of_excess
from stepscope.diagnose.explain.experts import Part
from stepscope.diagnose.explain.trace import Longer, longer
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import PROCESSOR_TIME
from stepscope.diagnose.views.peers import is_expert
from stepscope.diagnose.views.stacks import Samples, SlowFunction, compiles, slower_than_peers
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE
from stepscope.trace import DATA_LOAD

JUST_THEN = 2.0
"""Times as often as in all steps: what a device counts all the time explains no slow ones."""


@dataclass(frozen=True)
class Reason:
    """A cause, the function behind it where stacks show one, and what supports it."""

    cause: Cause
    function: str | None
    evidence: tuple[Evidence, ...]
    whole_rank: bool = False
    """Whether the cause concerns all the rank does, so that no phase is to be named."""
    kernels: tuple[str, ...] = ()
    phase: str | None = None
    """A phase that says more than the one in which the rank was found to be slow."""
    slowdown: float | None = None
    """And how many times longer it takes than on the peers."""
    proven: bool = False
    """Whether something measured shows it, and not what is left when nothing else fits."""
    of_gpu: bool = False
    """Whether it is the GPU that others compete for, and not the host."""


def reason_of(job: Observed, samples: Samples | None, one: Suspect) -> Reason:
    """The cause of one culprit's excess, the most exact one that is proven."""
    pause = extra_pause_ns(job, one.row, one.first, one.stop)
    if pause >= EXPLAINS * max(one.excess_ns, 1.0):
        return Reason("gc", None, (_pauses(pause, one),), proven=True)
    traced = longer(job, one)
    if traced is not None and one.phase != DATA_LOAD:
        return _traced(job, samples, one, traced)
    use = use_of_excess(job, one)
    if use.is_starved and one.phase != DATA_LOAD:
        cause: Cause = "contention" if use.has_strangers else "host"
        return Reason(cause, None, (_use(use),), one.inflated > 1, proven=True)
    if one.phase in (DATA_LOAD, GAPS, OUTSIDE) or use.is_late:
        return _of_host(job, samples, one, use)
    return _of_device(job, one, use) or (
        Reason(_plain(job, one, use), None, (_use(use),))
        if use.keeps_ahead  # what its host does meanwhile is no reason
        else _of_host(job, samples, one, use)
    )


def _of_device(job: Observed, one: Suspect, use: Use) -> Reason | None:
    """What is known of a device, or of its work, that makes it late."""
    speed = clock.relative(job, one.row, one.first, one.stop)
    if clock.is_low(speed):
        held = job.hardware("clock_held_down", one.first, one.stop)[one.row]
        evidence = (_clock(speed or 0.0, float(held)), *_measured(use))
        return Reason("compute", None, evidence, proven=True)
    strangers = clock.strangers(job, one.row, one.first, one.stop)
    if strangers > 0:
        evidence = (_on_device(strangers), *_measured(use))
        return Reason("contention", None, evidence, proven=True, of_gpu=True)
    counted = _errors(job, one)
    if counted is not None:
        return Reason("compute", None, (counted, *_measured(use)), proven=True)
    return _of_experts(job, one, use)


def _of_experts(job: Observed, one: Suspect, use: Use) -> Reason | None:
    """More tokens for its experts, if nothing else makes its passes longer."""
    phases = inner.parts_of(job, one)
    parts = phases or inner.kernels_of(job, one)
    experts = inner.more_for_experts(parts)
    if experts is None or not inner.explain(parts, one):
        return None
    if not any(job.window.job.groups_of_kind("ep")) or tokens.too_many(job, one, experts):
        return None
    return Reason(
        "load_imbalance", None, (_experts(parts, experts), *_measured(use)),
        kernels=() if phases else (experts,), phase=experts if phases else None,
        slowdown=parts[experts].slowdown if phases else None,
    )  # fmt: skip


def _of_host(job: Observed, samples: Samples | None, one: Suspect, use: Use) -> Reason:
    evidence = _measured(use)
    slow = _slow(job, samples, one)
    cause = _plain(job, one, use)
    if slow is None:
        return Reason(cause, None, evidence)
    if compiles(slow.function):
        cause = "jit_compile"
    evidence = (*evidence, _stack(slow))
    return Reason(cause, slow.function, evidence, proven=cause == "jit_compile")


def _traced(job: Observed, samples: Samples | None, one: Suspect, traced: Longer) -> Reason:
    """What a trace of every operator shows, with the function that stacks in it name."""
    slow = _slow(job, samples, one)
    if slow is None:
        return Reason(traced.cause, None, (traced.evidence,), kernels=traced.kernels)
    cause = "jit_compile" if compiles(slow.function) else traced.cause
    evidence = (traced.evidence, _stack(slow))
    return Reason(cause, slow.function, evidence, kernels=traced.kernels)


def _plain(job: Observed, one: Suspect, use: Use) -> Cause:
    if one.phase == DATA_LOAD:
        return "data_loading"
    if one.phase and is_expert(one.phase) and any(job.window.job.groups_of_kind("ep")):
        return "compute" if tokens.too_many(job, one, one.phase) else "load_imbalance"
    if use.computed is None:
        return "host" if one.phase in (OUTSIDE, GAPS) or use.is_late else "compute"
    return "compute" if use.computed >= PROCESSOR_TIME else "host"


def _slow(job: Observed, samples: Samples | None, one: Suspect) -> SlowFunction | None:
    if samples is None:
        return None
    begin, end = job.line.span_ns(one.first, one.stop)
    span = (samples.time_ns >= begin) & (samples.time_ns < end)
    others = job.peers_of(one.row, one.phase).tolist()
    return slower_than_peers(samples, one.row, others, span, one.whole_ns / max(end - begin, 1))


def _pauses(pause_ns: float, one: Suspect) -> Evidence:
    detail = (
        f"garbage collection takes {pause_ns / 1e6:.1f} ms per step more than on its peers, of "
        f"{one.excess_ns / 1e6:.1f} ms excess"
    )
    return Evidence("pauses", detail, {"pause_ns": pause_ns, "excess_ns": one.excess_ns})


def _measured(use: Use) -> tuple[Evidence, ...]:
    return (_use(use),) if use.is_measured else ()


def _use(use: Use) -> Evidence:
    parts = []
    if use.computed is not None:
        parts.append(f"{_percent(use.computed)} of the excess is processor time")
    if use.starved is not None:
        parts.append(f"{_percent(use.starved)} is waiting for a processor beyond its peers")
    if use.strangers is not None:
        parts.append(f"strangers take {use.strangers:.1f} cores there")
    if use.crowded is not None and use.has_strangers:
        parts.append(f"{_percent(use.crowded)} of its host is used by others than the job")
    if use.ahead is not None:
        parts.append(f"its host is ahead of its device by {_percent(use.ahead)} of what is usual")
    values = {"computed": use.computed, "starved": use.starved, "strangers": use.strangers,
              "crowded": use.crowded, "ahead": use.ahead}  # fmt: skip
    return Evidence("processor", "; ".join(parts), values)


def _clock(speed: float, held_down: float) -> Evidence:
    """`held_down`: share of the time in which heat or power held the clock down; NaN unknown."""
    detail = f"its device runs at {_percent(speed)} of its peers' clock"
    if held_down > 0:
        detail += f", held down by heat or the power supply {_percent(held_down)} of the time"
    return Evidence("clock", detail, {"clock": speed})


def _errors(job: Observed, one: Suspect) -> Evidence | None:
    """That its device counts errors just then."""
    mine = job.errors[one.row]
    during, always = float(mine[one.columns].mean()), float(mine.mean())
    if during == 0 or during < JUST_THEN * always:
        return None
    detail = (
        f"its device counts errors in {_percent(during)} of these steps, {_percent(always)} of all"
    )
    return Evidence("errors", detail, {"during": during, "always": always})


def _on_device(strangers: float) -> Evidence:
    detail = "other processes compute on its device, and on those of its peers fewer or none"
    return Evidence("clock", detail, {"gpu_strangers": strangers})


def _experts(parts: Mapping[str, Part], phase: str) -> Evidence:
    part = parts[phase]
    detail = (
        f"{phase} takes {part.excess_ns / 1e6:.1f} ms per step more than on its peers, and the "
        "rest of the passes as long: more tokens, not a slower device"
    )
    return Evidence("inner", detail, {name: one.excess_ns for name, one in parts.items()})


def _percent(part: float) -> str:
    return f"{100 * min(max(part, 0.0), 1.0):.0f} %"


def _stack(slow: SlowFunction) -> Evidence:
    verb = "itself runs" if slow.itself else "is"
    detail = (
        f"{slow.function} {verb} in {_percent(slow.share)} of the samples, "
        f"{_percent(slow.before)} on its peers"
    )
    return Evidence("stacks", detail, {"share": slow.share, "peers": slow.before})

"""A diagnosis in words: the headline, and for each verdict why, where, since when, at what cost.

Text and page both take their sentences from here, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from stepscope.diagnose.finding import Cause, Diagnosis, State, Verdict
from stepscope.report import units

CAUSES: Mapping[Cause, tuple[str, str]] = {
    "compute": (
        "slow compute",
        "the computation itself takes longer: throttling, memory errors or a failing GPU",
    ),
    "memory_copy": ("slow memory copies", "copies between host and GPU run slower (PCIe)"),
    "network": (
        "slow network",
        "data moves slower between ranks (NVLink, NIC, cable or switch)",
    ),
    "host": (
        "late host",
        "the CPU side is late with launching work (too few cores, a busy CPU, the GIL)",
    ),
    "data_loading": (
        "data loading",
        "the GPU waits for the next batch because the input pipeline does not keep up",
    ),
    "gc": (
        "garbage collection",
        "Python's garbage collector stops the process, and the others wait for it",
    ),
    "jit_compile": (
        "compilation",
        "code is compiled during training (JIT, torch.compile, autotuning), and the others wait",
    ),
    "load_imbalance": (
        "unequal work",
        "the work itself is unequal (experts, sequence lengths); the hardware is fine",
    ),
    "contention": ("contention", "another process competes for the same GPU or host"),
    "code": ("code", "a function takes more than it should on many or all ranks, not a machine"),
    "unknown": ("unknown cause", "what was recorded does not tell the cause"),
}
"""For each cause its name in a sentence, and what it means."""

IN_FUNCTION = "it computes longer, in a function that takes less of its peers' time"

STANDSTILLS: Mapping[Cause, tuple[str, str]] = {
    "code": ("code", "this rank took another way through the code than its peers"),
    "network": ("network", "everyone entered the operation and nobody left: data stopped moving"),
    "compute": ("stuck GPU", "a kernel on the GPU does not finish"),
    "host": ("stuck host", "the CPU side of this rank does not get on"),
    "data_loading": ("data loading", "this rank still waits for its next batch"),
}
"""The causes that mean something else when nothing moves at all."""

MISMATCH = "the members of the group call different operators, sizes, types or orders"

STATES: Mapping[State, str] = {
    "healthy": "healthy",
    "jitter": "jitter",
    "regression": "slower",
    "both": "slower, with jitter",
    "slow": "slow",
    "hang": "hang",
}


@dataclass(frozen=True)
class Story:
    """One verdict in words. Empty strings where nothing is known."""

    title: str
    why: str
    where: str
    since: str
    cost: str
    advice: str


def headline(diagnosis: Diagnosis) -> str:
    """The whole diagnosis in one line."""
    if diagnosis.verdicts:
        return f"{status(diagnosis)}: {diagnosis.verdicts[0].summary}{_and_more(diagnosis)}"
    if nothing_recorded(diagnosis):
        return "no data: nothing was recorded, so nothing can be said"
    looked_at = ", ".join(_looked_at(diagnosis))
    if is_held_up(diagnosis):
        return f"no culprit in {looked_at}: {_clause(limits(diagnosis)[0])}"
    if diagnosis.state == "healthy":
        return f"healthy: no culprit found in {looked_at}"
    return f"{status(diagnosis)}: the step times changed, but no culprit found in {looked_at}"


def status(diagnosis: Diagnosis) -> str:
    """The state in a word or two, as headline and badge show it."""
    if nothing_recorded(diagnosis):
        return "no data"
    if is_held_up(diagnosis):
        return "no culprit"
    if diagnosis.verdicts and diagnosis.state == "healthy":
        return diagnosis.verdicts[0].kind
    return STATES[diagnosis.state]


def nothing_recorded(diagnosis: Diagnosis) -> bool:
    """A job without a single rank observed is neither healthy nor sick."""
    return diagnosis.ranks == 0 and not diagnosis.verdicts


def is_held_up(diagnosis: Diagnosis) -> bool:
    """Nobody is to blame, and yet a good part of every step is not computing."""
    return diagnosis.state == "healthy" and not diagnosis.verdicts and bool(limits(diagnosis))


def is_well(diagnosis: Diagnosis) -> bool:
    """Something was looked at, and nothing found."""
    seen = diagnosis.ranks > 0 and not diagnosis.verdicts
    return seen and diagnosis.state == "healthy" and not is_held_up(diagnosis)


def _and_more(diagnosis: Diagnosis) -> str:
    more = len(diagnosis.verdicts) - 1
    return f" (and {units.count(more, 'more culprit')})" if more else ""


def _looked_at(diagnosis: Diagnosis) -> Iterator[str]:
    yield units.count(diagnosis.ranks, "rank")
    if diagnosis.steps is not None:
        yield units.span(diagnosis.steps)


def subject(diagnosis: Diagnosis) -> str:
    """What was looked at: job, ranks, steps."""
    return " · ".join((f"job {diagnosis.job_id}", *_looked_at(diagnosis)))


def tell(verdict: Verdict, diagnosis: Diagnosis) -> Story:
    return Story(
        title=verdict.summary,
        why=_why(verdict),
        where="; ".join(_where(verdict)),
        since=_since(verdict, diagnosis),
        cost="; ".join(costs(verdict, diagnosis)),
        advice=verdict.advice,
    )


def _why(verdict: Verdict) -> str:
    name, meaning = meaning_of(verdict)
    return f"{name}, {sure(verdict)}: {meaning}" if knows_cause(verdict) else meaning


def sure(verdict: Verdict) -> str:
    """How sure the verdict is: of the cause, or where that is unknown, of the culprit."""
    return f"{units.percent(verdict.confidence)} sure"


def knows_cause(verdict: Verdict) -> bool:
    return verdict.cause != "unknown"


def meaning_of(verdict: Verdict) -> tuple[str, str]:
    """The cause's name and what it means for this kind of trouble."""
    name, meaning = CAUSES[verdict.cause]
    if verdict.kind == "mismatch":
        return name, MISMATCH
    if verdict.cause == "compute" and verdict.kind == "slowdown" and verdict.function is not None:
        return name, IN_FUNCTION
    return (
        STANDSTILLS.get(verdict.cause, (name, meaning))
        if verdict.kind == "hang"
        else (name, meaning)
    )


def limits(diagnosis: Diagnosis) -> list[str]:
    """What holds up an average step of the middle rank, where it takes a quarter of it or more."""
    times = diagnosis.rank_times
    if not times:
        return []
    parts = {name: median(getattr(time, name) for time in times) for name in SAYS}
    whole = sum(parts.values())
    return [
        f"{SAYS[name]} {units.percent(value / whole)} of an average step."
        for name, value in sorted(parts.items(), key=lambda part: -part[1])
        if SAYS[name] and whole > 0 and value >= REMARKABLE * whole
    ]


def _clause(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"


SAYS = {
    "compute_ns": "",
    "exposed_ns": "Communication that no computing hides, waiting for late ranks included, takes",
    "copy_ns": "Copies that nothing hides take",
    "host_wait_ns": "The device has run dry and waits for the host to launch work for",
    "kernel_wait_ns": "Gaps of microseconds between one kernel and the next take",
    "other_ns": "Neither computing nor communication runs for",
}
"""The parts of an average step in words; computing is what it is for."""
REMARKABLE = 0.25
"""A quarter of the step is worth a sentence; profiling itself makes a host a little late."""


def latecomers(diagnosis: Diagnosis) -> list[str]:
    """Who came last in which collectives, and what the others waited for it alone."""
    return [
        f"{late.op} of {late.group}: rank {late.rank}, last in {late.last:,} of "
        f"{late.operators:,}; the others waited {units.duration(late.caused_ns)} per step for it "
        "alone"
        for late in diagnosis.latecomers
    ]


def _where(verdict: Verdict) -> Iterator[str]:
    hosts = f" on {units.names(verdict.hosts)}" if verdict.hosts else ""
    who = (units.ranks(verdict.ranks) if verdict.ranks else "no single rank") + hosts
    yield who if knows_cause(verdict) else f"{who}, {sure(verdict)}"
    if verdict.devices:
        yield units.names(f"{d.name} ({units.percent(d.probability)})" for d in verdict.devices)
    if verdict.group is not None:
        yield f"group {verdict.group}"
    if verdict.phase is not None:
        yield f"phase {verdict.phase}"
    if verdict.function is not None:
        yield f"function {verdict.function}"
    if verdict.kernels:
        yield "kernel " + units.names(verdict.kernels, limit=2)


def _since(verdict: Verdict, diagnosis: Diagnosis) -> str:
    steps = "" if verdict.steps is None else _step_range(verdict.steps, diagnosis)
    return "; ".join(part for part in (steps, moment_of(verdict)) if part)


def moment_of(verdict: Verdict) -> str:
    """When it began by the clock, and how long it has lasted if that is known."""
    if verdict.time_ns is None:
        return ""
    start, end = verdict.time_ns
    lasted = f", for {units.duration(end - start)}" if end > start else ""
    return units.moment(start) + lasted


def _step_range(steps: tuple[int, int], diagnosis: Diagnosis) -> str:
    """`step 1100, and still going on` reads differently at night from `step 1100 until 1150`."""
    first, last = steps
    if diagnosis.steps is not None and first <= diagnosis.steps[1] <= last:
        return f"step {first}, still so in the last step seen ({diagnosis.steps[1]})"
    return f"step {first}" if first == last else f"step {first} until {last}"


def costs(verdict: Verdict, diagnosis: Diagnosis) -> list[str]:
    """What it costs, the most telling measure first: share or time, who waits, GPU-hours."""
    lasted_ns = _lasted_ns(verdict, diagnosis)
    if verdict.kind == "hang":
        first = f"no progress for {units.duration(lasted_ns)}" if lasted_ns else "no progress"
        rank_ns = float(lasted_ns * (verdict.victims + len(verdict.ranks)))
    else:
        lost = verdict.lost_fraction
        first = "" if lost is None else f"{units.percent(lost)} of step time"
        rank_ns = (lost or 0.0) * lasted_ns * diagnosis.ranks
    return [part for part in (first, _waiting(verdict), _gpu_hours(rank_ns)) if part]


def _waiting(verdict: Verdict) -> str:
    if not verdict.victims:
        return ""
    verb = "waits" if verdict.victims == 1 else "wait"
    return f"{units.count(verdict.victims, 'rank')} {verb} for it"


def _lasted_ns(verdict: Verdict, diagnosis: Diagnosis) -> int:
    """How long it lasted, by the clock or else by the steps it spans."""
    if verdict.time_ns is not None:
        return verdict.time_ns[1] - verdict.time_ns[0]
    if verdict.steps is None:
        return 0
    first, last = verdict.steps
    series = zip(diagnosis.series.steps, diagnosis.series.duration_ns, strict=True)
    return sum(took for step, took in series if first <= step <= last)


def _gpu_hours(rank_ns: float) -> str:
    hours = rank_ns / 3600e9
    return f"{units.significant(hours)} GPU-hours lost" if hours >= 0.1 else ""


_OWN_COST = {"_cpu": " cores", "_seconds": " s", "_s": " s"}


def own_cost(name: str, value: float) -> str:
    """One item of what stepscope itself took, with the unit that its name ends in."""
    words = name.replace("_", " ")
    if name.endswith("_fraction"):
        return f"{words.removesuffix(' fraction')} {units.percent(value)}"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} {units.size(value)}"
    if name.endswith("_ns"):
        return f"{words.removesuffix(' ns')} {units.duration(value)}"
    unit = next((unit for end, unit in _OWN_COST.items() if name.endswith(end)), "")
    return f"{words.removesuffix(' s').removesuffix(' seconds')} {units.significant(value)}{unit}"


def skipped_by_reason(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """The methods that could not run, gathered under the reason why."""
    reasons: dict[str, list[str]] = {}
    for skipped in diagnosis.skipped:
        reasons.setdefault(skipped.why, []).append(skipped.method)
    return reasons


def windows_by_kind(diagnosis: Diagnosis) -> Iterator[str]:
    """`jitter in steps 7, 57, 107 and 7 more`, one sentence per kind of window."""
    kinds = dict.fromkeys(window.kind for window in diagnosis.windows)
    for kind in kinds:
        spans = [window.steps for window in diagnosis.windows if window.kind == kind]
        if len(spans) == 1:
            yield f"{kind} in {units.span(spans[0])}"
        else:
            each = (units.span(span).split(" ")[1] for span in spans)
            yield f"{kind} in steps {units.names(each, limit=6)}"

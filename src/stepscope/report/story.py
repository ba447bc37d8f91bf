"""Words a diagnosis: the headline, and for each verdict why, where, since when, at what cost.

The text and HTML reports both take their sentences from here, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepscope.diagnose.finding import (
    BY_STOPS,
    Cause,
    Diagnosis,
    Ended,
    State,
    Verdict,
    is_processor_time,
)
from stepscope.diagnose.shown import FunctionUse
from stepscope.report import units

CAUSES: Mapping[Cause, tuple[str, str]] = {
    "compute": (
        "slow compute",
        "the computation itself takes longer: throttling, memory errors or a failing GPU",
    ),
    "memory_copy": ("slow memory copies", "copies between host and GPU are slower (PCIe)"),
    "network": (
        "slow network",
        "data moves more slowly between ranks (NVLink, NIC, cable or switch)",
    ),
    "host": (
        "late host",
        "the CPU side launches work late (too few cores, a busy CPU, the GIL)",
    ),
    "data_loading": (
        "data loading",
        "training waits for the next batch because the input pipeline does not keep up",
    ),
    "gc": (
        "garbage collection",
        "Python's garbage collector pauses the process, and the other ranks wait for it",
    ),
    "jit_compile": (
        "compilation",
        "code is compiled during training (JIT, torch.compile, autotuning), and other ranks wait",
    ),
    "load_imbalance": (
        "load imbalance",
        "the work itself is unequal (experts, sequence lengths); the hardware is fine",
    ),
    "contention": ("contention", "another process competes for the same GPU or host"),
    "code": (
        "code",
        "a function takes longer than it should on many or all ranks; no machine is at fault",
    ),
    "unknown": ("unknown cause", "the recorded data does not show the cause"),
}
"""For each cause, its name as used in a sentence and its meaning."""

WAITING = ", and the other ranks wait for it", ", and other ranks wait"
"""What is left out of these meanings if there is no other rank."""

MOST_ENTRIES = 3
"""Entries of the ledger that the first line names; the others are summed up."""
NOTABLE = 0.01
"""Unexplained time below this share of a step is rounding and noise."""

STOPPED = "stopped process", "its process was stopped from outside, and later continued"
ON_PROCESSOR = "its processor computes for longer: more work, or a slower processor"
IN_FUNCTION = "it computes longer, in a function that takes a smaller share of its peers' time"

HANG_CAUSES: Mapping[Cause, tuple[str, str]] = {
    "code": ("code", "this rank took a different code path than its peers"),
    "network": ("network", "all ranks entered the operation and none left it: data stopped moving"),
    "compute": ("stuck GPU", "a kernel on the GPU does not finish"),
    "host": ("stuck host", "the CPU side of this rank makes no progress"),
    "data_loading": ("data loading", "this rank still waits for its next batch"),
}
"""The causes whose meaning differs for a hang."""

ENDED: Mapping[Ended, tuple[str, str]] = {
    "out of memory": ("out of memory", "the kernel killed its process to free memory"),
    "killed": ("killed process", "its process was ended from outside; nobody recorded why"),
    "crashed": ("crashed process", "a fault in native code, a device or memory ended its process"),
    "aborted": ("aborted process", "a failed check or an uncaught exception in native code"),
    "failed": ("failed process", "an error in its code ended its process"),
    "left": ("ended too early", "its process ended without an error, and the others lost it"),
}
"""How a process ended, in the place of its cause."""

MISMATCH = "members of the group call operators that differ in kind, size, data type or order"

STATES: Mapping[State, str] = {
    "healthy": "healthy",
    "jitter": "jitter",
    "regression": "slower",
    "both": "slower, with jitter",
    "slow": "slow",
    "hang": "hang",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class Story:
    """One verdict in words. A field is empty if nothing is known about it."""

    title: str
    why: str
    where: str
    since: str
    cost: str
    advice: str


def headline(diagnosis: Diagnosis) -> str:
    """The whole diagnosis in one line."""
    if diagnosis.verdicts:
        suspect = "" if diagnosis.accused else "suspect, "
        said = f"{status(diagnosis)}: {diagnosis.verdicts[0].summary}"
        return suspect + said + _and_more(diagnosis)
    return _without_verdict(diagnosis, ", ".join(_scope(diagnosis)))


def _without_verdict(diagnosis: Diagnosis, scope: str) -> str:
    match diagnosis.outcome:
        case "no data":
            return "no data: nothing was recorded"
        case "limited":
            return f"no culprit found in {scope}: {_clause(limits(diagnosis)[0])}"
        case "unknown" if diagnosis.methods:
            return f"nothing found by {', '.join(diagnosis.methods)} alone, in {scope}"
        case "unknown":
            return f"unknown: {diagnosis.unaccounted}, in {scope}"
        case "healthy":
            return f"healthy: no culprit found in {scope}"
    why = next((one.why for one in diagnosis.windows if one.why), "the step time changed")
    return f"{status(diagnosis)}: {why}, but no culprit found in {scope}"


def status(diagnosis: Diagnosis) -> str:
    """The state in a few words, for the headline and the badge."""
    if diagnosis.outcome == "no data":
        return "no data"
    if diagnosis.outcome == "limited":
        return "no culprit"
    if diagnosis.verdicts and diagnosis.state == "healthy":
        return diagnosis.verdicts[0].kind
    return STATES[diagnosis.state]


def _and_more(diagnosis: Diagnosis) -> str:
    others = diagnosis.verdicts[1:]
    suspects = sum(one.is_suspect for one in others)
    named = ((len(others) - suspects, "more culprit"), (suspects, "more suspect"))
    said = " and ".join(units.count(count, what) for count, what in named if count)
    return f" (and {said})" if said else ""


def _scope(diagnosis: Diagnosis) -> Iterator[str]:
    yield units.count(diagnosis.ranks, "rank")
    if diagnosis.steps is not None:
        yield units.span(diagnosis.steps)


def account(diagnosis: Diagnosis) -> str:
    """The ledger in one line: what a step needs and loses, and to whom; empty without steps."""
    ledger = diagnosis.ledger
    if ledger is None:
        return ""
    unexplained = ledger.unexplained_fraction * ledger.step_ns
    lost = [(f"{units.duration(one.fraction * ledger.step_ns)} "
             f"{_to_whom(diagnosis.verdicts[one.verdict])}")
            for one in ledger.lost[:MOST_ENTRIES]]  # fmt: skip
    more = sum(one.fraction for one in ledger.lost[MOST_ENTRIES:])
    lost += [f"{units.duration(more * ledger.step_ns)} to others"] if more > 0 else []
    if ledger.unexplained_fraction >= NOTABLE:
        lost.append(f"{units.duration(unexplained)} unexplained")
    needs = f"a step needs {units.duration(ledger.needed_ns)}"
    if not lost:
        return f"{needs} of the {units.duration(ledger.step_ns)} it takes"
    if not ledger.lost and not diagnosis.verdicts and diagnosis.state == "healthy":
        fast = units.duration(ledger.needed_ns)
        return f"a step takes {units.duration(ledger.step_ns)}, and {fast} when it is fast"
    return f"{needs}, loses {units.duration(ledger.step_ns - ledger.needed_ns)}: {', '.join(lost)}"


def _to_whom(verdict: Verdict) -> str:
    """`to rank 37`, `to all ranks (network)`."""
    suspect = "perhaps " if verdict.is_suspect else ""
    if verdict.ranks:
        return f"{suspect}to {units.ranks(verdict.ranks)}"
    return f"{suspect}to {verdict.group or CAUSES[verdict.cause][0]}"


def subject(diagnosis: Diagnosis) -> str:
    """What was diagnosed: job, ranks, steps."""
    return " · ".join((f"job {diagnosis.job_id}", *_scope(diagnosis)))


def describe(verdict: Verdict, diagnosis: Diagnosis) -> Story:
    return Story(
        title=verdict.summary,
        why=_why(verdict, diagnosis.ranks),
        where="; ".join(_where(verdict)),
        since=_since(verdict, diagnosis),
        cost="; ".join(costs(verdict)),
        advice=verdict.advice,
    )


def _why(verdict: Verdict, ranks: int) -> str:
    name, meaning = meaning_of(verdict)
    if ranks == 1:
        meaning = next((meaning.removesuffix(end) for end in WAITING if meaning.endswith(end)),
                       meaning)  # fmt: skip
    return f"{name}, {sureness(verdict)}: {meaning}" if knows_cause(verdict) else meaning


def sureness(verdict: Verdict) -> str:
    """`confidence 0.96`: in the cause, or in the culprit if the cause is unknown."""
    return f"confidence {verdict.confidence:.2f}"


def knows_cause(verdict: Verdict) -> bool:
    return verdict.cause != "unknown" or bool(verdict.ended)


def meaning_of(verdict: Verdict) -> tuple[str, str]:
    """The name of the cause and its meaning for this kind of verdict."""
    name, meaning = CAUSES[verdict.cause]
    if verdict.ended:
        return ENDED[verdict.ended]
    if verdict.kind == "mismatch":
        return name, MISMATCH
    if any(one.method in BY_STOPS for one in verdict.evidence):
        return STOPPED
    if verdict.cause == "compute" and verdict.kind == "slowdown" and verdict.function is not None:
        return name, IN_FUNCTION
    if verdict.cause == "compute" and is_processor_time(verdict.evidence):
        return name, ON_PROCESSOR
    return (
        HANG_CAUSES.get(verdict.cause, (name, meaning))
        if verdict.kind == "hang"
        else (name, meaning)
    )


def limits(diagnosis: Diagnosis) -> list[str]:
    """What takes a large share of an average step besides compute, one sentence each."""
    return [f"{PART_WORDS[one.part]} {units.percent(one.share)} of an average step."
            for one in diagnosis.limits]  # fmt: skip


def _clause(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"


PART_WORDS = {
    "exposed_ns": "Exposed communication, including the wait for late ranks, takes",
    "copy_ns": "Exposed copies take",
    "host_wait_ns": "The device is idle, waiting for the host to launch work, for",
    "kernel_wait_ns": "Gaps of microseconds between kernels take",
    "other_ns": "Neither compute nor communication runs for",
}
"""How the parts of an average step are worded."""


MOST_FUNCTIONS = 8
"""Functions of profiled steps that are shown, the largest share first."""


def profiled(diagnosis: Diagnosis) -> str:
    """Which steps were profiled, and on how many ranks; empty where none were."""
    if not diagnosis.functions:
        return ""
    first = diagnosis.functions[0]
    steps = "" if first.steps is None else f", {units.span(first.steps)}"
    return f"Profiled steps{steps}, {units.count(first.ranks, 'rank')}"


def function_uses(diagnosis: Diagnosis) -> list[str]:
    """What ranks spent profiled steps in, one line per function."""
    return [function_use(one) for one in diagnosis.functions[:MOST_FUNCTIONS]]


_RESOURCES = {"cpu": "a core", "sm": "the device's clock", "nvlink": "NVLink", "pcie": "PCIe",
              "nic": "its adapter"}  # fmt: skip


def function_use(one: FunctionUse) -> str:
    """`52 % python recv_into (socket.py:707), on rank 3; 0.1 % on the median rank; ...`."""
    text = f"{units.percent(one.most)} {one.kind} {one.name}"
    text += f" in thread {one.thread}" if one.thread else ""
    if one.ranks > 1:
        text += f", on rank {one.most_rank}; {units.percent(one.median)} on the median rank"
    if one.use is not None and one.resource:
        text += f"; uses {units.percent(one.use)} of {_RESOURCES.get(one.resource, one.resource)}"
    if one.expected is not None and one.expected < 1:
        whose = "your healthy jobs" if one.learned else "a healthy job"
        text += f"; {units.percent(one.expected)} at most in {whose}"
    return text


def last_arrivals(diagnosis: Diagnosis) -> list[str]:
    """Which rank arrived last in which collectives, and how long it alone made the others wait."""
    return [
        f"{late.op} in {late.group}: rank {late.rank} arrived last in {late.last:,} of "
        f"{late.operators:,} and alone delayed the others by {units.duration(late.caused_ns)} per "
        "step"
        for late in diagnosis.last_arrivals
    ]


def periods(diagnosis: Diagnosis) -> list[str]:
    """Slow steps that come back, one line each, with their evidence; those of verdicts stand there.

    The rest accuses nobody: a checkpoint belongs to the job.
    """
    return [f"{units.percent(one.lost_fraction)} of the time: {one.says} ({one.because})."
            for one in diagnosis.periods if one.verdict is None]  # fmt: skip


def _where(verdict: Verdict) -> Iterator[str]:
    hosts = f" on {units.names(verdict.hosts)}" if verdict.hosts else ""
    culprit = (units.ranks(verdict.ranks) if verdict.ranks else "no single rank") + hosts
    yield culprit if knows_cause(verdict) else f"{culprit}, {sureness(verdict)}"
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
    """The wall-clock time at which it began, and how long it lasted if known."""
    if verdict.time_ns is None:
        return ""
    start, end = verdict.time_ns
    lasted = f", for {units.duration(end - start)}" if end > start else ""
    return units.moment(start) + lasted


def _step_range(steps: tuple[int, int], diagnosis: Diagnosis) -> str:
    """`step 1100, ongoing in the last recorded step (1200)` or `step 1100, until step 1150`."""
    first, last = steps
    if diagnosis.steps is not None and first <= diagnosis.steps[1] <= last:
        return f"step {first}, ongoing in the last recorded step ({diagnosis.steps[1]})"
    return f"step {first}" if first == last else f"step {first}, until step {last}"


def costs(verdict: Verdict) -> list[str]:
    """The cost: share of step time or duration of the hang, number of waiting ranks, GPU-hours."""
    if verdict.stands_still:
        lasted = f" for {units.duration(verdict.lasted_ns)}" if verdict.lasted_ns else ""
        first = f"no progress{lasted}"
    else:
        lost = verdict.lost_fraction
        first = "" if lost is None else f"{units.percent(lost)} of step time"
    return [part for part in (first, _waiting(verdict), _gpu_hours(verdict.lost_rank_ns)) if part]


def _waiting(verdict: Verdict) -> str:
    if not verdict.victims:
        return ""
    verb = "waits" if verdict.victims == 1 else "wait"
    return f"{units.count(verdict.victims, 'rank')} {verb} for it"


def _gpu_hours(rank_ns: float) -> str:
    hours = rank_ns / 3600e9
    return f"{units.significant(hours)} GPU-hours lost" if hours >= 0.1 else ""


_OVERHEAD_UNITS = {"_cpu": " cores", "_seconds": " s", "_s": " s"}


def overhead(name: str, value: float) -> str:
    """One item of stepscope's own overhead, with the unit given by the suffix of its name."""
    name, _, place = name.partition(":")
    words = name.replace("_", " ") + (f" in {place}" if place else "")
    if name.endswith("_fraction"):
        return f"{words.removesuffix(' fraction')} {units.percent(value)}"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} {units.size(value)}"
    if name.endswith("_ns"):
        return f"{words.removesuffix(' ns')} {units.duration(value)}"
    unit = next((unit for end, unit in _OVERHEAD_UNITS.items() if name.endswith(end)), "")
    return f"{words.removesuffix(' s').removesuffix(' seconds')} {units.significant(value)}{unit}"


def skipped_by_reason(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """The methods that could not run, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for skipped in diagnosis.skipped:
        reasons.setdefault(skipped.why, []).append(skipped.method)
    return reasons


def not_run(diagnosis: Diagnosis) -> Iterator[str]:
    """The methods that could not run, with the reasons; those for which nobody recorded the data
    are counted by what is missing."""
    unrecorded = {one.why for one in diagnosis.skipped if one.unrecorded}
    reasons = skipped_by_reason(diagnosis)
    for why, methods in reasons.items():
        if why not in unrecorded:
            yield f"{units.names(methods, limit=8)}: {why}"
    lacking = sorted((why for why in reasons if why in unrecorded), key=lambda w: -len(reasons[w]))
    if lacking:
        count = sum(len(reasons[why]) for why in lacking)
        without = units.names((_counted(why, len(reasons[why])) for why in lacking), limit=6)
        yield (f"{units.count(count, 'method')}, because data is missing: {without}; "
               "`stepscope methods` lists what each needs")  # fmt: skip


def _counted(why: str, methods: int) -> str:
    return f"{why} ({methods})" if methods > 1 else why


def windows_by_kind(diagnosis: Diagnosis) -> Iterator[str]:
    """`jitter in steps 7, 57, 107 and 7 more`, one line per kind of window."""
    kinds = dict.fromkeys(window.kind for window in diagnosis.windows)
    for kind in kinds:
        spans = [window.steps for window in diagnosis.windows if window.kind == kind]
        if len(spans) == 1:
            yield f"{kind} in {units.span(spans[0])}"
        else:
            each = (units.span(span).split(" ")[1] for span in spans)
            yield f"{kind} in steps {units.names(each, limit=6)}"

"""The function that a suspect's stacks show more often than its peers' do.

Fault: a function, a just-in-time compiler or garbage collection that takes one rank longer than the
others.
Paper: ARGUS (2026), section 6.3 (level 5), leaves it to people to compare stacks.
What differs: a function is no reason where the device, and not its host, is known to be late.
Cost: one count over the sampled stacks of the suspect and its peers.
Cannot see: what runs on a device, and functions too short for the sampler.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.explain.cpu import of_host, processor_evidence, use_of_excess
from stepscope.diagnose.explain.elimination import plain_cause
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.frames import collects, compiles, is_compiling, is_librarys, is_users
from stepscope.diagnose.views.stacks import (
    LEAST_SHARE,
    LEAST_STEPS,
    Samples,
    SlowFunction,
    slower_than_peers,
)
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Mask

LEAST_COMPUTED = 0.2
"""Part of the excess that must be processor time for waiting for a processor to follow from it: in
real jobs with two to three times as many threads as cores it was a third. Measured on real data."""


class Compilation:
    """A just-in-time compiler that runs on this rank and not on its peers."""

    name = "compilation"
    causes: tuple[Cause, ...] = ("jit_compile",)
    needs = Needs("stacks")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        if not of_host(job, suspect) and use_of_excess(job, suspect).keeps_ahead:
            return None
        found = _compiling(job, suspect) or _compiler(job, suspect)
        if found is None:
            return None
        function, compiler = found
        evidence = (*processor_evidence(job, suspect), compiler)
        return Explained("jit_compile", "measured", evidence, function=function, proven=True)


def _compiler(job: Observed, suspect: Suspect) -> tuple[str, Evidence] | None:
    """The suspect's slow function, if it belongs to a compiler."""
    slow = slow_function(job, suspect)
    if slow is None or not compiles(slow.function):
        return None
    return slow.function, evidence_of(slow)


def _compiling(job: Observed, suspect: Suspect) -> tuple[str | None, Evidence] | None:
    """What is compiled, where compiling takes most of the excess: by any function of a stack.

    The innermost ones mostly wait, because compilers work in processes of their own.
    """
    samples = job.samples
    if samples is None:
        return None
    span, lasted_ns = of_slow_steps(job, samples, suspect)
    inside = samples.within(is_compiling)
    own = span & (samples.row == suspect.row)
    peers = span & np.isin(samples.row, job.peers_of(suspect.row, suspect.phase))
    if not (own & inside).any() or samples.weight[own].sum() < samples.least_ns:
        return None
    share, usual = (samples.part(inside, chosen) for chosen in (own, peers))
    excess = min(suspect.whole_ns / max(lasted_ns, 1.0), 1.0)
    if share - usual < max(LEAST_SHARE, HALF * excess):
        return None
    compiling = f"{percent(share)} of the samples are in a just-in-time compiler"
    detail = f"{compiling}, {percent(usual)} on its peers"
    evidence = Evidence(Compilation.name, detail, {"share": share, "peers": usual})
    return samples.users_caller(is_compiling, own & inside) or None, evidence


class Collecting:
    """Garbage collection that sampled stacks show on this rank and not on its peers."""

    name = "collecting"
    causes: tuple[Cause, ...] = ("gc",)
    needs = Needs("stacks")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        slow = slow_function(job, suspect)
        if slow is None or not collects(slow.function):
            return None
        evidence = (*processor_evidence(job, suspect), evidence_of(slow))
        return Explained("gc", "measured", evidence, function=slow.function, proven=True)


class SlowerFunction:
    """A function that takes this rank longer than its peers, by sampled stacks."""

    name = "slow-function"
    causes: tuple[Cause, ...] = ("compute", "host", "data_loading", "load_imbalance")
    needs = Needs("stacks")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        slow = _function_of_host(job, suspect)
        if slow is None:
            return None
        evidence = (*processor_evidence(job, suspect), evidence_of(slow))
        cause, strength = plain_cause(job, suspect)
        if cause == "compute" and job.has_devices and _is_users(job, suspect, slow):
            cause = "host"
        strength = "inferred" if strength == "residual" else strength
        computed = use_of_excess(job, suspect).computed or 0.0
        if computed >= LEAST_COMPUTED and _is_its_own(slow):
            strength = "measured"  # on a crowded host it waits longer because it does more
        return Explained(cause, strength, evidence, function=slow.named)


def _is_its_own(slow: SlowFunction) -> bool:
    """Whether the excess is code of the user's that its peers do not run, or far less of it."""
    special = compiles(slow.function) or collects(slow.function)
    packaged = not (is_users(slow.function) or is_librarys(slow.function))
    return slow.apart >= HALF and is_users(slow.named) and not (special or packaged)


def _is_users(job: Observed, suspect: Suspect, slow: SlowFunction) -> bool:
    """Whether it is the user's own code, outside of everything that trains, which no device
    runs."""
    samples = job.samples
    if samples is None:
        return False
    return samples.is_beside_training(slow.function, samples.row == suspect.row)


def _function_of_host(job: Observed, suspect: Suspect) -> SlowFunction | None:
    """The suspect's slow function; None also if its host keeps ahead of its device, so that what
    the host does is not the reason."""
    if not of_host(job, suspect) and use_of_excess(job, suspect).keeps_ahead:
        return None
    return slow_function(job, suspect)


@once
def slow_function(job: Observed, suspect: Suspect) -> SlowFunction | None:
    """The function that the suspect's stacks show more often than its peers' do."""
    samples = job.samples
    if samples is None:
        return None
    span, lasted_ns = of_slow_steps(job, samples, suspect)
    own = span & (samples.row == suspect.row)
    if suspect.all_runs is not None and samples.weight[own].sum() < samples.least_ns:
        return slow_function(job, suspect.all_runs)
    steps = np.unique(job.line.column_at(samples.time_ns[own])).size
    if samples.are_dense and steps < LEAST_STEPS:
        return None
    others = job.peers_of(suspect.row, suspect.phase).tolist()
    excess = suspect.whole_ns / max(lasted_ns, 1.0)
    return slower_than_peers(samples, suspect.row, others, span, excess)


def of_slow_steps(job: Observed, samples: Samples, suspect: Suspect) -> tuple[Mask, float]:
    """The samples of the suspect's slow steps, and the length of these steps; of its whole range if
    they are too short.

    What takes a rank a second in every fifth step is rare in all of them together.
    """
    column = job.line.column_of(suspect.row, samples.time_ns)
    period_ns = job.line.period_ns[suspect.row]
    slow = np.arange(period_ns.size)[suspect.columns]
    lasted_ns = float(np.nansum(period_ns[slow]))
    if suspect.spikes and lasted_ns >= samples.least_ns:
        return np.isin(column, slow), lasted_ns
    whole = slice(suspect.first, suspect.stop)
    return (column >= whole.start) & (column < whole.stop), float(np.nansum(period_ns[whole]))


def evidence_of(slow: SlowFunction) -> Evidence:
    """How often the function was sampled, on the suspect and on its peers."""
    verb = "itself runs" if slow.itself else "is"
    called = f", called in {slow.caller}," if slow.caller else ""
    detail = (
        f"{slow.function}{called} {verb} in {percent(slow.share)} of the samples, "
        f"{percent(slow.before)} on its peers"
    )
    return Evidence("slow-function", detail, {"share": slow.share, "peers": slow.before})

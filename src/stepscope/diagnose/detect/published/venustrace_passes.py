"""VenusTrace, repaired: late passes that lengthen steps, and passes that never end.

Fault: a rank that is slow in some passes; data that comes late between stages; a rank that hangs.
Paper: VenusTrace (Jiao et al., 2025), section 3.3, algorithms 1 to 3 and appendix A.
Where we differ: `detect.late_passes` (what is late), `graph.pass_graph` (all replicas and steps at
once, and what a late pass really cost), `operators.residual` (every pass that could have begun and
did not end, not only the first). Of the ranks that run a pass together the one with the most own
time is named, or the one that arrives last, and not the one with the longest AllReduce.
Runs by `--method venustrace` only: the default finds the same ranks without microbatches, and says
where a hang is. `venustrace-published` has the rules as printed.
Cost: a sort of the passes, a few medians per pass and replica, and one walk per culprit.
Cannot see: a job that records no microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepscope.diagnose.detect.ranks.late_passes import Late, LatePasses
from stepscope.diagnose.finding import Decision, Finding, Slowdown, SlowLink, Stuck
from stepscope.diagnose.graph.pass_graph import PassGraph, pass_graphs
from stepscope.diagnose.graph.passes import Passes, read_passes, spread
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.places import PASS_WORDS
from stepscope.diagnose.operators.residual import stuck_passes
from stepscope.diagnose.thresholds import LEAST_COST, score
from stepscope.diagnose.words.advice import list_ranks
from stepscope.window import NULL, Floats, Ints

ENOUGH = 4
"""Steps after the warm-up, at least: the median of three is one that may be late. Statistics."""
TAIL_MADS = 6.0
"""As `step_time.SPIKE_MADS`. Our simulator."""
SHORT_NS = 1e6
"""A transfer that usually takes less than this is compared with a millisecond. Our choice."""
SEVERAL_SCORE, EDGE_SCORE, HANG_SCORE = 0.6, 0.7, 0.8
"""Confidence if one of several ranks is meant, if data came late, and if a pass does not end, as in
`hang`. Our judgement."""


class VenusTrace:
    """Passes that are late and lengthen steps, and passes that never end, by their trace graph."""

    name = "venustrace"
    needs = Needs("phases")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        yield from stuck(job, self.name)
        yield from slow(job, self.name)


def stuck(job: Observed, name: str) -> Iterator[Stuck]:
    """The ranks whose passes could have begun, and never ended."""
    found = stuck_passes(job.window)
    if found is None:
        return
    for one in found.held:
        why = "no data moves" if one.cause == "network" else (
            "the pass before and its input have ended, and it has not")  # fmt: skip
        yield Stuck(
            name, one.cause, f"{why}, {one.words}" if one.places else why, one.ranks,
            steps=(found.step, found.step), time_ns=(found.since_ns, found.until_ns),
            score=HANG_SCORE if len(one.ranks) == 1 else SEVERAL_SCORE,
            group=one.group, places=one.places,
            decisions=(Decision(name, True, (found.until_ns - found.since_ns) / 1e9, None, why),),
        )  # fmt: skip


def slow(job: Observed, name: str) -> Iterator[Finding]:
    """Late passes and late data that made steps longer by 2 % or more."""
    line = job.line
    columns = spread(job.window, np.arange(line.warm_up, len(line.steps)))
    passes = read_passes(job.window, line, columns) if columns.size >= ENOUGH else None
    if passes is None:
        return
    graphs = list(pass_graphs(passes))
    end_ns = ends(passes, graphs)
    for graph in graphs:
        late = LatePasses(graph)
        for one in late.late():
            lost = late.lost_ns(one, end_ns)
            found = _finding(job, graph, one, np.maximum(lost, 0.0), name)
            if found is not None:
                yield found
    yield from _tail(job, passes, end_ns, name)


def ends(passes: Passes, graphs: list[PassGraph]) -> Floats:
    """`[replica, column]`: when the last pass ended, since the step's begin; 0 if unknown."""
    out = np.zeros((passes.layout.replicas, passes.columns.size))
    for graph in graphs:
        out[graph.replica, graph.column] = graph.slacks().end_ns
    return out


def _finding(
    job: Observed, graph: PassGraph, late: Late, lost: Floats, name: str
) -> Finding | None:
    passes, line = graph.passes, job.line
    step_ns = np.nan_to_num(line.job_period_ns[passes.columns], nan=line.typical_ns)
    hit = np.flatnonzero(lost >= LEAST_COST * step_ns)
    if not hit.size:
        return None
    columns = passes.columns[hit]
    fraction = float(lost[hit].sum() / max(step_ns[hit].sum(), 1.0))
    span = (int(columns[0]), int(columns[-1]) + 1)
    rows, _ = np.nonzero(late.cells)
    numbers = graph.vertices[rows]
    phase = passes.kind(int(numbers[0]))
    phase = phase if all(passes.kind(int(one)) == phase for one in numbers) else ""
    where = _where(passes, numbers)
    ranks = _ranks(job, graph, late)
    common: dict[str, Any] = {
        "steps": line.span(*span), "time_ns": line.span_ns(*span), "phase": phase or None,
        "lost_ns": float(lost[hit].mean()), "lost_fraction": fraction,
    }  # fmt: skip
    says = f"{where} on the critical path of {hit.size} of {passes.columns.size} steps"
    rule = Decision(name, True, fraction, LEAST_COST, f"of these steps would come back: {says}")
    if late.edge:
        return _edge(graph, late, ranks, says, name, common, rule)
    detail = f"{late.slowdown:.2f} times as long as usual in {says}"
    if len(ranks) > 1:
        detail += f"; which of {list_ranks(ranks)} is not known"
    return Slowdown(
        name, "unknown", detail, ranks, slowdown=late.slowdown, decisions=(rule,),
        spikes=None if late.lasting else int(hit.size), of_steps=int(passes.columns.size),
        score=score(late.sigmas) if len(ranks) == 1 else SEVERAL_SCORE,
        columns=frozenset(columns.tolist()), **common,
    )  # fmt: skip


def _where(passes: Passes, numbers: Ints) -> str:
    """`the forward pass of microbatch 3 in stage 2`, or how many there are."""
    distinct = np.unique(numbers).tolist()
    stages = sorted({passes.stage(one) for one in distinct})
    stage = f"stage {', '.join(map(str, stages))}"
    if len(distinct) == 1:
        words = PASS_WORDS[passes.kind(distinct[0])]
        return f"the {words} of microbatch {passes.microbatch(distinct[0])} in {stage}"
    kinds = {passes.kind(one) for one in distinct}
    words = PASS_WORDS[kinds.pop()] if len(kinds) == 1 else "pass"
    number = len({passes.microbatch(one) for one in distinct})
    return f"the {words} of {number} microbatches in {stage}"


def _ranks(job: Observed, graph: PassGraph, late: Late) -> tuple[int, ...]:
    """Of the ranks that run these passes together, the one that the others waited for."""
    passes = graph.passes
    members = passes.layout.ranks[:, late.replica, late.position]
    if members.size == 1:
        return (int(members[0]),)
    rows, lanes = np.nonzero(late.cells)
    at = np.s_[graph.vertices[rows], :, graph.replica[lanes], graph.column[lanes]]
    if late.edge:
        return (int(members[int(np.argmax(passes.start_ns[at].sum(axis=0)))]),)
    wait = passes.wait_ns[at]
    if (wait != NULL).all():
        own = (passes.end_ns[at] - passes.start_ns[at] - wait).sum(axis=0)
        return (int(members[int(np.argmax(own))]),)
    if job.arrivals is None:
        return tuple(members.tolist())
    steps = passes.columns[graph.column[lanes]]
    known = np.isin(job.arrivals.step, steps)
    caused = stats.sums(job.arrivals.last_rank[known], job.arrivals.alone_ns[known],
                        len(job.line.ranks))[job.line.rows(members)]  # fmt: skip
    return (int(members[int(np.argmax(caused))]),)


def _edge(
    graph: PassGraph, late: Late, ranks: tuple[int, ...], says: str, name: str,
    common: dict[str, Any], rule: Decision,
) -> Finding:  # fmt: skip
    """Input that came late: from the stage before, or else the host began late."""
    passes = graph.passes
    rows, lanes = np.nonzero(late.cells)
    source = [passes.input_of(int(one)) for one in graph.vertices[rows]]
    others = {passes.position(one) for one in source if one >= 0} - {late.position}
    delay_ns = late.slowdown * passes.line.typical_ns
    delay_ms = 1e-6 * delay_ns
    if len(others) != 1:
        detail = f"began {delay_ms:.0f} ms late, {says}"
        return Slowdown(name, "host", detail, ranks, score=EDGE_SCORE, decisions=(rule,),
                        spikes=len(set(graph.column[lanes].tolist())),
                        of_steps=int(passes.columns.size), **common)  # fmt: skip
    there = passes.layout.ranks[:, late.replica, others.pop()].tolist()
    here = passes.layout.ranks[:, late.replica, late.position].tolist()
    at = here.index(ranks[0]) if len(ranks) == 1 else 0
    ends_of = (int(there[at]), int(here[at]))
    lead_ns = float(np.median(graph.lead_ns[late.cells]))
    times = lead_ns / max(lead_ns - delay_ns, SHORT_NS)
    detail = f"input of {says} came {delay_ms:.0f} ms late from rank {ends_of[0]}"
    return SlowLink(name, "network", detail, ends_of, score=EDGE_SCORE, decisions=(rule,),
                    slowdown=times, where=f"from rank {ends_of[0]} to rank {ends_of[1]}",
                    **common)  # fmt: skip


def _tail(job: Observed, passes: Passes, end_ns: Floats, name: str) -> Iterator[SlowLink]:
    """Steps that ended late after their last pass: gradients were exchanged slowly."""
    line, columns = job.line, passes.columns
    done = line.start_ns[:, columns] + np.nan_to_num(line.duration_ns[:, columns])
    known = np.isfinite(line.duration_ns[:, columns]) & (line.start_ns[:, columns] != NULL)
    last = np.where(known, done, -np.inf).max(axis=0) - line.begins_ns[columns]
    tail = np.where((end_ns > 0).all(axis=0), last - end_ns.max(axis=0), np.nan)
    above = tail - stats.median(tail)
    limit = max(TAIL_MADS * stats.sigma(tail), LEAST_COST * line.typical_ns)
    hit = np.flatnonzero(np.nan_to_num(above) > limit)
    if not hit.size:
        return
    slowest = _slowest_group(job, columns[hit])
    if slowest is None:
        return
    group, times = slowest
    span = (int(columns[hit[0]]), int(columns[hit[-1]]) + 1)
    fraction = float(above[hit].sum() / np.maximum(last[hit].sum(), 1.0))
    detail = f"after the last pass {group} took {1e-6 * above[hit].mean():.0f} ms more than usual"
    yield SlowLink(
        name, "network", detail, group=group, steps=line.span(*span), time_ns=line.span_ns(*span),
        lost_ns=float(above[hit].mean()), lost_fraction=fraction, score=EDGE_SCORE,
        slowdown=times, where=f"in {group} than before", columns=tuple(columns[hit].tolist()),
        decisions=(Decision(name, True, fraction, LEAST_COST, detail),),
    )  # fmt: skip


def _slowest_group(job: Observed, columns: Ints) -> tuple[str, float] | None:
    """The group with the transfer that exceeds the group's median most in these steps, and how many
    times as long as that it took."""
    arrivals = job.arrivals
    if arrivals is None or not np.isfinite(arrivals.transfer_ns).any():
        return None
    hit, worst = np.isin(arrivals.step, columns), (0.0, "", 1.0)
    for code, value in enumerate(arrivals.group.values):
        mine = arrivals.group.codes == code
        taken = arrivals.transfer_ns[mine & hit]
        if np.isfinite(taken).any():
            usual, longest = stats.median(arrivals.transfer_ns[mine]), float(np.nanmax(taken))
            worst = max(worst, (longest - usual, value, longest / max(usual, SHORT_NS)))
    return worst[1:] if worst[1] else None

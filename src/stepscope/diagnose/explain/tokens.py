"""Whether experts are slow because of their tokens or their devices: routing creates no tokens.

Fault: experts that get more tokens than others, as opposed to devices that run experts slowly.
Paper: ARGUS (2026), section 9.5: `mlp` is 5.7 times as long on 8 of 32 ranks of an expert group;
people see that these are bad devices. Preferred experts show in the same phase (table 6).
What differs (blame rule 5): routing moves tokens between the ranks of one expert group, so that all
of them together have as many as before. If the slow ranks alone would need more tokens than the
group has, with the time of experts taken as proportional to tokens, tokens are not the cause.
Cost: one pass over the rows of `phases`, or of `kernel_summaries`.
Cannot see: slow devices that need no more than all tokens, as one of eight that is 5 times slower;
a group whose own samples are longer (its attention is longer as well).

**By the parts of a pass**, where phases within passes were recorded.
What differs (blame rule 5): a slow device is slow in attention as well; more tokens lengthen the
experts' part of a pass only. A device with a lower clock is slow whatever else it shows
(`gpu-clock`). Where no other phases within passes were recorded, sums of kernels are used in the
same way (if these do not name their experts, all but attention and the optimizer may be theirs);
without these, the optimizer, which has no tokens, and the whole excess, of which the experts must
have most.
Cost: one pass over the rows of `phases`, or of kernels.
Cannot see: more tokens per expert with neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.explain.cpu import of_host, processor_evidence
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.stats import median
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.kernel_phases import optimizes
from stepscope.diagnose.views.peers import is_expert
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.window import NULL, Floats, Ints, Table

BEYOND = 1.1
"""Times all tokens of a group. The sum over many experts whose times scatter by a tenth scatters by
less; of two, one may have all tokens. Our simulator."""
ALSO_SLOW = 0.5
"""Of the culprit's excess: ranks with as much count as slow like it. Our simulator."""
EXPERT_KERNELS = ("grouped", "moe", "expert")
"""Words in the names of kernels that experts run: one grouped matrix product serves them all."""
ATTENTION_KERNELS = ("attention", "attn", "flash", "fmha", "sdpa")
"""Words in the names of kernels that no expert runs."""
WHOLE = (DATA_LOAD, FORWARD, BACKWARD)
"""Phases that show nothing of what is slow on a device."""
MOSTLY = 0.7
"""Part of the excess that lies in the experts' phases: a slow device spreads it by the phases'
lengths, of which experts have about half. Our simulator."""
APART = 4.0
"""Experts must be slower by this many times the slowdown of the rest, which noise makes a little
slow. Our simulator."""
EXPLAIN = 0.1
"""All parts together must carry this part of the suspect's excess, or it is from elsewhere: forward
is a third of a step, and no more shows where backward's parts were not recorded. Our simulator."""


def too_many(job: Observed, one: Suspect, name: str) -> bool:
    """Whether a culprit and ranks like it would need more tokens than there are.

    Args:
        name: the phase or kernel of experts that is slow.
    """
    times = expert_times(job, one, name)
    usual = median(times[job.peers_of(one.row, one.phase)])
    return exceeds(job, one.row, times, usual)


def exceeds(job: Observed, row: int, times_ns: Floats, usual_ns: float) -> bool:
    """The same for the times of experts by rank (NaN: unknown) and their usual times."""
    members = _group_of(job, row)
    if not members.size or not usual_ns > 0 or not np.isfinite(times_ns[row]):
        return False
    tokens = times_ns[members] / usual_ns
    like_it = tokens >= 1 + ALSO_SLOW * (times_ns[row] / usual_ns - 1)
    return float(tokens[like_it].sum()) > BEYOND * members.size


def _group_of(job: Observed, row: int) -> Ints:
    """The rows of all ranks of a rank's expert group, where each was recorded."""
    rank = int(job.line.ranks[row])
    for group in job.window.job.groups_of_kind("ep"):
        if rank in group.ranks and len(group.ranks) > 1:
            rows = job.line.rows(np.array(group.ranks, np.int64))
            return rows if (rows >= 0).all() else np.zeros(0, np.int64)
    return np.zeros(0, np.int64)


class MoreTokens:
    """Experts that get more tokens than others, where nothing else makes the passes longer."""

    name = "more-tokens"
    causes: tuple[Cause, ...] = ("load_imbalance",)
    needs = Needs("phases|kernels|kernel_summaries", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        if of_host(job, suspect):
            return None
        phases, parts = parts_in(job, suspect)
        name = more_for_experts(parts)
        rest = "the rest of the passes"
        if name is None and parts is not phases:
            name, rest = more_but_for_attention(parts), "attention"
        if name is None or not explain(parts, suspect):
            return None
        if not (job.has_experts or _exchanges(job)) or too_many(job, suspect, name):
            return None
        share = parts[name].excess_ns / max(suspect.excess_ns, 1.0)
        phase = next((one for one in phases if is_expert(one)), None)
        return Explained(
            "load_imbalance", "measured",
            (_evidence(parts, name, rest), *processor_evidence(job, suspect)), share,
            kernels=() if name in phases else (name,), phase=phase,
            slowdown=phases[phase].slowdown if phase else None,
        )  # fmt: skip


def parts_in(job: Observed, suspect: Suspect) -> tuple[Mapping[str, Part], Mapping[str, Part]]:
    """The phases that show what is slow on a device, and what to judge: these, or kernels, if they
    say more of the passes."""
    phases = parts_of(job, suspect)
    if within_passes(phases):
        return phases, phases
    return phases, kernels_of(job, suspect) or phases


def is_slow_device(job: Observed, suspect: Suspect) -> bool:
    """Whether a suspect whose experts are slow is as slow in work that has no tokens."""
    parts = parts_of(job, suspect)
    others = [one for name, one in parts.items() if not is_expert(name)]
    return bool(others) and more_for_experts(parts) is None and any(
        one.slowdown - 1 >= ALSO_SLOW * (suspect.slowdown - 1) for one in others)  # fmt: skip


def _exchanges(job: Observed) -> bool:
    """Whether ranks exchange tokens: old traces name no groups of experts."""
    comm = job.window.table("comm_ops")
    return comm is not None and bool(comm.strings("op").equals("AllToAll").any())


def _evidence(parts: Mapping[str, Part], phase: str, rest: str) -> Evidence:
    part = parts[phase]
    detail = (
        f"{phase} takes {part.excess_ns / 1e6:.1f} ms per step more than on its peers, and "
        f"{rest} no longer: more tokens, not a slower device"
    )
    return Evidence(MoreTokens.name, detail, {name: one.excess_ns for name, one in parts.items()})


@dataclass(frozen=True)
class Part:
    """One phase within passes: what the culprit and its peers take per step, in ns."""

    own_ns: float
    usual_ns: float

    @property
    def excess_ns(self) -> float:
        return self.own_ns - self.usual_ns

    @property
    def slowdown(self) -> float:
        return self.own_ns / self.usual_ns


def parts_of(job: Observed, suspect: Suspect) -> dict[str, Part]:
    """The phases within passes in the culprit's steps; none where they were not recorded."""
    rows = _inner_rows(job)
    if rows is None:
        return {}
    names = rows.strings("phase")
    return _compared(job, suspect, {
        name: _means(job, rows.take(names.equals(name)), suspect.first, suspect.stop)
        for name in dict.fromkeys(names.values)
    })  # fmt: skip


def kernels_of(job: Observed, suspect: Suspect) -> dict[str, Part]:
    """The computing kernels, in the windows that began while the suspect was slow.

    The median stands for the mean of each mode: what is rarer than half of a mode is lost.
    """
    return _compared(job, suspect, _spent(job, suspect, is_computing))


def _compared(job: Observed, suspect: Suspect, times: Mapping[str, Floats]) -> dict[str, Part]:
    """Those that the culprit and its peers are known to take time for."""
    others = job.peers_of(suspect.row, suspect.phase)
    usual = {name: stats.median(own[others]) for name, own in times.items()}
    return {name: Part(float(own[suspect.row]), usual[name]) for name, own in times.items()
            if np.isfinite(own[suspect.row]) and usual[name] > 0}  # fmt: skip


def expert_times(job: Observed, suspect: Suspect, name: str) -> Floats:
    """Time per step of every rank in a phase within passes, or in a kernel; NaN unknown."""
    rows = _inner_rows(job)
    if rows is not None:
        rows = rows.take(rows.strings("phase").equals(name))
        return _means(job, rows, suspect.first, suspect.stop)
    unknown = np.full(len(job.line.ranks), np.nan)
    return _spent(job, suspect, lambda kernel: kernel == name).get(name, unknown)


def more_for_experts(parts: Mapping[str, Part]) -> str | None:
    """The experts' costliest part, if nothing else of the passes is slower than on the peers."""
    experts = [name for name in parts if _of_experts(name)]
    return _costliest(parts, experts, [name for name in parts if name not in experts])


def more_but_for_attention(parts: Mapping[str, Part]) -> str | None:
    """The same of kernels that do not name their experts, of a job that has some: what neither is
    attention, in which a slow device is slow as well, nor the optimizer's, in which slow memory
    shows."""
    if any(map(_of_experts, parts)):
        return None
    attention = [name for name in parts if any(word in name.lower() for word in ATTENTION_KERNELS)]
    experts = [name for name in parts if name not in attention and not optimizes(name)]
    found = _costliest(parts, experts, attention)
    updates = [part for name, part in parts.items() if optimizes(name)]
    if found and updates and _slower(updates) >= ALSO_SLOW * (parts[found].slowdown - 1):
        return None
    return found


def _costliest(parts: Mapping[str, Part], experts: list[str], rest: list[str]) -> str | None:
    """The costliest of the experts' parts, if the rest is no slower than on the peers."""
    if not experts or not rest:
        return None
    excess = sum(max(part.excess_ns, 0.0) for part in parts.values())
    expert_excess = sum(max(parts[name].excess_ns, 0.0) for name in experts)
    if expert_excess <= 0 or expert_excess < MOSTLY * excess:
        return None
    if _slower(parts[name] for name in experts) < APART * _slower(parts[name] for name in rest):
        return None
    return max(experts, key=lambda name: parts[name].excess_ns)


def explain(parts: Mapping[str, Part], suspect: Suspect) -> bool:
    """Whether the excess of the parts is a notable part of the suspect's excess; most of it, where
    nothing else within passes is known to be as long as on the peers."""
    least = EXPLAIN if within_passes(parts) else MOSTLY
    return sum(max(part.excess_ns, 0.0) for part in parts.values()) >= least * suspect.excess_ns


def within_passes(parts: Mapping[str, Part]) -> bool:
    """Whether something within passes besides the experts was recorded."""
    return any(name != OPTIMIZER and not _of_experts(name) for name in parts)


def _spent(job: Observed, suspect: Suspect, wanted: Callable[[str], bool]) -> dict[str, Floats]:
    """Time of each kernel and rank, per step, in the windows or steps in which it was slow."""
    table = job.window.table("kernel_summaries")
    if table is None or not table.has("window_start_ns", "kernel", "count", "p50_ns"):
        return _executed(job, suspect, wanted)
    begin, end = job.line.span_ns(suspect.first, suspect.stop)
    names, row = table.strings("kernel"), job.line.rows(table.ints("rank"))
    inside = (table.ints("window_start_ns") >= begin) & (table.ints("window_start_ns") < end)
    spent = table.floats("count") * table.floats("p50_ns") / max(suspect.stop - suspect.first, 1)
    found = {}
    for name in filter(wanted, names.values):
        rows = inside & names.equals(name) & (row >= 0)
        found[name] = stats.sums(row[rows], spent[rows], len(job.line.ranks))
    return found


def _executed(job: Observed, suspect: Suspect, wanted: Callable[[str], bool]) -> dict[str, Floats]:
    """The same by executions that were recorded one by one."""
    table = job.window.table("kernels")
    if table is None or not table.has("step", "kernel", "duration_ns"):
        return {}
    row, column = job.line.places(table)
    table = table.take((column >= suspect.first) & (column < suspect.stop) & (row >= 0))
    names, row = table.strings("kernel"), job.line.rows(table.ints("rank"))
    lasted, found = table.ints("duration_ns").clip(0), {}
    for name in filter(wanted, names.values):
        rows = names.equals(name)
        spent = stats.sums(row[rows], lasted[rows], len(job.line.ranks))
        found[name] = spent / max(suspect.stop - suspect.first, 1)
    return found


def _of_experts(name: str) -> bool:
    return is_expert(name) or any(word in name.lower() for word in EXPERT_KERNELS)


def _slower(parts: Iterable[Part]) -> float:
    """The excess of these parts as a part of their usual time."""
    kept = list(parts)
    return max(sum(one.excess_ns for one in kept), 0.0) / sum(one.usual_ns for one in kept)


def _inner_rows(job: Observed) -> Table | None:
    """Rows of phases that carry no communication and may not wait, other than whole passes."""
    phases = job.window.table("phases")
    if phases is None:
        return None
    names = phases.strings("phase")
    whole = (*WHOLE, *_passes(job))
    wanted = [one for one in names.values if one not in whole and not communicates(one)]
    keep = names.equals(*wanted)
    if phases.has("waits"):
        keep &= phases.ints("waits") != 1
    return phases.take(keep) if keep.any() else None


def _passes(job: Observed) -> list[str]:
    """Phases within which experts run: passes under names of somebody else. They have the experts'
    excess and waiting for experts in them, and show nothing of the rest."""
    phases = job.window.table("phases")
    known = phases is not None and any(map(_of_experts, phases.strings("phase").values))
    rows = phase_rows(job.window, job.line) if known else None
    if rows is None:
        return []
    experts = rows.names.equals(*filter(_of_experts, rows.names.values))
    holds = np.zeros(experts.size, np.bool_)
    runs = rows.union_of(experts)
    for part, begin, end in rows.parts():
        holds[part] = runs.within(begin, end) > 0
    return [name for name, share in rows.shares(holds & ~experts).items() if share > HALF]


def _means(job: Observed, rows: Table, first: int, stop: int) -> Floats:
    """Time per step of every rank in columns [first, stop), of those steps that have rows of it;
    NaN where none has."""
    row, column = job.line.places(rows)
    keep = (row >= 0) & (column >= first) & (column < stop)
    row, column = row[keep], column[keep] - first
    recorded = np.zeros((len(job.line.ranks), max(stop - first, 1)), np.bool_)
    recorded[row, column] = True
    steps = recorded.sum(axis=1)
    total = stats.sums(row, _own(rows)[keep], len(job.line.ranks))
    return np.where(steps > 0, total / np.maximum(steps, 1), np.nan)


def _own(rows: Table) -> Ints:
    lasted = rows.ints("duration_ns")
    if not rows.has("wait_ns"):
        return lasted
    waited = rows.ints("wait_ns")
    return lasted - np.where(waited == NULL, 0, waited)

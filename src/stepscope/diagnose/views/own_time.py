"""Own time per rank, step and phase: duration less waiting for other ranks (blame rule 1).

If the collector measured the waiting, own time is `duration_ns - wait_ns`. Otherwise the blocking
communication operators inside a phase are subtracted, including their transfers, which are no own
time either; data-parallel operators overlap the backward pass and are not subtracted. A phase that
may have waited for an unknown time is not comparable between ranks; it is left out and reported.

Phases nested in others (a user's `stepscope.phase` inside the forward pass) would count twice and
are left out. Module `unnamed` computes the time of a step that is in no phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.numeric.intervals import Spans, union_of_rows
from stepscope.diagnose.prepare.communication import communicates, loads
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.between_operators import between_operators
from stepscope.diagnose.views.exposed_loading import exposed_loading
from stepscope.diagnose.views.hidden_waits import (
    BLOCKING_KINDS,
    WITHIN_PASSES,
    gathering,
    hidden,
    is_whole,
)
from stepscope.diagnose.views.hidden_work import common_work, late_within, own_at_least
from stepscope.diagnose.views.inferred import Walk, without_shared_excess, without_waiting
from stepscope.diagnose.views.kernel_phases import kernel_phases
from stepscope.diagnose.views.late_begins import late_begins
from stepscope.diagnose.views.lost import lost_phases
from stepscope.diagnose.views.peers import comparison_groups
from stepscope.diagnose.views.phase_rows import CANONICAL, PhaseRows, nullable, phase_rows
from stepscope.diagnose.views.rings import waits_from
from stepscope.diagnose.views.roles import together_by_design
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import (
    BETWEEN,
    GAPS,
    KERNELS,
    OUTSIDE,
    Named,
    is_staged,
    outside_phases,
    wait_times,
)
from stepscope.trace import DATA_LOAD
from stepscope.window import NULL, Floats, Mask, Table, Union, Window

HIDDEN = "it may contain waiting that was not measured"
OF = "own time of "
NO_TABLES = "no tables phases, comm_ops or kernels"
OBSERVED = ("comm_ops", "kernels", "host_ops")
"""Tables that show where ranks wait, whatever a recorder says of its phases."""
CALLS_ONLY = "no tables phases or kernels, and no ends of operators in comm_ops"


@dataclass(frozen=True)
class OwnTime:
    """Own time and CPU time, `[phase, rank, step]` in ns; NaN if unknown."""

    phases: tuple[str, ...]
    own: Floats
    cpu: Floats
    skipped: tuple[Skipped, ...] = ()
    inferred: tuple[str, ...] = ()
    """Phases from which waiting was taken out that nobody marked (`inferred`)."""
    marked: bool = True
    """Whether the recorder marked waiting, or measured it."""
    lasted: Mapping[str, Floats] = field(default_factory=dict)
    """Of the phases of which only the excess over peers is known, how long ranks were in them with
    all waiting, `[rank, step]` in ns."""
    elsewhere: Floats | None = None
    """Of operators alone, how many times as long as others each rank takes in other gaps than the
    one in which it takes the most longer, `[rank, step]`; NaN if unknown."""
    in_open: Floats | None = None
    """Likewise in the gaps that most ranks have in the step."""

    def items(self) -> Iterator[tuple[str, Floats]]:
        """Each phase with its own time, `[rank, step]`."""
        return zip(self.phases, self.own, strict=True)

    def of(self, phase: str) -> Floats:
        """The own time in a phase, `[rank, step]`."""
        return np.asarray(self.own[self.phases.index(phase)])

    @property
    def hidden(self) -> bool:
        """Whether some phase is left out because of waiting that was not measured."""
        return bool(self.hidden_phases)

    @property
    def hidden_phases(self) -> frozenset[str]:
        """Those phases."""
        return frozenset(one.method.removeprefix(OF) for one in self.skipped if one.why == HIDDEN)

    @property
    def total(self) -> Floats:
        """Own time of each rank and step over all phases; NaN if none is known."""
        known = np.isfinite(self.own).any(axis=0)
        return np.where(known, np.nansum(self.own, axis=0), np.nan)


def own_time(window: Window, line: Timeline) -> OwnTime:
    """Own time of all comparable phases in the window."""
    rows = phase_rows(window, line)
    if rows is None:
        return _without_phases(window, line)
    waits = _waited(window, rows)
    names, skipped = _comparable(rows, waits)
    busy = np.maximum(np.subtract(rows.duration, waits, out=waits), 0, out=waits)
    own = dict(zip(names, _in_all_steps(rows, _of_cells(rows, busy, names), names), strict=True))
    del waits, busy  # one value for each row: large
    apart = _loading_apart(window, line, own)
    own |= apart
    unnamed = outside_phases(window, rows)
    inferred: tuple[str, ...] = ()
    if not unnamed and _may_infer_gaps(window, rows):
        lasted = dict(zip(names, rows.grids(rows.duration, names), strict=True))
        unnamed = _inferred(window, rows, lasted, [])[1]
    if not _is_marked(window, rows) or _contradicts_marks(window, rows, own):
        own, unnamed, inferred, shared = _inferred(window, rows, own, unnamed)
        own |= apart
        skipped += [Skipped(f"{OF}{name}", HIDDEN) for name in shared if name not in apart]
    unnamed = _where_recorded(rows, unnamed or late_begins(window, rows))
    excesses: list[str] = []
    if skipped and window.table("host_ops") is None:
        hidden = [one.method.removeprefix(OF) for one in skipped]
        certain, common = own_at_least(window, rows, hidden), dict[str, Floats]()
        if not is_staged(window):
            common = common_work(window, rows, hidden)
            certain = _sums(certain, late_within(window, rows, hidden))
        own |= _sums(certain, common)
        excesses = [name for name in certain if name not in common]
    cpu = [*_cpu(rows, list(own)), *(np.full_like(values, np.nan) for _, values in unnamed)]
    names, times = [*own, *(name for name, _ in unnamed)], [*own.values()]
    times += [values for _, values in unnamed]
    whole = _bundle(line, names, times, cpu, skipped)
    lasted = dict(zip(excesses, rows.grids(rows.duration, excesses), strict=True))
    marked = _marks_waiting(window, rows)
    return replace(whole, inferred=inferred, marked=marked, lasted=lasted)


def _loading_apart(window: Window, line: Timeline, own: Mapping[str, Floats]) -> dict[str, Floats]:
    """Loading that is timed on the host and other phases on the device, by the name of its phase.

    It counts only where its device has nothing else to do: until then the host runs ahead, and
    where it copies the batch to the device it waits for this one, and so for other ranks.
    """
    loading = [name for name in own if loads(name)]
    exposed = exposed_loading(window, line) if len(loading) == 1 else None
    if exposed is None:
        return {}
    whole = own[loading[0]]
    return {loading[0]: np.where(exposed < whole, exposed, whole)}


def _of_cells(rows: PhaseRows, busy: Floats, names: list[str]) -> Floats:
    """Own times, `[phase, rank, step]`; NaN if unknown.

    Of several passes in a step, the last one may wait for all gradients, for an unknown time. Where
    so in most steps, the own time is that of the other passes: equally many of each rank.
    """
    own = rows.grids(busy, names)
    known = np.isfinite(busy)
    entered = rows.entered(names)
    for at, name in enumerate(names):
        if not entered[at].any() or np.isfinite(own[at][entered[at]]).mean() >= HALF:
            continue
        count = rows.grids(known.astype(np.float64), [name])[0]
        part = rows.grids(np.where(known, busy, 0.0), [name])[0]
        usual = np.nanmedian(count)
        own[at] = np.where((count == usual) & (usual > 0), part, np.nan)
    return own


def _in_all_steps(rows: PhaseRows, own: Floats, names: list[str]) -> Floats:
    """Own times, `[phase, rank, step]`: 0 in steps in which a rank was in other phases and not in
    one that most steps do without (saving, evaluation). If some ranks run it together by design,
    the others never do this work, and theirs stays unknown."""
    if not names:
        return own
    entered = rows.entered(names)
    rare = np.flatnonzero(entered.any(axis=1).mean(axis=1) < HALF)
    present = rows.entered(list(rows.names.values)).any(axis=0)
    for at in rare:
        own[at][present & ~entered[at] & _may_run(entered[at])] = 0.0
    return own


def _may_run(entered: Mask) -> Mask:
    """`[rank, 1]`: which ranks a rare phase is compared with, where they do not run it."""
    planned = together_by_design(entered)
    return (planned if planned.any() else ~planned)[:, None]


def _where_recorded(rows: PhaseRows, unnamed: Named) -> Named:
    """Times in no phase; unknown where rows of phases were lost."""
    lost = lost_phases(rows) if unnamed else np.zeros(rows.line.shape, np.bool_)
    return [(name, np.where(lost, np.nan, own)) for name, own in unnamed]


def _may_infer_gaps(window: Window, rows: PhaseRows) -> bool:
    """Whether phases say where ranks waited, while no operator shows the time between them: one of
    which only the call is known shows nothing."""
    shown = any(name in window.tables for name in ("kernels", "host_ops"))
    return not (shown or rows.made_up or _ends_known(window)) and _marks_waiting(window, rows)


def _ends_known(window: Window) -> bool:
    """Whether it was recorded when any operator ended, or for how long it blocked its rank."""
    comm = window.table("comm_ops")
    return comm is not None and (comm.knows("end_ns") or comm.knows("blocked_ns"))


def _is_marked(window: Window, rows: PhaseRows) -> bool:
    """Whether the collector says which phases contain waiting, or records the operators."""
    if _marks_waiting(window, rows):
        return True
    return _blocking(window, rows, BLOCKING_KINDS) is not None


def _marks_waiting(window: Window, rows: PhaseRows) -> bool:
    table = rows.table
    if table.has("waits") or table.knows("wait_ns"):
        return True
    return window.table("host_ops") is not None


def _contradicts_marks(window: Window, rows: PhaseRows, own: Mapping[str, Floats]) -> bool:
    """Whether a recorder says of all phases that no waiting is in them, and ranks give back in one
    what they were late by: then nobody filled in the column. Timers of hosts around a call that
    waits for the device are marked like this. Loaders that fetch ahead give back as well."""
    table = rows.table
    if not table.has("waits") or table.knows("wait_ns") or table.ints("waits").any():
        return False
    if is_staged(window) or any(name in window.tables for name in OBSERVED):
        return False
    found = without_waiting(Walk.of(window, rows, own), comparison_groups(window, None))
    works = [one for one in found.parts if one.phase in own and not (one.gap or loads(one.phase))]
    return any(bool((one.own < own[one.phase]).any()) for one in works)


def _inferred(
    window: Window, rows: PhaseRows, own: dict[str, Floats], unnamed: Named
) -> tuple[dict[str, Floats], Named, tuple[str, ...], tuple[str, ...]]:
    """Own times less waiting that ranks mirror, times in no phase, the phases that waited, and
    those in which only a part of the peers waited for each other."""
    walk = Walk.of(window, rows, own)
    found = without_waiting(walk, comparison_groups(window, None))
    parts = [one for one in found.parts if not one.gap]
    own = {**own, **{one.phase: one.own for one in parts if one.phase in own}}
    shared = tuple(name for name in found.shared if name in own)
    own = {name: without_shared_excess(values, walk.ways) if _may_broadcast(name) else values
           for name, values in own.items() if name not in shared}  # fmt: skip
    if not is_staged(window) or (walk.passing and not rows.made_up):
        nothing = np.zeros(walk.late.shape)
        gaps = [one for one in found.parts if one.gap and not one.alternates]
        around = sum((one.own for one in gaps if one.phase == OUTSIDE), nothing)
        between = sum((one.own for one in gaps if one.phase != OUTSIDE), nothing)
        unnamed = [(GAPS, between), (OUTSIDE, around)]
    return own, unnamed, found.waited, shared


def _may_broadcast(phase: str) -> bool:
    """Whether one member of a `tp` group may load for all in a phase. The contract's does not."""
    return loads(phase) and phase != DATA_LOAD


def _sums(some: dict[str, Floats], more: dict[str, Floats]) -> dict[str, Floats]:
    """By phase, the sum of two measurements of different parts of it; of one where one is there."""
    both = {name: np.nan_to_num(some[name]) + more[name] for name in some.keys() & more}
    return {**some, **more, **both}


def _cpu(rows: PhaseRows, names: list[str]) -> Floats:
    """Processor time in phases. That of a phase which a device timed is its host's, for the time
    that this took to submit it."""
    if not rows.table.has("cpu_ns"):
        return np.full((len(names), len(rows.line.ranks), len(rows.line.steps)), np.nan)
    of_device = np.isfinite(nullable(rows.table, "host_start_ns"))
    return rows.grids(np.where(of_device, np.nan, nullable(rows.table, "cpu_ns")), names)


def _bundle(
    line: Timeline, names: list[str], own: list[Floats], cpu: list[Floats], skipped: list[Skipped]
) -> OwnTime:
    shape = (len(names), len(line.ranks), len(line.steps))
    if not names:
        return OwnTime((), np.zeros(shape), np.zeros(shape), tuple(skipped))
    return OwnTime(tuple(names), np.stack(own), np.stack(cpu), tuple(skipped))


def _waited(window: Window, rows: PhaseRows) -> Floats:
    """How long each row waited: as measured, or in blocking operators; NaN if unknown.

    It stays unknown in phases of communication, which have no own time.
    """
    waits = nullable(rows.table, "wait_ns")
    unknown = np.isnan(waits) & ~rows.names.equals(*filter(communicates, rows.names.values))
    if unknown.any():
        covered = _in_blocking(window, rows, unknown)
        covered[hidden(window, rows, covered)] = np.nan
        waits = np.where(unknown, covered, waits)
    waits[gathering(window, rows)] = np.nan
    blocked = _blocked(window, rows)
    if blocked is not None:
        for part, begin, end in rows.parts():
            np.maximum(waits[part], blocked.within(begin, end), out=waits[part])
    return waits


def _in_blocking(window: Window, rows: PhaseRows, wanted: Mask) -> Floats:
    """For how long the rank was in recorded blocking operators, in the wanted rows.

    The pass of one microbatch begins when its input is there. An operator between stages that is
    under way during it was called ahead for another microbatch, and nobody waits in it.
    """
    covered, whole = np.zeros(len(rows.rank)), is_whole(rows)
    for part, kinds in ((wanted & whole, BLOCKING_KINDS), (wanted & ~whole, WITHIN_PASSES)):
        blocking = _blocking(window, rows, kinds) if part.any() else None
        if blocking is not None:
            covered[part] = blocking.within(rows.begin[part], rows.end[part])
    return covered


def _blocked(window: Window, rows: PhaseRows) -> Union | None:
    """When ranks were blocked by operators, except those between stages, if that was measured.

    The measured waiting of a pass may not include waiting for parameters that other ranks had not
    yet gathered.
    """
    comm = window.table("comm_ops")
    if comm is None or not comm.has("blocked_ns"):
        return None
    within = {group.id for group in window.groups if group.kind != "pp"}
    comm = comm.take((comm.ints("blocked_ns") > 0) & comm.strings("group").equals(*within))
    return union_of_rows(rows.axis, rows.line.rows, comm, wait_times)


def _blocking(window: Window, rows: PhaseRows, kinds: tuple[str, ...]) -> Union | None:
    """When a rank was in an operator of these kinds of groups, if these were recorded."""
    comm = window.table("comm_ops")
    groups = {group.id for group in window.job.groups_of_kind(*kinds)}
    if comm is None or not comm.has("end_ns") or not groups:
        return None
    comm = comm.with_column("since_ns", waits_from(window, comm))

    def spans(part: Table) -> Spans:
        end, since = part.ints("end_ns"), part.ints("since_ns")
        blocks = part.strings("group").equals(*groups) & (end != NULL) & (since < end)
        return since, end, blocks

    return union_of_rows(rows.axis, rows.line.rows, comm, spans)


def _comparable(rows: PhaseRows, waits: Floats) -> tuple[list[str], list[Skipped]]:
    """Phases whose own time is known and that count nothing twice."""
    names: list[str] = []
    skipped: list[Skipped] = []
    unknown, nested = rows.shares(np.isnan(waits)), rows.shares(rows.inner)
    passes = rows.passes
    others = sorted(unknown.keys() - set(CANONICAL), key=lambda one: (nested[one], one))
    for name in (*CANONICAL, *others):
        if name not in unknown or communicates(name):
            continue
        if unknown[name] > HALF:
            skipped.append(Skipped(f"{OF}{name}", HIDDEN))
        elif nested[name] <= HALF or not passes.intersection(names):
            names.append(name)  # a nested phase replaces a parent of unknown own time
    return names, skipped


def _without_phases(window: Window, line: Timeline) -> OwnTime:
    """Own time from kernels, else from operators."""
    known = kernel_phases(window, line)
    names, own = [name for name, _ in known], [own for _, own in known]
    comm = window.table("comm_ops")
    if KERNELS not in names and comm is not None and comm.has("end_ns") and len(line.steps):
        return _between_collectives(window, comm, line)
    why = NO_TABLES if comm is None or comm.has("end_ns") else CALLS_ONLY
    skipped = [] if known else [Skipped("own time", why)]
    return _bundle(line, names, own, [np.full_like(one, np.nan) for one in own], skipped)


def _between_collectives(window: Window, comm: Table, line: Timeline) -> OwnTime:
    found = between_operators(window, comm, line)
    if isinstance(found, str):
        return _bundle(line, [], [], [], [Skipped("own time", found)])
    own, gaps = found.own, found.gaps
    whole = _bundle(line, [BETWEEN], [own], [np.full_like(own, np.nan)], [])
    if gaps is None:
        return whole
    return replace(whole, elsewhere=gaps.elsewhere(), in_open=gaps.in_open())

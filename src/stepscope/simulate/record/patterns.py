"""Table `patterns`: what each function did in steps that all ranks profile (EROICA, section 4.2).

The window is the last `profiled_steps` of the job, or the step that never ends. A function is on
the critical path where none of a higher priority runs: kernels, copies, communication, Python.
Uses of resources follow from the faults: a throttled device runs at a lower clock, and a ring with
a slow link as in EROICA's figures 3 to 5. The profiler costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.simulate.program import TRANSFERS, Op
from stepscope.simulate.record.kernels import PERMILLE, KernelSource
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.record.stacks import Part, StackRows
from stepscope.simulate.world import World
from stepscope.window import Floats, Ints, Mask, union

TEXT = ("function", "kind", "location", "caller", "resource")
CLOCK, CORE, IDLE = 0.95, 0.9, 0.02
"""Usual use of a device's clock, of a core by Python that works, and by Python that waits."""
ADAPTER, THROUGH_PCIE = 0.85, 0.25
"""Usual use of an adapter in collectives between hosts, and of PCIe in those within one."""
LEAST_DUTY = 0.05
SPREAD = 0.02
"""Log-normal spread of counters, as in table `hardware`."""
LEAST_BETA = 1e-4
KERNEL_NS = 1_000_000
"""Kernels are counted as if each took so long: longer inputs make more launches (EROICA, 6.2)."""


@dataclass(frozen=True)
class _Key:
    function: str
    kind: str
    location: str = ""
    caller: str = ""
    resource: str = ""


@dataclass
class _Sums:
    """Of one function on every place."""

    beta_ns: Floats
    weight: Floats
    mu: Floats
    sigma: Floats
    calls: Floats


@dataclass(frozen=True)
class _Run:
    """Executions of one function by places: `[execution, place]`."""

    key: _Key
    places: Ints
    begin: Ints
    end: Ints
    mu: Floats
    """By place."""
    sigma: Floats
    steady: float = 1.0


@dataclass
class PatternRows:
    """One row per function, rank and window of profiling."""

    world: World
    clocks: Clocks
    source: KernelSource
    rows: Rows = field(default_factory=lambda: Rows(frozenset(TEXT)))
    _sums: dict[_Key, _Sums] = field(default_factory=dict)
    _first: int = -1
    _start: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, moment: Moment, watched_until_ns: int) -> None:
        turn = self._turn(moment.step)
        if not self.world.scenario.profiled_steps or (moment.finished and turn is None):
            return
        if turn == 0 or not moment.finished or self._first < 0:
            self._sums.clear()
            self._first, self._start = moment.step, moment.start.ravel().copy()
        self._count(moment, watched_until_ns)
        if not moment.finished or turn == self.world.scenario.profiled_steps - 1:
            done = np.minimum(moment.times.done.ravel(), watched_until_ns)
            self._close(done, moment.step)
            self._first = -1

    def _turn(self, step: int) -> int | None:
        """The number of a step in its window; None outside of all windows."""
        scenario = self.world.scenario
        every = scenario.profile_every or scenario.steps
        # the last window ends with the job
        first = (scenario.steps - min(scenario.profiled_steps, scenario.steps)) % every
        turn = (step - first) % every
        return turn if step >= first and turn < scenario.profiled_steps else None

    def _count(self, moment: Moment, until: int) -> None:
        runs = {kind: list(self._of_devices(moment, kind, until)) for kind in
                ("kernel", "copy", "collective")}  # fmt: skip
        runs["python"] = list(self._of_hosts(moment, until))
        above: list[tuple[Ints, Ints]] = []
        for some in runs.values():
            covered = union(*map(np.concatenate, zip(*above, strict=True))) if above else None
            for run in some:
                begin, end = self._apart(run, moment)
                shown = end - begin
                if covered is not None:
                    shown = shown - covered.within(begin, end)
                self._put(run, shown)
                above.append((begin.ravel(), end.ravel()))

    def _apart(self, run: _Run, moment: Moment) -> tuple[Ints, Ints]:
        """Times of different places on one axis, so that they do not overlap."""
        zero = int(moment.start.min())
        return run.begin - zero + run.places * _LONG, run.end - zero + run.places * _LONG

    def _put(self, run: _Run, shown: Ints) -> None:
        ranks = self.world.scenario.ranks
        sums = self._sums.get(run.key)
        if sums is None:
            sums = self._sums[run.key] = _Sums(*(np.zeros(ranks) for _ in range(5)))
        spent = shown.sum(axis=0).astype(np.float64)
        took = (run.end - run.begin).sum(axis=0).astype(np.float64)
        sums.beta_ns[run.places] += spent
        sums.weight[run.places] += took
        sums.mu[run.places] += took * run.mu
        sums.sigma[run.places] += took * run.sigma
        sums.calls[run.places] += took * run.mu / run.steady / KERNEL_NS

    # ---- the device ----

    def _of_devices(self, moment: Moment, kind: str, until: int) -> Iterator[_Run]:
        for stage, kernels in enumerate(self.source.kernels):
            places = np.arange(self.world.cluster.per_stage) + stage * self.world.cluster.per_stage
            for one in kernels:
                op = self.world.ops[int(one.slots[0])]
                if _kind_of(op) != kind:
                    continue
                begin, end = (np.minimum(table[one.slots, stage], until)
                              for table in (moment.times.begin, moment.times.end))  # fmt: skip
                took = end - begin
                mu, sigma, resource = self._use(moment, op, places)
                yield _Run(
                    _Key(one.name, kind, resource=resource), places,
                    begin + took * one.first // PERMILLE, begin + took * one.last // PERMILLE,
                    mu, sigma, CLOCK if kind == "kernel" else 1.0,
                )  # fmt: skip

    def _use(self, moment: Moment, op: Op, places: Ints) -> tuple[Floats, Floats, str]:
        """Mean and deviation of the use of an operation's resource, and which one it is."""
        noise = self._noise(moment.step, op.name)[places]
        if op.kind == "copy":
            return 0.8 * noise, np.full(places.size, 0.1), "pcie"
        if op.kind not in TRANSFERS:
            clock = CLOCK * self._read(moment, "sm_clock_mhz")[places]
            return np.minimum(clock * noise, 1.0), np.full(places.size, 0.01), "sm"
        if not self._crosses[op.group]:
            used = THROUGH_PCIE * self._read(moment, "pcie_tx_bytes_per_s")[places] * noise
            return np.minimum(used, 1.0), 0.1 * used, "pcie"
        network, slower = self.world.network, moment.conditions.slower
        usual = network.ns_per_byte(op.group, np.ones_like(slower))
        now = network.ns_per_byte(op.group, slower)
        rate = np.divide(usual, now, out=np.ones_like(now), where=now > 0)[places]
        duty = np.maximum(network.occupied(op.group, slower)[places], LEAST_DUTY)
        used = np.minimum(ADAPTER * rate * noise, 1.0)
        return used, used * np.sqrt(SPREAD + (1 - duty) / duty), "nic"

    def _read(self, moment: Moment, metric: str) -> Floats:
        """By how much faults change a counter of each place."""
        times = np.ones(self.world.scenario.ranks)
        for one in moment.conditions.readings:
            if one.metric == metric and not one.host_level:
                times[one.places] *= one.times
        return times

    def _noise(self, step: int, name: str) -> Floats:
        shape = (self.world.scenario.ranks,)
        return self.world.random.factors(f"pattern {name}", SPREAD, shape, step)

    @cached_property
    def _crosses(self) -> dict[str, bool]:
        """Which kinds of groups have members on several hosts."""
        host = self.world.cluster.host_of_place
        return {kind: any(np.unique(host[members]).size > 1
                          for members in self.world.cluster.members(kind))
                for kind in self.world.cluster.kinds}  # fmt: skip

    # ---- the host ----

    def _of_hosts(self, moment: Moment, until: int) -> Iterator[_Run]:
        places = np.arange(self.world.scenario.ranks)
        for part in self._stacks.parts(moment):
            begin, end = np.minimum(part.begin, until), np.minimum(part.end, until)
            begin = np.maximum(begin, moment.start.ravel())
            ran: Mask = end > begin
            if ran.any():
                used = np.full(int(ran.sum()), CORE if part.active else IDLE)
                yield _Run(
                    _of_stack(part), places[ran], begin[ran][None], end[ran][None], used,
                    np.full(used.size, 0.02),
                )  # fmt: skip
        self._stacks.until = np.minimum(moment.times.done.ravel(), until)

    @cached_property
    def _stacks(self) -> StackRows:
        return StackRows(self.world, self.clocks)

    # ---- the table ----

    def _close(self, done: Ints, last: int) -> None:
        places, length = np.arange(done.size), np.maximum(done - self._start, 1)
        for key, sums in self._sums.items():
            beta = np.minimum(sums.beta_ns / length, 1.0)
            shown = beta >= LEAST_BETA
            weight = np.maximum(sums.weight, 1.0)
            words = {name: self._code(getattr(key, name)) for name in TEXT}
            self.rows.add(
                rank=self.world.cluster.rank_of[places[shown]].astype(np.int32), **words,
                window_start_ns=self.clocks.show(self._start[shown], places[shown]),
                window_ns=length[shown], beta=beta[shown], mu=(sums.mu / weight)[shown],
                sigma=(sums.sigma / weight)[shown],
                calls=np.maximum(np.rint(sums.calls[shown]), 1).astype(np.int64),
                first_step=np.int64(self._first), last_step=np.int64(last),
            )  # fmt: skip

    def _code(self, word: str) -> np.int32:
        """Null for words that are not known."""
        return np.int32(self.rows.code(word) if word else -1)


_LONG = 1 << 42
"""Longer than any step: 73 minutes. With more than two million places it would not fit an int64."""


def _kind_of(op: Op) -> str:
    if op.kind == "copy":
        return "copy"
    return "collective" if op.kind in TRANSFERS else "kernel"


def _of_stack(part: Part) -> _Key:
    """The innermost function of a stack, and the line of the training script that called it."""
    frames = part.frames.split(";")
    name, _, place = frames[-1].partition(" (")
    user = next((one for one in reversed(frames[:-1]) if "(train.py:" in one), "")
    function, _, line = user.partition(" (")
    caller = f"{line.rstrip(')')} {function}" if user else ""
    return _Key(name, "python", place.rstrip(")"), caller, "cpu")

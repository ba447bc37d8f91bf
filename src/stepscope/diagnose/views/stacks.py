"""The Python function that explains an excess of time, from sampled call stacks.

Fault: a function that takes longer on one rank than on its peers, or longer than before.
Paper: ARGUS (2026), section 6.3 and case studies, leaves L5 (CPU stacks) to people; EROICA (Guan
et al., 2026), section 4, compares call paths between workers. Neither has a rule for one function.
Ours: for each function, the share of samples in whose stack it occurs (counted once in a
recursion), times the step; and its excess over the peers' median, or over before. A caller has at
least the excess of its callees, so the innermost function with most of the largest excess is named.
On a single rank, callers that also wait show no excess, because the culprit waits less when it
works more. Time of a caller itself, such as a training loop that sleeps, is in the samples that end
in it. On a single rank a function is named only if it explains half of the excess.
Cost: one pass over the distinct stacks; rows are counted vectorised.
Cannot see: time in native code below the innermost Python frame, processes that were not sampled,
functions with only a few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.frames import (
    LOADER,
    MODULES,
    TRAINING,
    function_of,
    is_librarys,
    is_ours,
    is_own,
    is_theirs,
    is_torchs,
    is_users,
    waits,
)
from stepscope.window import Floats, Ints, Mask, ranges

CARRIES = 0.7
"""The innermost function with this share of the largest excess is named. A larger share would name
callers, a smaller one a callee that is only part of the cause. Our simulator."""
STANDS_OUT = 0.3
"""A function explains a rise on all ranks if its share of the rise exceeds its share of the time
before by this much. Otherwise all functions grew alike, and the machine got slower, not the code.
Our simulator."""
MOST_RANKS = 0.75
"""A function explains a rise on all ranks only if this share of the sampled ranks shows it, as with
own time. Our simulator."""
SURE_SIGMAS = 2.0
"""`STANDS_OUT` is raised by so many standard errors of the sample counts. Statistics."""
SAMPLE_NS = 10**8
"""The sampling interval of py-spy: ten samples a second."""
TRACED_NS = 10**6
"""The shortest sampling interval, that of stacks in a profiler's trace."""
SHORT = 0.1
"""This part of the runs of equal samples are of one sample at most. Our choice: a few are cut."""
EQUALLY_LONG = 0.75
"""The shortest twentieth of the runs by that of the shortest tenth: half as long where samples come
at random, and as long where they come regularly. Statistics: halfway."""
LEAST_SAMPLES = 20
"""Needs so many samples per side: the error of a share is then below 0.12. Statistics."""
LEAST_STEPS = 5
"""Profilers sample each millisecond, and samples of one step are not independent: they need samples
of so many steps. Our choice."""
BUILT_IN = "<built-in"
LEAST_NS = 2 * 10**9
"""Needs two seconds of samples per side at 10 Hz: the error of a share is then below 0.12.
Statistics."""
LEAST_SHARE = 0.05
"""A smaller excess, as a share of the time, is sampling noise (0.02 for a minute at 10 Hz).
Statistics."""
ABSENT = 0.05
"""A function counts as absent on peers if they are in it for this part of the time that the rank
is: one sample in twenty may be of a step that is not the rule. Statistics: as `LEAST_SHARE`."""


@dataclass(frozen=True)
class SlowFunction:
    """A function that takes a larger share of the time than on peers, or than before."""

    function: str
    share: float
    """Its share of the time now."""
    before: float
    """Its share of the time on the peers, or before the change."""
    grew: float
    """Its share of the rise (only in the comparison with before)."""
    itself: bool = False
    """Whether the shares count only the function itself, without functions that it calls."""
    caller: str = ""
    """If it belongs to a library, the innermost caller of the user's own."""
    apart: float = 0.0
    """The part of the excess that it takes beyond its share of what peers do while they work."""

    @property
    def named(self) -> str:
        """The function to look at: a library's function does what its caller wants."""
        return self.caller or self.function


@dataclass(frozen=True)
class Samples:
    """Distinct stacks, with their functions and depths, and the sample rows that refer to them."""

    row: Ints
    code: Ints
    time_ns: Ints
    weight: Floats
    functions: tuple[str, ...]
    lines: tuple[str, ...]
    """The frames: functions with line numbers."""
    pair_stack: Ints
    pair_function: Ints
    pair_depth: Ints
    pair_line: Ints
    stacks: int

    def without(self, rows: Collection[int]) -> Samples:
        """The samples without those of some ranks, given by their grid rows."""
        return self.only(~np.isin(self.row, sorted(rows)))

    def only(self, chosen: Mask) -> Samples:
        """The chosen samples alone."""
        return replace(
            self, row=self.row[chosen], code=self.code[chosen], time_ns=self.time_ns[chosen],
            weight=self.weight[chosen],
        )  # fmt: skip

    def shares(self, chosen: Mask) -> tuple[Floats, float]:
        """The share of the chosen time that each function is on the stack, and that time in ns."""
        return self._shares(chosen, np.True_)

    def shares_of(self, rows: Ints, span: Mask) -> tuple[Floats, Floats]:
        """The shares of each function on each of these rows, `[row, function]`, and the rows' time.

        All rows are counted in one pass: with thousands of peers, one pass for each took a minute.
        """
        place = np.full(int(max(self.row.max(initial=0), rows.max(initial=0))) + 1, -1)
        place[rows] = np.arange(len(rows))
        chosen = np.flatnonzero(span & (place[self.row] >= 0))
        shown = place[self.row[chosen]] * self.stacks + self.code[chosen]
        pairs, at = np.unique(shown, return_inverse=True)
        weight = stats.sums(at, self.weight[chosen], len(pairs))
        row, stack = pairs // self.stacks, pairs % self.stacks
        time_ns = stats.sums(row, weight, len(rows))
        inside = self._spread(row, stack, weight, len(rows))
        return inside / np.maximum(time_ns, 1.0)[:, None], time_ns

    def own_shares_of(self, rows: Ints, span: Mask) -> Floats:
        """The same for samples that end in a function, so without its callees, `[row, function]`.

        Torch's own functions get 0: what they do themselves is the work of the model.
        """
        found = np.zeros((len(rows), len(self.functions)))
        for at, row in enumerate(rows.tolist()):
            chosen = np.flatnonzero(span & (self.row == row))
            weight = self.weight[chosen]
            own = stats.sums(self._innermost[self.code[chosen]], weight, len(self.functions))
            found[at] = own / max(float(weight.sum()), 1.0)
        return np.where(self._which(is_torchs), 0.0, found)

    def line_of(self, function: int, chosen: Mask, alone: bool = False) -> str:
        """The frame of a function with most of the chosen time: the line that takes the time.

        Args:
            alone: count only the function itself, without functions that it calls.
        """
        weight = self._weights(chosen)
        inside = self.pair_function == function
        if alone:
            inside &= self._innermost[self.pair_stack] == function
        lines = stats.sums(self.pair_line[inside], weight[self.pair_stack[inside]], 0)
        return self.lines[int(np.argmax(lines))]

    def caller_of(self, frame: str, chosen: Mask) -> str:
        """If the frame belongs to Python's library or an installed package, the innermost caller of
        the user's own that has most of the chosen time; else, and if there is none, an empty
        text."""
        if is_own(frame):
            return ""
        at = np.array([function_of(line) == function_of(frame) for line in self.lines], np.bool_)
        below = np.full(self.stacks, -1)
        inside = at[self.pair_line]
        below[self.pair_stack[inside]] = self.pair_depth[inside]
        own = self._which(lambda one: is_own(one) and not is_ours(one))
        above = own[self.pair_function] & (self.pair_depth < below[self.pair_stack])
        return self._nearest_line(above, chosen)

    def _spread(self, row: Ints, stack: Ints, weight: Floats, rows: int) -> Floats:
        """The weight of the rows' stacks, `[row, function]`, counted for every function in them."""
        order = np.argsort(self.pair_stack, kind="stable")
        begins = np.searchsorted(self.pair_stack[order], np.arange(self.stacks + 1))
        many = np.diff(begins)[stack]
        function = self.pair_function[order][ranges(begins[stack], many)]
        cell = np.repeat(row, many) * len(self.functions) + function
        total = stats.sums(cell, np.repeat(weight, many), rows * len(self.functions))
        return total.reshape(rows, len(self.functions))

    def working(self, chosen: Mask) -> tuple[Floats, float]:
        """`shares` without the time in which ranks waited for one another or for a device.

        Otherwise a function that merely waits at its end would seem to cause a rise.
        """
        return self._shares(chosen, ~self._waiting)

    def worked(self, chosen: Mask) -> float:
        """The share of the chosen time in which ranks did not wait for one another or a device."""
        weight = self.weight[chosen]
        busy = np.where(self._waiting[self.code[chosen]], 0.0, weight)
        return float(busy.sum() / max(weight.sum(), 1.0))

    def of_ranks(self, function: int, chosen: Mask) -> Floats:
        """The share of the chosen time that each row works in a function."""
        works = (self._holding(self.pair_function == function) & ~self._waiting)[self.code[chosen]]
        row, weight = self.row[chosen], self.weight[chosen]
        whole = stats.sums(row, weight, 0)
        inside = stats.sums(row, np.where(works, weight, 0.0), 0)
        return np.where(whole > 0, inside / np.maximum(whole, 1.0), np.nan)

    def _shares(self, chosen: Mask, stacks: Mask | np.bool_) -> tuple[Floats, float]:
        weight = self._weights(chosen)
        whole = float(weight.sum())
        return self._inside(np.where(stacks, weight, 0.0)) / max(whole, 1.0), whole

    def within(self, wanted: Callable[[str], bool]) -> Mask:
        """Which samples have a wanted function on their stack."""
        return self._holding(self._which(wanted)[self.pair_function])[self.code]

    def end_in(self, wanted: Callable[[str], bool]) -> Mask:
        """Which samples have a wanted function innermost."""
        return np.asarray(self._which(wanted)[self._innermost][self.code])

    def part(self, inside: Mask, chosen: Mask) -> float:
        """The part of the chosen time that is inside."""
        weight = self.weight[chosen]
        return float(weight[inside[chosen]].sum() / max(weight.sum(), 1.0))

    def users_caller(self, called: Callable[[str], bool], chosen: Mask) -> str:
        """The frame of the user's own code, outside of any such function, that calls it for most of
        the chosen time; empty if there is none."""
        at = self._which(called)[self.pair_function]
        outer = np.full(self.stacks, np.iinfo(np.int64).max)
        np.minimum.at(outer, self.pair_stack[at], self.pair_depth[at])
        own = self._which(is_theirs)
        pairs = own[self.pair_function] & (self.pair_depth < outer[self.pair_stack])
        return self._nearest_line(pairs, chosen)

    def users_within(self, calling: Callable[[str], bool], chosen: Mask) -> str:
        """The line of the user's innermost function that such functions call, if it takes most of
        their chosen time; empty if there is none, or too few samples."""
        at = self._which(calling)[self.pair_function]
        outer = np.full(self.stacks, np.iinfo(np.int64).max)
        np.minimum.at(outer, self.pair_stack[at], self.pair_depth[at])
        weight = np.where(outer < np.iinfo(np.int64).max, self._weights(chosen), 0.0)
        own = self._which(is_theirs)[self.pair_function]
        inside = np.flatnonzero(own & (self.pair_depth > outer[self.pair_stack]))
        spent = stats.sums(self.pair_function[inside], weight[self.pair_stack[inside]],
                           len(self.functions))  # fmt: skip
        if weight.sum() < self.least_ns or spent.max() < HALF * weight.sum():
            return ""
        carrying = np.flatnonzero(spent >= CARRIES * spent.max())
        return self.line_of(int(carrying[np.argmax(self.depth[carrying])]), chosen)

    def _nearest_line(self, pairs: Mask, chosen: Mask) -> str:
        """The line that has most of the chosen time, of the innermost of these pairs of each stack;
        empty if there is none."""
        nearest = np.full(self.stacks, -1)
        np.maximum.at(nearest, self.pair_stack[pairs], self.pair_depth[pairs])
        pairs = pairs & (self.pair_depth == nearest[self.pair_stack])
        weight = self._weights(chosen)
        lines = stats.sums(self.pair_line[pairs], weight[self.pair_stack[pairs]], 0)
        return self.lines[int(np.argmax(lines))] if lines.any() else ""

    def _weights(self, chosen: Mask) -> Floats:
        """The chosen time of each stack."""
        return stats.sums(self.code[chosen], self.weight[chosen], self.stacks)

    def _which(self, wanted: Callable[[str], bool]) -> Mask:
        """Which functions are wanted, by their names."""
        return np.array([wanted(name) for name in self.functions], np.bool_)

    def _holding(self, pairs: Mask) -> Mask:
        """Which stacks contain any of the chosen pairs of stack and function."""
        holds = np.zeros(self.stacks, np.bool_)
        holds[self.pair_stack[pairs]] = True
        return holds

    def _inside(self, weight: Floats) -> Floats:
        """The total weight of the stacks that contain each function."""
        return stats.sums(self.pair_function, weight[self.pair_stack], len(self.functions))

    @cached_property
    def interval_ns(self) -> float:
        """The mean time between samples, by the length of short runs: at most that of py-spy."""
        short = float(np.quantile(self.weight, SHORT)) if self.weight.size else SAMPLE_NS
        mean = short / -np.log1p(-SHORT) if self.at_random else short
        return float(np.clip(mean, TRACED_NS, SAMPLE_NS))

    @cached_property
    def at_random(self) -> bool:
        """Whether samples were taken at random times, as py-spy does, so that each is independent
        of the one before. Profilers sample regularly: their short runs are equally long."""
        if not self.weight.size:
            return True
        shorter, short = np.quantile(self.weight, (SHORT / 2, SHORT))
        return bool(shorter < EQUALLY_LONG * short)

    @property
    def are_dense(self) -> bool:
        """Whether samples follow each other so closely that those of a step are not independent."""
        return not self.at_random and self.interval_ns < SAMPLE_NS

    @property
    def least_ns(self) -> float:
        """The time for which a rank must have been sampled."""
        return LEAST_SAMPLES * self.interval_ns

    @property
    def shows_modules(self) -> bool:
        """Whether stacks show the framework's modules, so that other code is the user's own."""
        return any(MODULES in name for name in self.functions)

    @cached_property
    def beside_training(self) -> Mask:
        """Stacks in which no function belongs to a training step."""
        trains = self._which(lambda name: any(path in name for path in TRAINING))
        return ~self._holding(trains[self.pair_function])

    @cached_property
    def in_loop(self) -> Mask:
        """Samples beside training that end in a function that contains the training: its loop."""
        weight = stats.sums(self.code, self.weight, self.stacks)
        training = np.where(self.beside_training, 0.0, weight)
        loops = self._inside(training) >= HALF * max(float(training.sum()), 1.0)
        return np.asarray((self.beside_training & loops[self._innermost])[self.code])

    def is_beside_training(self, frame: str, chosen: Mask) -> bool:
        """Whether most of the chosen samples in a function are of the user's own code."""
        names = np.array([function_of(line) == function_of(frame) for line in self.lines])
        inside = self._holding(names[self.pair_line])
        weight = np.where(inside[self.code[chosen]], self.weight[chosen], 0.0)
        own = weight[self.beside_training[self.code[chosen]]].sum()
        return self.shows_modules and bool(2 * own > weight.sum())

    @cached_property
    def _waiting(self) -> Mask:
        """Stacks whose innermost function waits for ranks or devices; not those in data loaders."""
        loading = self._which(lambda name: LOADER in name)[self.pair_function]
        return np.asarray(self._which(waits)[self._innermost] & ~self._holding(loading))

    @cached_property
    def _innermost(self) -> Ints:
        """The innermost function of each stack."""
        found = np.empty(self.stacks, np.int64)
        order = np.argsort(self.pair_depth, kind="stable")
        found[self.pair_stack[order]] = self.pair_function[order]
        return found

    @cached_property
    def depth(self) -> Floats:
        """Mean depth of each function in the stacks that contain it."""
        count = np.bincount(self.pair_function, minlength=len(self.functions))
        total = np.bincount(self.pair_function, weights=self.pair_depth, minlength=count.size)
        return np.asarray(total / np.maximum(count, 1))

    def deepest(self, gain: Floats, itself: Floats | None = None) -> int | None:
        """The innermost function with most of the largest gain, except functions that wait, and
        stepscope's own. Where that is a function in C that the user calls, such as a sleep, its
        caller is the one to look at.

        Args:
            itself: the gain of the time that ends in each function. Where one has most of the
                largest gain so, none is further in: functions that are nested in themselves, as
                modules are, seem to be.
        """
        allowed = self._which(lambda name: not (waits(name) or is_ours(name)))
        gain = np.where(allowed, gain, -np.inf)
        if not gain.size or gain.max() <= 0:
            return None
        carrying = np.flatnonzero(gain >= CARRIES * gain.max())
        at = int(carrying[np.argmax(self.depth[carrying])])
        if itself is not None and itself[carrying].max() >= CARRIES * gain.max():
            at = int(carrying[np.argmax(itself[carrying])])
        placed = carrying[[not self.functions[one].startswith(BUILT_IN) for one in carrying]]
        if not self.functions[at].startswith(BUILT_IN) or not placed.size:
            return at
        caller = int(placed[np.argmax(self.depth[placed])])
        return caller if is_users(self.functions[caller]) else at

    def users_own(self, function: int, now: Floats, peers: Floats, least: float) -> int:
        """The user's function to look at instead of one that peers run as well: one that they do
        not run, and that takes at least this share more; the innermost of them, or else the same.

        `Linear.forward` runs everywhere: that it takes longer does not say what calls it more.
        """
        if is_librarys(self.functions[function]) or peers[function] <= ABSENT * now[function]:
            return function
        only_here = self._which(is_theirs) & (now - peers >= least) & (peers <= ABSENT * now)
        found = np.flatnonzero(only_here)
        return int(found[np.argmax(self.depth[found])]) if found.size else function


def slower_than_peers(
    samples: Samples, row: int, peers: list[int], span: Mask, excess: float
) -> SlowFunction | None:
    """The function that takes more time on one rank than on the median of its peers.

    More than the excess explains nothing more: peers that wait are in none of its callers, either.

    Args:
        excess: the share of the rank's time that is to be explained.
    """
    own = span & (samples.row == row)
    own_shares, total = samples.shares(own)
    if total < samples.least_ns:
        return None
    rows = np.array(peers, np.int64)
    others, time_ns = samples.shares_of(rows, span)
    known = time_ns >= samples.least_ns
    if not known.any():
        return None
    within = own_shares, np.median(others[known], axis=0)
    itself = (
        samples.own_shares_of(np.array([row]), span)[0],
        np.median(samples.own_shares_of(rows[known], span), axis=0),
    )
    gains = [now - before for now, before in (within, itself)]
    at = samples.deepest(np.minimum(np.maximum(*gains), max(excess, LEAST_SHARE)), gains[1])
    least = max(LEAST_SHARE, HALF * excess)
    if at is None or max(gain[at] for gain in gains) < least:
        return None
    ever = np.median(samples.shares_of(rows, np.ones(len(span), np.bool_))[0], axis=0)
    at = samples.users_own(at, within[0], np.maximum(within[1], ever), least)
    alone = bool(gains[1][at] > gains[0][at])
    now, before = itself if alone else within
    frame = samples.line_of(at, own, alone)
    apart = _apart(samples, at, own, span & np.isin(samples.row, rows[known]))
    return SlowFunction(
        frame, float(now[at]), float(before[at]), 1.0, alone, samples.caller_of(frame, own),
        apart / max(excess, LEAST_SHARE),
    )  # fmt: skip


def _apart(samples: Samples, function: int, own: Mask, peers: Mask) -> float:
    """The share of a rank's time in a function beyond its part of as much work of its peers.

    A rank that gets less of its processor needs longer for all that it does; one that does more,
    for what its peers do not.
    """
    worked, weight = samples.worked(peers), samples.working(own)[0][function]
    if worked * float(samples.weight[peers].sum()) < samples.least_ns:
        return 0.0
    usual = samples.working(peers)[0][function] / worked
    return float(weight - usual * samples.worked(own))


def slower_than_before(
    samples: Samples, split_ns: int, before_ns: float, after_ns: float
) -> SlowFunction | None:
    """The function that causes a rise of the step time on all ranks, if one stands out."""
    late = samples.time_ns >= split_ns
    early_share, early_ns = samples.working(~late)
    late_share, late_ns = samples.working(late)
    rise = after_ns - before_ns
    if late_ns < LEAST_NS or rise <= 0:
        return None
    ranks = max(np.unique(samples.row).size, 1) * SAMPLE_NS
    early_share, early_spread = _smoothed(early_share, early_ns / ranks)
    late_share, late_spread = _smoothed(late_share, late_ns / ranks)
    growth = (late_share * after_ns - early_share * before_ns) / rise
    spread = late_spread * after_ns**2 + early_spread * before_ns**2
    error = np.sqrt(spread) / rise
    growth = np.where(growth - early_share >= STANDS_OUT + SURE_SIGMAS * error, growth, 0.0)
    at = samples.deepest(growth)
    if at is None or late_share[at] - early_share[at] < LEAST_SHARE:
        return None
    now, before = float(late_share[at]), float(early_share[at])
    shares = samples.of_ranks(at, late)
    if (shares[np.isfinite(shares)] >= (now + before) / 2).mean() < MOST_RANKS:
        return None
    frame = samples.line_of(at, late)
    caller = samples.caller_of(frame, late)
    return SlowFunction(frame, now, before, float(growth[at]), caller=caller)


def _smoothed(share: Floats, samples: float) -> tuple[Floats, Floats]:
    """A share and its variance from a number of samples, by Laplace's rule: one half without any.

    Ranks that run in step count as one sample. So few samples before a change give a wide error,
    which is still enough if the steps became many times longer.
    """
    smooth = (share * samples + 1) / (samples + 2)
    return smooth, smooth * (1 - smooth) / (samples + 3)

"""Functions that a rank spends more of its steps in than its peers do, by behaviour patterns.

Fault: a few ranks that execute one function longer than all others: slower devices, a slow file,
a lock, more work.
Paper: EROICA (2026), section 4.3, "differential distance"; as printed it is `published.eroica`.
What differs: the paper flags a rank by how many sampled peers are unlike it in three normalised
coordinates. A worker with a glitch rescales all, tight data has a MAD of 0, and a rank that waits
is as unlike as the one it waits for (algorithm notes, section 4). Here each coordinate is compared
by itself: the logarithm of the share against the median of ranks with the same role, over noise
pooled from all functions, with effect floors and a limit for the number of comparisons. Only a
rank's own work counts, and only if it works more altogether: what it does instead of something
else delays nobody.
Cost: a few passes over the grid of functions and ranks.
Cannot see: ranks without peers; what all ranks do alike (`common_patterns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import relative
from stepscope.diagnose.thresholds import FALSE_ALARMS, HALF
from stepscope.diagnose.views.patterns import LEAST_BETA, Function, Patterns
from stepscope.window import Floats, Ints

LEAST_EXCESS = 0.02
"""Share of the window above the peers' median: below two percent nobody would act. Our
simulator."""
NOISE = 0.03
"""Relative noise of a share, at least: a window has some twenty steps. Our choice."""
COUNTS = 0.02
"""Functions with this share of the window say how much shares scatter. Our choice."""
LOWER = 0.95
"""Of the peers' use of the resource: as `explain.gpu.LOW`. Our simulator."""
MANY = 16_384
"""Ranks that are enough for a median. Statistics: its error is 1.25 / sqrt(n) of the scatter."""
ALMOST_ALL = 0.9
"""Part of the excess of calls that explains the excess of time: more work, not slower work. Our
choice."""
LONGER = 10.0
"""Times as long as usual that further runs of a kernel may be: the output layer of Llama 3 (8B) is
nine times as large as a layer of its MLP. Grattafiori et al., 2024, table 3."""


@dataclass(frozen=True)
class Odd:
    """One function that one rank spends more of its time in than its peers."""

    row: int
    function: int
    beta: float
    usual: float
    """The median of its peers."""
    z: float
    needed: float
    whole: float
    """By how much the rank works more than its peers altogether, as a share of the window."""

    @property
    def excess(self) -> float:
        return self.beta - self.usual


def odd_functions(patterns: Patterns, groups: Sequence[Ints], windows: int = 1) -> list[Odd]:
    """All functions of own work in which single ranks spend more time.

    Args:
        groups: rows of ranks with the same role.
        windows: how many are looked at, for the number of comparisons.
    """
    work = np.array([at for at, one in enumerate(patterns.functions)
                     if one.trains and not one.waits], np.int64)  # fmt: skip
    found: list[Odd] = []
    if not work.size:
        return found
    for group in groups:
        rows = group[np.isin(group, patterns.rows)]
        if rows.size > 1:
            found += _among(patterns, work, rows, windows)
    return found


def _among(patterns: Patterns, work: Ints, rows: Ints, windows: int) -> list[Odd]:
    beta = patterns.beta[np.ix_(work, rows)]
    usual = medians_of_others(beta)
    logs = np.log((beta + LEAST_BETA) / (usual + LEAST_BETA))
    noise, samples = _noise(_sampled(logs), _sampled(usual))
    z = logs / noise[:, None]
    needed = stats.threshold(
        FALSE_ALARMS, windows * beta.size, int(stats.MAD_EFFICIENCY * samples)
    )  # fmt: skip
    own = patterns.own[rows]
    whole = own - medians_of_others(own[None])[0]
    excess = beta - usual
    odd = (z > needed) & (excess >= LEAST_EXCESS) & (whole >= HALF * excess)
    odd &= _of_callers(patterns, work, rows) >= HALF * excess
    return [
        Odd(int(rows[at]), int(work[one]), float(beta[one, at]), float(usual[one, at]),
            float(z[one, at]), needed, float(whole[at]))
        for one, at in np.argwhere(odd)
    ]  # fmt: skip


def _of_callers(patterns: Patterns, work: Ints, rows: Ints) -> Floats:
    """The excess of everything that the same line of the user's code calls, `[function, rank]`.

    A profiler may see `open` on one rank where it sees what `open` calls on another.
    """
    where = [(one.caller, one.kind) if one.caller and one.kind == "python" else (str(at), "")
             for at, one in ((at, patterns.functions[at]) for at in work.tolist())]  # fmt: skip
    places = {place: number for number, place in enumerate(dict.fromkeys(where))}
    of = np.array([places[place] for place in where], np.int64)
    together = np.zeros((len(places), rows.size))
    np.add.at(together, of, patterns.beta[np.ix_(work, rows)])
    return np.asarray((together - medians_of_others(together))[of])


def medians_of_others(values: Floats) -> Floats:
    """Of `[function, rank]`, the median of the other ranks; of very many, of a sample of all."""
    if values.shape[1] > MANY:
        middle = stats.row_medians(_sampled(values))
        return np.broadcast_to(middle[:, None], values.shape)
    return np.ascontiguousarray(stats.leave_one_out_median(np.ascontiguousarray(values.T)).T)


def _sampled(values: Floats) -> Floats:
    """A sample of ranks, evenly spread: their median is exact to a hundredth of the scatter."""
    return values[:, :: max(values.shape[1] // MANY, 1)]


def _noise(logs: Floats, usual: Floats) -> tuple[Floats, int]:
    """The scatter of each function, at least that of all together, and how many values show it."""
    each = stats.MAD_TO_SIGMA * stats.row_medians(np.abs(logs))
    shown = logs[stats.row_medians(usual) >= COUNTS]
    pooled = stats.MAD_TO_SIGMA * stats.median(np.abs(shown).ravel())
    return np.maximum(each, max(pooled, NOISE)), max(shown.size, logs.shape[1])


def does_more(patterns: Patterns, function: int, row: int, group: Ints) -> bool:
    """Whether it has more to do: it calls the function so much more often that this explains its
    time; or it runs a kernel more often, and further runs may be longer ones, as those of a
    pipeline's last stage are, while its device is no slower in what all ranks run as often."""
    calls = relative(patterns.calls[function], row, group)
    beta = relative(patterns.beta[function], row, group)
    if calls is None or beta is None or beta <= 1:
        return False
    if calls - 1 >= ALMOST_ALL * (beta - 1):
        return True
    is_kernel = patterns.functions[function].kind == "kernel"
    may_be = is_kernel and LONGER * (calls - 1) >= ALMOST_ALL * (beta - 1)
    return may_be and _is_no_slower(patterns, row, group)


def _is_no_slower(patterns: Patterns, row: int, group: Ints) -> bool:
    """Whether the kernels that all ranks run as often take a rank no longer than its peers."""
    calls = patterns.calls[:, group]
    alike = (calls == calls[:, :1]).all(axis=1) & (patterns.calls[:, row] == calls[:, 0])
    alike &= np.array([one.kind == "kernel" and not one.waits for one in patterns.functions])
    ran = relative(patterns.beta[alike].sum(axis=0), row, group)
    return ran is not None and ran * LOWER <= 1


def named(function: Function) -> str:
    """A function as text: with its thread, and where the user's code calls it."""
    text = function.frame
    if function.thread:
        text += f" in thread {function.thread}"
    if function.caller and function.caller.split(" ")[0] not in (function.location, ""):
        text += f", called at {function.caller}"
    return text

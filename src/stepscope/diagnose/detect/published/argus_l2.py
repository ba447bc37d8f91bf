"""ARGUS level 2 as published: coefficient of variation and z-scores of phase durations.

Fault: ranks that are slow in one phase.
Paper: ARGUS (2026), section 6.1 and appendix B, "L2". Symbols: G -> a comparison group, x_r -> mean
duration of rank r, mu_G, sigma_G, CV, z_r as there.
Runs by `--method argus-l2-published` only. z <= (n-1)/sqrt(n) never reaches 3 in groups of up to
ten ranks, CV shrinks with 1/sqrt(n), and durations contain waiting, so that victims are named
(algorithm notes, section 4). The default is `detect.straggler`.
Cost: one pass over `phases`, and linear in ranks and phases.
Cannot see: stragglers in groups of ten ranks or fewer; whether a rank only waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import compiled, stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE
from stepscope.window import Floats, Ints

Singles = NDArray[np.float32]

SEVERE = 0.05
"""CV from which appendix B calls the imbalance of a group severe. Paper."""
PUBLISHED_Z = 3.0
"""The paper leaves the threshold open; the usual three. Statistics."""


class ArgusL2Published:
    """Ranks with z > 3 in a phase whose group is severely imbalanced, as ARGUS publishes it."""

    name = "argus-l2-published"
    needs = Needs("phases", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        names, mean_ns = phase_means(job)
        groups = job.groups(None)
        cv, z = imbalances(mean_ns.astype(np.float32), groups)
        member = np.full(len(job.line.ranks), -1)
        for at, group in enumerate(groups):
            member[group] = at
        severe = (cv >= SEVERE)[:, member] & (member >= 0)
        worst = np.where(severe, z, 0.0)
        for row in np.flatnonzero((worst > PUBLISHED_Z).any(axis=0)).tolist():
            phase = int(np.argmax(worst[:, row]))
            usual = float(np.mean(mean_ns[phase, groups[member[row]]]))
            slowdown = float(mean_ns[phase, row]) / max(usual, 1.0)
            yield self._of_rank(job, row, names[phase], float(worst[phase, row]), slowdown)

    def _of_rank(self, job: Observed, row: int, phase: str, z: float, slowdown: float) -> Slowdown:
        detail = f"z {z:.1f} in {phase} ({PUBLISHED_Z:.0f} is needed); its group has a CV above 5 %"
        span = (job.line.warm_up, len(job.line.steps))
        return Slowdown(
            self.name, "unknown", detail, (int(job.line.ranks[row]),), phase=phase,
            steps=job.line.span(*span), time_ns=job.line.span_ns(*span), slowdown=slowdown,
            score=SCORE, values={"z": z},
            decisions=(Decision(self.name, True, z, PUBLISHED_Z, detail),),
        )  # fmt: skip


def phase_means(job: Observed) -> tuple[list[str], Floats]:
    """Mean duration per step of every phase on every rank, `[phase, rank]`; 0 where it has none."""
    table = job.window.tables["phases"]
    names = table.strings("phase")
    row, column = job.line.places(table)
    keep = (row >= 0) & (column >= job.line.warm_up) & (names.codes >= 0)
    shape = (len(names.values), len(job.line.ranks))
    cell = (names.codes * shape[1] + row)[keep]
    total = stats.sums(cell, table.floats("duration_ns")[keep], shape[0] * shape[1])
    steps = max(len(job.line.steps) - job.line.warm_up, 1)
    return list(names.values), total.reshape(shape) / steps


def imbalances(mean_ns: Singles, groups: Sequence[Ints]) -> tuple[Singles, Singles]:
    """Appendix B for many phases and windows at once: CV of groups, z of ranks.

    Args:
        mean_ns: [phases and windows, ranks], rounded to float32; all are known.
        groups: ranks that do equal work; those of none get z = 0.

    Returns [phases and windows, groups] and [phases and windows, ranks].
    """
    if not groups or not mean_ns.size:
        return np.zeros((len(mean_ns), len(groups)), np.float32), np.zeros_like(mean_ns)
    if compiled.imbalances is None:
        return imbalances_by_group(mean_ns, groups)
    order = np.concatenate(groups).astype(np.uint32)
    bounds = np.cumsum([0, *map(len, groups)], dtype=np.uint32)
    values = mean_ns.astype(np.float32, copy=False)
    cv, z = compiled.imbalances(
        values.tobytes(), values.shape[1], order.tobytes(), bounds.tobytes()
    )
    return (np.frombuffer(cv, np.float32).reshape(len(values), len(groups)),
            np.frombuffer(z, np.float32).reshape(values.shape))  # fmt: skip


def imbalances_by_group(mean_ns: Singles, groups: Sequence[Ints]) -> tuple[Singles, Singles]:
    """The same in numpy."""
    cv, z = np.zeros((len(mean_ns), len(groups))), np.zeros(mean_ns.shape)
    for at, group in enumerate(groups):
        values = mean_ns[:, group].astype(np.float64)
        mean = values.mean(axis=1, keepdims=True)
        deviation = values.std(axis=1, ddof=1, keepdims=True) if len(group) > 1 else 0.0 * mean
        cv[:, at] = np.divide(deviation, mean, out=np.zeros_like(mean), where=mean > 0)[:, 0]
        z[:, group] = np.divide(
            values - mean, deviation, out=np.zeros_like(values), where=deviation > 0
        )
    return cv.astype(np.float32), z.astype(np.float32)

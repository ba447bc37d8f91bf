"""Whether a suspect's GPU runs at a lower clock than its peers', is shared, or counts errors.

Fault: a GPU that heat or power holds down, or on which other processes compute as well: its kernels
are slow and its work is equal.
Paper: ARGUS (2026), table 6, leaves the clock to people; section 9.5 warns that counters mislead.
EROICA (2026), appendix B: an idle model's collectives took multiprocessors; people looked for it.
What differs: counters never accuse a rank. They only distinguish slow work from more work on a rank
that is slow.
Cost: means over a range. Cannot see: a bad chip at its full clock; clocks that nobody reads; other
processes in containers, which the driver does not name to us.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.ranks.odd_gauges import LOW
from stepscope.diagnose.explain.cpu import of_host, processor_evidence
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import relative
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.words.numbers import percent

JUST_THEN = 2.0
"""Times as often as in all steps: errors that a device counts all the time explain no slow steps.
Our simulator."""


def relative_clock(job: Observed, row: int, first: int, stop: int) -> float | None:
    """The mean clock of one rank's device over all others'; None where it was not read."""
    clocks = job.hardware("sm_clock_mhz", first, stop)
    return relative(clocks, row, np.arange(clocks.size))


def other_processes(job: Observed, row: int, first: int, stop: int) -> float:
    """The number of processes outside the job on a rank's device, beyond that on its peers'.

    A monitor that computes on each device does not count: it slows all of them alike.
    """
    counts = job.hardware("gpu_strangers", first, stop)
    if not np.isfinite(counts[row]):
        return 0.0
    return float(counts[row]) - stats.median(np.delete(counts, row))


def is_low(ratio: float | None) -> bool:
    """Whether a device is known to run below its peers."""
    return ratio is not None and ratio < LOW


def clock_of_past(job: Observed, suspect: Suspect) -> float | None:
    """The mean clock of a device over what it was before the suspect became slow."""
    spans = (suspect.first, suspect.stop), (job.line.warm_up, suspect.first)
    now, before = (float(job.hardware("sm_clock_mhz", *one)[suspect.row]) for one in spans)
    return now / before if np.isfinite(now) and before > 0 else None


class LowClock:
    """A GPU that runs at a lower clock than its peers' GPUs; without peers, than it did before."""

    name = "gpu-clock"
    causes: tuple[Cause, ...] = ("compute",)
    needs = Needs("hardware:sm_clock_mhz")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        alone = len(job.line.ranks) == 1
        speed = (clock_of_past(job, suspect) if alone
                 else relative_clock(job, suspect.row, suspect.first, suspect.stop))  # fmt: skip
        if speed is None or not is_low(speed) or of_host(job, suspect):
            return None
        held = job.hardware("clock_held_down", suspect.first, suspect.stop)[suspect.row]
        evidence = (_clock(speed, float(held)), *processor_evidence(job, suspect))
        return Explained("compute", "measured", evidence, proven=True)


class SharedGpu:
    """Processes outside the job that compute on this rank's GPU, and not on its peers'."""

    name = "shared-gpu"
    causes: tuple[Cause, ...] = ("contention",)
    needs = Needs("hardware:gpu_strangers", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        processes = other_processes(job, suspect.row, suspect.first, suspect.stop)
        if processes <= 0 or of_host(job, suspect):
            return None
        detail = "other processes compute on its device, and fewer or none on its peers'"
        on_device = Evidence(self.name, detail, {"gpu_strangers": processes})
        evidence = (on_device, *processor_evidence(job, suspect))
        return Explained("contention", "measured", evidence, proven=True, of_gpu=True)


class GpuErrors:
    """A GPU that counts errors in just the steps in which its rank is slow."""

    name = "gpu-errors"
    causes: tuple[Cause, ...] = ("compute",)
    needs = Needs("hardware")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        counted = _errors(job, suspect)
        if counted is None or of_host(job, suspect):
            return None
        evidence = (counted, *processor_evidence(job, suspect))
        return Explained("compute", "measured", evidence, proven=True)


def _clock(speed: float, held_down: float) -> Evidence:
    """Evidence about the clock. `held_down`: share of the time in which heat or power limited the
    clock; NaN if unknown."""
    detail = f"its device runs at {percent(speed)} of its peers' clock"
    if held_down > 0:
        detail += f", held down by heat or the power supply {percent(held_down)} of the time"
    return Evidence(LowClock.name, detail, {"clock": speed})


def _errors(job: Observed, suspect: Suspect) -> Evidence | None:
    """Evidence that its device counts errors in just these steps."""
    counted = job.errors[suspect.row]
    during, always = float(counted[suspect.columns].mean()), float(counted.mean())
    if during == 0 or during < JUST_THEN * always:
        return None
    detail = (
        f"its device counts errors in {percent(during)} of these steps, and in "
        f"{percent(always)} of all steps"
    )
    return Evidence(GpuErrors.name, detail, {"during": during, "always": always})

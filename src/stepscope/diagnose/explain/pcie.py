"""A suspect whose PCIe link has lost lanes or speed: evidence, and the cause if nothing else fits.

Fault: a PCIe link that was trained at fewer lanes or a lower speed than its peers'.
Paper: ARGUS (2026), table 6, "PCIe bandwidth degradation", by copies that take longer.
What differs: the trained speed is read. It is the cause only where no copies were recorded and no
kernel is slower, because recorded copies show by themselves whether they are slow.
Cost: means over a range. Cannot see: a link that is slow at its full width and speed.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.explain.cpu import processor_evidence
from stepscope.diagnose.explain.kernels import slow_kernels
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.network.counters import LOST
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.breakdown import is_copying
from stepscope.window import Floats

METRIC = "pcie_link_gb_per_s"
KERNELS = ("kernels", "kernel_summaries")


class SlowPcieLink:
    """A PCIe link that runs with fewer lanes, or at a lower speed, than its peers' links."""

    name = "pcie"
    causes: tuple[Cause, ...] = ("memory_copy",)
    needs = Needs(f"hardware:{METRIC}", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        link = _speed_of_links(job, suspect)
        own, usual = float(link[suspect.row]), stats.median(np.delete(link, suspect.row))
        if not (np.isfinite(own) and own < LOST * usual):
            return None
        detail = f"its PCIe link runs at {own:.1f} GB/s, its peers' at {usual:.1f}"
        evidence = (Evidence("pcie", detail, {"link": own, "peers": usual}),)
        known = _records_copies(job) or slow_kernels(job, suspect) is not None
        cause: Cause | None = None if known else "memory_copy"
        context = processor_evidence(job, suspect)
        return Explained(cause, "inferred", evidence, context=context, always=True)


def _speed_of_links(job: Observed, suspect: Suspect) -> Floats:
    """Each rank's link while the suspect was slow; of those not sampled then, at other times: what
    a link was trained at stays, and some collectors read it every few minutes."""
    meanwhile = job.hardware(METRIC, suspect.first, suspect.stop)
    ever = job.hardware(METRIC, 0, len(job.line.steps))
    return np.where(np.isfinite(meanwhile), meanwhile, ever)


def _records_copies(job: Observed) -> bool:
    """Whether copies were recorded, which show by themselves whether they are slow."""
    tables = (job.window.table(name) for name in KERNELS)
    return any(is_copying(kernel) for table in tables if table is not None
               for kernel in table.strings("kernel").values)  # fmt: skip

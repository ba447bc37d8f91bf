"""A culprit whose link to its host has lost lanes or speed: evidence, and the cause if all fits.

Paper: ARGUS (2026), table 6, "PCIe bandwidth degradation", by copies that take longer (`l3`). Where
nobody recorded copies, a link that was trained at less than its peers' says as much of a rank that
is slow for no reason that was measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.explain.reason import Reason
from stepscope.diagnose.finding import Evidence
from stepscope.diagnose.network.counters import LOST
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.breakdown import is_copying

METRIC = "pcie_link_gb_per_s"
OPEN = ("compute", "host", "unknown")
"""Causes that may follow from elimination."""
KERNELS = ("kernels", "kernel_summaries")


def with_link(job: Observed, one: Suspect, reason: Reason) -> Reason:
    """The reason with what is known of the culprit's link, if that is slower than its peers'."""
    link = job.hardware(METRIC, one.first, one.stop)
    mine, usual = float(link[one.row]), stats.median(np.delete(link, one.row))
    if not (np.isfinite(mine) and mine < LOST * usual):
        return reason
    detail = f"its link to the host carries {mine:.1f} GB/s, its peers' {usual:.1f}"
    evidence = (*reason.evidence, Evidence("pcie", detail, {"link": mine, "peers": usual}))
    known = reason.proven or reason.function is not None or reason.kernels
    if not known and reason.cause in OPEN and not _records_copies(job):
        return replace(reason, cause="memory_copy", evidence=evidence)
    return replace(reason, evidence=evidence)


def _records_copies(job: Observed) -> bool:
    """Whether copies were recorded: then they tell themselves whether they are slow."""
    tables = (job.window.table(name) for name in KERNELS)
    return any(is_copying(kernel) for table in tables if table is not None
               for kernel in table.strings("kernel").values)  # fmt: skip

"""The methods of diagnosis: who finds, and who explains, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.decide.by_kernels import (
    KernelStalls,
    KernelStragglers,
    SlowGroupKernels,
)
from stepscope.diagnose.detect.desync import Desync
from stepscope.diagnose.detect.gc_turns import GcTurns
from stepscope.diagnose.detect.hang import Hang
from stepscope.diagnose.detect.mismatch import Mismatch
from stepscope.diagnose.detect.network import SlowGroups, SlowLinks
from stepscope.diagnose.detect.regression.shared import SharedRegression
from stepscope.diagnose.detect.straggler_ranks import BriefStragglers, GcStorms, Stragglers
from stepscope.diagnose.detect.transient_ranks import Transients
from stepscope.diagnose.detect.unsteady import StepTimes
from stepscope.diagnose.explain.cpu import StarvedProcessor
from stepscope.diagnose.explain.elimination import Elimination
from stepscope.diagnose.explain.function import Compilation, SlowFunction
from stepscope.diagnose.explain.gc_pauses import GcPauses
from stepscope.diagnose.explain.gpu import GpuErrors, LowClock, SharedGpu
from stepscope.diagnose.explain.idle import IdleFunction
from stepscope.diagnose.explain.kernels import SlowCopies, SlowKernels
from stepscope.diagnose.explain.pcie import SlowPcieLink
from stepscope.diagnose.explain.tokens import MoreTokens
from stepscope.diagnose.explain.trace import SlowTrace
from stepscope.diagnose.method import Detector, Explanation
from stepscope.errors import UsageError

STUCK: tuple[Detector, ...] = (Desync(), Mismatch(), Hang())
STEP_TIMES: tuple[Detector, ...] = (StepTimes(),)
SLOW_RANKS: tuple[Detector, ...] = (Stragglers(), BriefStragglers(), Transients(), GcStorms())
SLOW_NETWORK: tuple[Detector, ...] = (SlowGroups(), SlowLinks())
SLOW_KERNELS: tuple[Detector, ...] = (KernelStragglers(), KernelStalls(), SlowGroupKernels())
EVERYONE: tuple[Detector, ...] = (SharedRegression(), GcTurns())

DETECTORS: tuple[Detector, ...] = (
    *STUCK,
    *STEP_TIMES,
    *SLOW_RANKS,
    *SLOW_NETWORK,
    *SLOW_KERNELS,
    *EVERYONE,
)

BY_STEPS = (*STEP_TIMES, *SLOW_RANKS, *SLOW_NETWORK, *EVERYONE)
"""Those that compare steps: a job without any has nothing for them."""

EXPLANATIONS: tuple[Explanation, ...] = (
    GcPauses(),
    SlowTrace(),
    StarvedProcessor(),
    LowClock(),
    SharedGpu(),
    GpuErrors(),
    MoreTokens(),
    Compilation(),
    SlowCopies(),
    SlowFunction(),
    SlowPcieLink(),
    IdleFunction(),
    Elimination(),
    SlowKernels(),
)


def chosen(names: Sequence[str]) -> tuple[Detector, ...]:
    """The detectors of these names; of none, all that run by default.

    Raises:
        UsageError: there is no such method.
    """
    if not names:
        return DETECTORS
    known = {one.name: one for one in DETECTORS}
    for name in names:
        if name not in known:
            raise UsageError(f"no method is called {name}; `stepscope methods` lists all")
    return tuple(known[name] for name in dict.fromkeys(names))


def explanations(names: Sequence[str]) -> tuple[Explanation, ...]:
    return EXPLANATIONS

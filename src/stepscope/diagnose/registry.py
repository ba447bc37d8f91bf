"""The methods of diagnosis: detectors and explanations, in the order in which they run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from stepscope.diagnose.decide.by_kernels import KernelStalls, KernelStragglers, SlowGroupKernels
from stepscope.diagnose.detect.hosts.busy_hosts import BusyHosts
from stepscope.diagnose.detect.hosts.busy_processors import BusyProcessors
from stepscope.diagnose.detect.hosts.quota_hosts import CrowdedHosts, QuotaHosts
from stepscope.diagnose.detect.hosts.slow_hosts import SlowHosts
from stepscope.diagnose.detect.hosts.stopped import Stopped
from stepscope.diagnose.detect.links.busiest_connections import BusiestConnections
from stepscope.diagnose.detect.links.network import SlowGroups, SlowLinks
from stepscope.diagnose.detect.links.slow_exchange import SlowExchange
from stepscope.diagnose.detect.links.slow_link_brief import BriefLinks
from stepscope.diagnose.detect.links.slow_transfers import SlowTransfers
from stepscope.diagnose.detect.profiled.behaviour import BehaviourPatterns
from stepscope.diagnose.detect.profiled.common_patterns import CommonPatterns
from stepscope.diagnose.detect.profiled.gil_holder import GilHolder
from stepscope.diagnose.detect.published.argus_l1 import ArgusL1Published
from stepscope.diagnose.detect.published.argus_l2 import ArgusL2Published
from stepscope.diagnose.detect.published.argus_l3 import ArgusL3Published
from stepscope.diagnose.detect.published.eroica import EroicaPublished
from stepscope.diagnose.detect.published.eroica_detect import EroicaDetectPublished
from stepscope.diagnose.detect.published.holmes import HolmesPublished
from stepscope.diagnose.detect.published.holmes_forest import HolmesForestPublished
from stepscope.diagnose.detect.published.kair import KairPublished
from stepscope.diagnose.detect.published.venustrace import VenusTracePublished
from stepscope.diagnose.detect.published.venustrace_passes import VenusTrace
from stepscope.diagnose.detect.ranks.gc_turns import GcTurns
from stepscope.diagnose.detect.ranks.in_turns import InTurns
from stepscope.diagnose.detect.ranks.late_alone import LateAlone
from stepscope.diagnose.detect.ranks.odd_gauges import OddGauges
from stepscope.diagnose.detect.ranks.shortest_waits import ShortestWaits
from stepscope.diagnose.detect.ranks.slow_units import SlowUnits
from stepscope.diagnose.detect.ranks.straggler_ranks import BriefStragglers, GcStorms, Stragglers
from stepscope.diagnose.detect.ranks.transient_ranks import Transients
from stepscope.diagnose.detect.recurrent.recurring_loss import RecurringLoss
from stepscope.diagnose.detect.recurrent.world_change import WorldChange
from stepscope.diagnose.detect.regression.own_past import OwnPast
from stepscope.diagnose.detect.regression.shared import SharedRegression
from stepscope.diagnose.detect.steps.two_levels import TwoLevels
from stepscope.diagnose.detect.steps.unsteady import StepTimes
from stepscope.diagnose.detect.stuck.desync import Desync
from stepscope.diagnose.detect.stuck.hang import Hang
from stepscope.diagnose.detect.stuck.mismatch import Mismatch
from stepscope.diagnose.detect.stuck.vanished import Vanished
from stepscope.diagnose.detect.waste.idle_devices import IdleDevices
from stepscope.diagnose.detect.waste.shared_loading import SharedLoading
from stepscope.diagnose.detect.waste.slow_loader import SlowLoader
from stepscope.diagnose.detect.waste.user_code import UserCode
from stepscope.diagnose.detect.work.imbalance import StageImbalance, UnequalWork
from stepscope.diagnose.explain.cpu import StarvedProcessor
from stepscope.diagnose.explain.elimination import Elimination
from stepscope.diagnose.explain.function import Collecting, Compilation, SlowerFunction
from stepscope.diagnose.explain.gc_pauses import GcPauses
from stepscope.diagnose.explain.gpu import GpuErrors, LowClock, SharedGpu
from stepscope.diagnose.explain.idle import IdleFunction
from stepscope.diagnose.explain.kernels import SlowCopies, SlowKernels
from stepscope.diagnose.explain.more_data import MoreData
from stepscope.diagnose.explain.pattern import PatternOfRank
from stepscope.diagnose.explain.pcie import SlowPcieLink
from stepscope.diagnose.explain.quota import CpuQuota
from stepscope.diagnose.explain.stopped import StoppedProcess
from stepscope.diagnose.explain.threads import OtherThread
from stepscope.diagnose.explain.tokens import MoreTokens
from stepscope.diagnose.explain.trace import SlowTrace
from stepscope.diagnose.method import Detector, Explanation
from stepscope.errors import UsageError

DEFAULT, GROUP = "default", "stepscope.methods"
"""All methods that run by default, and where other packages register theirs."""

_PAPER = re.compile(r"Papers?: (ARGUS|EROICA|Holmes|VenusTrace|KAIR|ByteDance)\b")
"""What a module's docstring says of the paper that its methods come from; `none` otherwise."""

STUCK: tuple[Detector, ...] = (Vanished(), Desync(), Mismatch(), Hang())
STEP_TIMES: tuple[Detector, ...] = (StepTimes(),)
SLOW_RANKS: tuple[Detector, ...] = (
    Stragglers(),
    BriefStragglers(),
    Transients(),
    GcStorms(),
    OwnPast(),
)
SLOW_NETWORK: tuple[Detector, ...] = (
    SlowGroups(),
    SlowLinks(),
    BusiestConnections(),
    BriefLinks(),
    SlowTransfers(),
    SlowExchange(),
)
SLOW_KERNELS: tuple[Detector, ...] = (
    KernelStragglers(),
    KernelStalls(),
    SlowGroupKernels(),
    SlowLoader(),
    BusyHosts(),
    ShortestWaits(),
    SlowUnits(),
    SlowHosts(),
    BehaviourPatterns(),
    Stopped(),
    QuotaHosts(),
    CrowdedHosts(),
)
STRUCTURE: tuple[Detector, ...] = (StageImbalance(), UnequalWork(), BusyProcessors())
EVERYONE: tuple[Detector, ...] = (
    SharedRegression(),
    GcTurns(),
)
WASTED: tuple[Detector, ...] = (SharedLoading(), UserCode())
PROFILED: tuple[Detector, ...] = (CommonPatterns(), GilHolder())
"""The same by profiled steps, which need not be recorded as steps."""
RECURRENT: tuple[Detector, ...] = (InTurns(), RecurringLoss(), WorldChange())
"""Time that a job loses again and again, whoever takes it and whatever the reason."""
GAUGES: tuple[Detector, ...] = (OddGauges(),)
"""What is asked where times accuse nobody."""
LATE: tuple[Detector, ...] = (LateAlone(),)
"""What is asked where neither times nor gauges accuse anybody."""
IDLE: tuple[Detector, ...] = (IdleDevices(),)
"""What is asked where nobody and nothing is accused."""
UNEXPLAINED: tuple[Detector, ...] = (TwoLevels(),)
"""What is asked where nothing else was found."""

DETECTORS: tuple[Detector, ...] = (
    *STUCK,
    *STEP_TIMES,
    *SLOW_RANKS,
    *SLOW_NETWORK,
    *SLOW_KERNELS,
    *STRUCTURE,
    *EVERYONE,
    *WASTED,
    *PROFILED,
    *RECURRENT,
    *GAUGES,
    *LATE,
    *IDLE,
    *UNEXPLAINED,
)

BY_STEPS = (
    *STEP_TIMES, *SLOW_RANKS, *SLOW_NETWORK, *STRUCTURE, *EVERYONE, *WASTED, *RECURRENT,
    *GAUGES, *LATE, *IDLE, *UNEXPLAINED,
)  # fmt: skip
"""Detectors that compare steps: they cannot run on a job without steps."""

PUBLISHED: tuple[Detector, ...] = (
    ArgusL1Published(),
    ArgusL2Published(),
    ArgusL3Published(),
    EroicaDetectPublished(),
    EroicaPublished(),
    HolmesPublished(),
    HolmesForestPublished(),
    VenusTrace(),
    VenusTracePublished(),
    KairPublished(),
)
"""Detectors that run only by name: the papers' rules as printed, and variants of the default."""

EXPLANATIONS: tuple[Explanation, ...] = (
    GcPauses(),
    StoppedProcess(),
    SlowTrace(),
    CpuQuota(),
    LowClock(),
    SharedGpu(),
    GpuErrors(),
    MoreTokens(),
    MoreData(),
    Collecting(),
    Compilation(),
    SlowCopies(),
    PatternOfRank(),
    OtherThread(),
    SlowerFunction(),
    StarvedProcessor(),
    SlowPcieLink(),
    IdleFunction(),
    Elimination(),
    SlowKernels(),
)


def chosen(names: Sequence[str]) -> tuple[Detector, ...]:
    """The detectors with these names; `default`, or no name, means all that run by default.

    Raises:
        UsageError: there is no such method.
    """
    found: dict[str, Detector] = {}
    for name in names or (DEFAULT,):
        found |= {one.name: one for one in _named(name)}
    return tuple(found.values())


def _named(name: str) -> Sequence[Detector]:
    if name == DEFAULT:
        return DETECTORS
    known = {one.name: one for one in (*DETECTORS, *PUBLISHED)}
    if name in known:
        return (known[name],)
    foreign = [one for one in third_party() if one.name == name]
    if not foreign:
        raise UsageError(f"no method is called {name}; `stepscope methods` lists all of them")
    return [one for one in foreign if isinstance(one, Detector)]


def are_published(detectors: Sequence[Detector]) -> bool:
    """Whether only published forms were chosen: nothing is added to what they find."""
    return all(one in PUBLISHED for one in detectors)


def tables(names: Sequence[str]) -> frozenset[str] | None:
    """The only tables that a diagnosis by these methods reads; None: all."""
    used = [one.needs.tables if one in PUBLISHED else None for one in chosen(names)]
    return None if None in used else frozenset().union(*(one for one in used if one is not None))


def explanations(names: Sequence[str]) -> tuple[Explanation, ...]:
    """All explanations; those of other packages come first where they are named."""
    wanted = set(names) - {DEFAULT} - {one.name for one in (*DETECTORS, *PUBLISHED)}
    foreign = [one for one in third_party() if one.name in wanted] if wanted else []
    return (*(one for one in foreign if isinstance(one, Explanation)), *EXPLANATIONS)


def third_party() -> tuple[Detector | Explanation, ...]:
    """Methods of other installed packages, by the entry points of group `stepscope.methods`.

    Raises:
        UsageError: one cannot be loaded, or is neither a detector nor an explanation.
    """
    return tuple(_loaded(one) for one in entry_points(group=GROUP))


def _loaded(point: EntryPoint) -> Detector | Explanation:
    try:
        method = point.load()()
    except Exception as error:
        raise UsageError(
            f"method {point.name} of {point.value} cannot be loaded: {error}"
        ) from error
    if not isinstance(method, (Detector, Explanation)):
        raise UsageError(
            f"method {point.name}: {point.value} has no name, needs and detect or explain"
        )
    return method


@dataclass(frozen=True)
class Listed:
    """One method as `stepscope methods` shows it."""

    name: str
    runs: str
    finds: str
    needs: str
    paper: str
    cost: str


def listed() -> Iterator[Listed]:
    """All detectors and explanations, other packages' last."""
    for one in DETECTORS:
        yield _listed(one, "Detectors that run by default")
    for one in PUBLISHED:
        yield _listed(one, "Detectors that run only by --method NAME")
    for explanation in EXPLANATIONS:
        yield _listed(explanation, "Explanations, asked about every suspect")
    for foreign in third_party():
        yield _listed(foreign, "Methods of other packages, by --method NAME")


def _listed(one: Detector | Explanation, runs: str) -> Listed:
    about = inspect.getdoc(inspect.getmodule(type(one))) or ""
    finds = (inspect.getdoc(type(one)) or about).partition("\n\n")[0]
    return Listed(one.name, runs, _line(finds), str(one.needs), _paper(about), _cost(about))


def _line(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _cost(text: str) -> str:
    """The text after `Cost:` in a module's docstring; empty where there is none."""
    _, found, said = text.partition("Cost: ")
    return _line(said.partition("Cannot see")[0].partition("\n\n")[0]) if found else ""


def _paper(text: str) -> str:
    """The paper that a module's docstring says its methods come from."""
    found = _PAPER.search(text)
    return found.group(1) if found else ""

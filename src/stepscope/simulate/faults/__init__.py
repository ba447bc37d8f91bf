"""The registry of all faults, by name."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.simulate.faults.base import Blame, Fault
from stepscope.simulate.faults.framework import ExpertImbalance, NoOverlap, UnevenInputs
from stepscope.simulate.faults.gpu import GpuEcc, GpuShared, GpuSlow, PcieSlow
from stepscope.simulate.faults.hang import Delay, Hang, MissingRecv, StuckLoader
from stepscope.simulate.faults.host import (
    CpuContention,
    DataSlow,
    FewCores,
    Gc,
    JitCompile,
    LateCompile,
    PinMemory,
    SlowCode,
)
from stepscope.simulate.faults.irregular import Irregular
from stepscope.simulate.faults.network import (
    AdapterPcieSlow,
    Congestion,
    FabricSlow,
    LinkSlow,
    NicDown,
    NicSlow,
    NvlinkDown,
    NvlinkSlow,
    SwitchSlow,
)

_KNOWN: tuple[type[Fault], ...] = (
    GpuSlow, GpuEcc, GpuShared, PcieSlow,
    NvlinkSlow, NvlinkDown, NicSlow, NicDown, AdapterPcieSlow, LinkSlow, SwitchSlow, Congestion,
    FabricSlow,
    Gc, DataSlow, PinMemory, JitCompile, LateCompile, SlowCode, CpuContention, FewCores,
    ExpertImbalance, UnevenInputs, NoOverlap,
    Irregular, Delay, Hang, MissingRecv, StuckLoader,
)  # fmt: skip

FAULTS: Mapping[str, type[Fault]] = {one.name: one for one in _KNOWN}
"""In the order of `--list-faults`."""

__all__ = [
    "FAULTS",
    "AdapterPcieSlow",
    "Blame",
    "Congestion",
    "CpuContention",
    "DataSlow",
    "Delay",
    "ExpertImbalance",
    "FabricSlow",
    "Fault",
    "FewCores",
    "Gc",
    "GpuEcc",
    "GpuShared",
    "GpuSlow",
    "Hang",
    "Irregular",
    "JitCompile",
    "LateCompile",
    "LinkSlow",
    "MissingRecv",
    "NicDown",
    "NicSlow",
    "NoOverlap",
    "NvlinkDown",
    "NvlinkSlow",
    "PcieSlow",
    "PinMemory",
    "SlowCode",
    "StuckLoader",
    "SwitchSlow",
    "UnevenInputs",
]

"""Scaled-down versions of the jobs that the papers describe: same shape, same fault, known truth.

They have a few hosts instead of hundreds. Degrees of parallelism, what is slow, and by how much are
the papers' values, if the papers give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.errors import UsageError
from stepscope.simulate.parse import parse_fault


@dataclass(frozen=True)
class Case:
    """A scenario as plain values, and the paper's story behind it."""

    source: str
    story: str
    values: Mapping[str, Any]
    faults: tuple[str, ...]


def _case(source: str, story: str, *faults: str, **values: Any) -> Case:
    return Case(source, story, {"steps": 100, **values}, faults)


VLM = {"kind": "variable"}
MOE = {"kind": "moe"}

CASES: Mapping[str, Case] = {
    "argus-1": _case(
        "ARGUS 9.1", "a VLM job, TP 2: two replicas compute 150 times slower; a step takes minutes",
        "gpu_slow:ranks=40+41+42+43,factor=150,from=50",
        ranks=64, workload=VLM, parallelism={"tp": 2},
    ),
    "argus-2": _case(
        "ARGUS 9.2", "experts, EP 8: PCIe between GPU and adapter is damaged on two machines",
        "adapter_pcie_slow:ranks=7+15",
        ranks=64, workload=MOE, parallelism={"ep": 8},
    ),
    # of its 11,178 ms of passes, a microbatch takes 173 ms backward and 160 ms until the next one
    "argus-3": _case(
        "ARGUS 9.3", "a VLM job, TP 4, PP 4, about 32 microbatches: the backward pass of a rank of "
        "the last stage is 1.9 times slower, hidden by bubbles and synchronisation",
        "gpu_slow:rank=60,factor=1.9,only=backward-compute,seen=no",
        ranks=64, workload=VLM, parallelism={"tp": 4, "pp": 4, "microbatches": 32},
    ),
    "argus-4": _case(
        "ARGUS 9.4", "a VLM job, TP 4, PP 4: now and then, compiling a kernel takes 6 s",
        "jit_compile:rank=20",
        ranks=64, workload=VLM, parallelism={"tp": 4, "pp": 4},
    ),
    "argus-5": _case(
        "ARGUS 9.5", "experts, PP 9: the GPUs of a host are 5.7 times slower, while an unrelated "
        "port of that host goes down",
        "gpu_slow:ranks=112+113+114+115+116+117+118+119,factor=5.7,only=moe_experts,"
        "decoy=nic_port_down,from=50",
        ranks=144, workload=MOE, parallelism={"pp": 9, "ep": 8, "microbatches": 18},
    ),
    "eroica-1": _case(
        "EROICA 6.1", "slow storage, a forward pass that computes on the host, and workers that "
        "collect garbage at random times",
        "data_slow:ranks=3+17+30+31+44+58,ms=800,chance=0.5", "slow_code", "gc",
        ranks=64, parallelism={}, profiled_steps=4, profile_every=20,
    ),
    "eroica-2": _case(
        "EROICA 6.2", "bad flow scheduling, an adapter that is down, three workers that pin memory "
        "all the time, and uneven inputs",
        "fabric_slow", "nic_down:rank=21,chance=0.5", "pin_memory:ranks=5+33+62",
        "uneven_inputs:factor=1.15",
        ranks=64, workload=VLM, parallelism={"tp": 1, "sharding": "fsdp"}, profiled_steps=2,
        profile_every=20,
    ),
    "eroica-3": _case(
        "EROICA 6.3", "a data loader is deadlocked on a lock, and all ranks wait for its worker",
        "stuck_loader:rank=77,from=60",
        ranks=128, parallelism={"tp": 1}, profiled_steps=2,
    ),
    "eroica-4": _case(
        "EROICA A", "the GPUs of two hosts throttle now and then, and three have lost NVLink",
        "gpu_slow:ranks=16+17+18+19+20+21+22+23,factor=3,chance=0.4",
        "gpu_slow:ranks=40+41+42+43+44+45+46+47,factor=3,chance=0.4", "nvlink_down:ranks=3+30+52",
        ranks=64, parallelism={"tp": 4}, profiled_steps=2, profile_every=20,
    ),
    "eroica-5": _case(
        "EROICA B", "one host: an idle model's collectives occupy SMs; steps go from 22 s to 26 s",
        "gpu_shared:host=host-000,factor=1.18,from=50",
        ranks=8, parallelism={"tp": 1}, profiled_steps=2,
    ),
    "venus-1": _case(
        "VenusTrace 5.4", "a rank never posts a receive in the third microbatch's forward pass",
        "missing_recv:rank=42,microbatch=2,from=70",
        ranks=64, parallelism={"tp": 4, "pp": 4},
    ),
    "venus-2": _case(
        "VenusTrace 5.4", "the container of one server got 8 of 192 CPUs",
        "few_cores:host=host-003",
        ranks=64, parallelism={"tp": 2, "pp": 4},
    ),
    "kair-1": _case(
        "KAIR V.C", "26 machines: the graph compiler is still busy when training has begun",
        "late_compile:ranks=40+41+42+43+44+45+46+47",
        ranks=208, parallelism={"tp": 1},
    ),
    "holmes-spike": _case(
        "Holmes 3.1", "rare, large spikes from one GPU",
        "irregular:rank=37,type=spike", ranks=64, steps=200, parallelism={},
    ),
    "holmes-fluctuation": _case(
        "Holmes 3.1", "a switch that is slower in one of seven steps",
        "irregular:device=switch,type=fluctuation", ranks=64, steps=200, parallelism={},
    ),
    "holmes-degradation": _case(
        "Holmes 3.1", "from one step on, a monitor scans ports and uses up the CPUs of a host",
        "irregular:device=cpu,type=degradation,rank=24,from=100", ranks=64, steps=200,
        parallelism={},
    ),
    "two-at-once": _case(
        "VenusTrace 6", "a slow GPU in one pipeline and a slow adapter in another",
        "gpu_slow:rank=3,from=30", "nic_slow:rank=45,factor=6,from=60", ranks=64, parallelism={},
    ),
    "slow-then-stuck": _case(
        "VenusTrace 6", "a GPU is slow, and later another one stops for good",
        "gpu_slow:rank=3,from=20", "hang:rank=40,from=80", ranks=64, parallelism={},
    ),
}  # fmt: skip


def case_values(name: str) -> dict[str, Any]:
    """The scenario of a case as plain values, with its faults as objects.

    Raises:
        UsageError: there is no such case.
    """
    if name not in CASES:
        raise UsageError(f"no case is called {name}; known cases: {', '.join(CASES)}")
    case = CASES[name]
    return {"name": name, **case.values, "fault": [parse_fault(one) for one in case.faults]}

"""What is simulated: the job, its cluster, their noise, and the faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.simulate.faults.base import Fault

Kind = Literal["dense", "moe", "variable"]
Sharding = Literal["ddp", "zero1", "fsdp"]
Detail = Literal["auto", "full", "normal", "brief"]


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism; data parallelism uses the ranks that remain.

    `ep` divides data parallelism. `chunks` above 1 interleaves the pipeline's stages.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    chunks: int = 1
    microbatches: int = 8
    sharding: Sharding = "zero1"


@dataclass(frozen=True)
class Hardware:
    """The machines and their network: H100 hosts, one 400 Gb/s adapter per GPU, two tiers.

    Bandwidths are per GPU, adapter or uplink and per direction. In NCCL's tests NVLink 4 reaches
    about 370 of its 450 GB/s, a 400 Gb/s adapter about 48, PCIe 5 x16 about 55.
    """

    gpus_per_host: int = 8
    nics_per_host: int = 8
    hosts_per_leaf: int = 16
    spines: int = 4
    nvlink_gb_per_s: float = 370.0
    pcie_gb_per_s: float = 55.0
    nic_gb_per_s: float = 48.0
    uplink_gb_per_s: float = 48.0
    """One adapter's share of its leaf's uplinks: the fabric is not oversubscribed."""


@dataclass(frozen=True)
class Workload:
    """The cost of one microbatch on one rank: a chunk is a number of transformer blocks.

    With the defaults, the forward pass takes about 40 ms per stage (VenusTrace, section 5.1), and
    the backward pass twice as long.
    """

    kind: Kind = "dense"
    blocks: int = 2
    layers: int = 8
    """Layers of the model in each block. Each layer has its own tensor- and expert-parallel
    operators; the operators of a block are simulated as one of their total size."""
    attention_ms: float = 9.0
    mlp_ms: float = 10.0
    head_ms: float = 2.0
    """Output layer and loss, only on the last stage."""
    optimizer_ms: float = 8.0
    data_load_ms: float = 1.5
    launch_us: float = 20.0
    """Host time for one kernel launch, including the Python code around it."""
    activation_mb: float = 64.0
    """Activations of one microbatch between two layers: 4,096 tokens x 8,192 values in bf16."""
    gradient_mb: float = 4000.0
    """Gradients of one rank's share of the model, all blocks: two thousand million values."""
    input_mb: float = 32.0
    shape_spread: float = 0.25
    """Workload `variable`: log-normal spread of a microbatch's work. For a VLM the extremes differ
    by a factor of 2 to 3 (ARGUS section 9.3)."""
    routing_spread: float = 0.05
    """Workload `moe`: log-normal spread of the work of a rank's experts."""


@dataclass(frozen=True)
class Noise:
    """Variation without a fault. Values are log-normal spreads, unless the name has a unit."""

    compute: float = 0.02
    """Variation of single operations: 0.02 to 0.03 on the eight workers of ByteDance's ST trace."""
    transfer: float = 0.05
    rank: float = 0.005
    """Constant differences between GPUs."""
    wobble: float = 0.005
    """Variation of the whole job from step to step; half of it is gone after ten steps."""
    drift: float = 0.005
    """Drift of the whole job from the first step to the last."""
    host: float = 0.1
    spikes_per_rank_step: float = 2e-5
    """Rate of interruptions of a host; they last ten milliseconds on average."""
    clock_offset_us: float = 500.0
    clock_drift_ppm: float = 3.0
    warm_up: tuple[float, ...] = (3.0, 1.3, 1.1)
    """How many times longer the work of the first steps takes."""
    checkpoint_every: int = 50
    checkpoint_ms: float = 2000.0
    evaluate_every: int = 0
    evaluate_ms: float = 3000.0

    @classmethod
    def none(cls) -> Noise:
        """Noise without any variation."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), 0, 0.0, 0, 0.0)


@dataclass(frozen=True)
class Scenario:
    """One simulated job. Equal scenarios give the same rows, to the nanosecond."""

    name: str = "simulated"
    ranks: int = 64
    steps: int = 100
    seed: int = 0
    parallelism: Parallelism = field(default_factory=Parallelism)
    hardware: Hardware = field(default_factory=Hardware)
    workload: Workload = field(default_factory=Workload)
    noise: Noise = field(default_factory=Noise)
    faults: tuple[Fault, ...] = ()
    detail: Detail = "auto"
    profiled_steps: int = 0
    """How many steps all ranks profile: the last of the job, or the one that never ends."""
    profile_every: int = 0
    """So often they do, in steps; 0: once, at the end."""
    rank_of: tuple[int, ...] = ()
    """The rank at each place of the grid; empty: Megatron's order, tp fastest, pp slowest."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """Parses a scenario in TOML; see `stepscope.simulate.parse`.

        Raises:
            UsageError: it is not a valid scenario.
        """
        from stepscope.simulate.parse import parse_scenario

        return parse_scenario(text)

    @property
    def dp(self) -> int:
        one = self.parallelism
        return self.ranks // (one.tp * one.cp * one.pp)


def default_parallelism(ranks: int) -> Parallelism:
    """A typical layout for this size: tensor parallelism within a host, then stages, then data."""
    tp = _fitting(ranks, 8 if ranks >= 1024 else 4 if ranks >= 32 else 1)
    pp = _fitting(ranks // tp, 8 if ranks >= 1024 else 4 if ranks >= 32 else 1)
    return Parallelism(tp=tp, pp=pp)


def _fitting(ranks: int, wanted: int) -> int:
    return max(one for one in range(1, wanted + 1) if ranks % one == 0)


def check(scenario: Scenario) -> None:
    """Raises UsageError if the numbers contradict one another."""
    one = scenario.parallelism
    degrees = {"tp": one.tp, "cp": one.cp, "pp": one.pp, "ep": one.ep, "chunks": one.chunks}
    for name, value in {**degrees, "ranks": scenario.ranks, "steps": scenario.steps,
                        "microbatches": one.microbatches}.items():  # fmt: skip
        if value < 1:
            raise UsageError(f"{name}={value} must be 1 or more")
    if scenario.ranks % (one.tp * one.cp * one.pp):
        split = f"tp={one.tp} x cp={one.cp} x pp={one.pp}"
        raise UsageError(f"{scenario.ranks} ranks are not divisible by {split}")
    _check_profiles(scenario)
    if scenario.dp % one.ep:
        raise UsageError(f"ep={one.ep} must divide dp={scenario.dp}")
    if one.ep > 1 and scenario.workload.kind != "moe":
        raise UsageError('ep needs experts: set kind = "moe", or leave out ep')
    if one.chunks > 1 and (one.pp == 1 or one.microbatches % one.pp):
        raise UsageError(
            f"chunks={one.chunks} needs pp above 1 and a number of microbatches divisible by pp"
        )
    if scenario.rank_of and sorted(scenario.rank_of) != list(range(scenario.ranks)):
        raise UsageError(f"rank_of must list each of the {scenario.ranks} ranks once")


def _check_profiles(scenario: Scenario) -> None:
    each, every = scenario.profiled_steps, scenario.profile_every
    if each < 0 or every < 0:
        raise UsageError(f"profiled_steps={each} and profile_every={every} must be 0 or more")
    if every and not 0 < each <= every:
        raise UsageError(f"profile_every={every} needs profiled_steps from 1 to {every}")

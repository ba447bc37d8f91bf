"""How a job of so many ranks is laid out: its grid, how its ranks work together, its machines."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.simulate import Hardware, Parallelism, Scenario, Workload
from stepscope.simulate.scenario import Detail, Sharding

PLAIN, INTERLEAVED = "zero1", "interleaved"
WAYS = (PLAIN, INTERLEAVED, "fsdp", "ddp")
"""How ranks work together, beside their grid: optimizer states sharded, the same with a pipeline
of two chunks per stage, everything sharded, and nothing."""
PIPELINE = 3
"""From so many dimensions on there is a pipeline."""


def job(
    ranks: int, steps: int, seed: int, dimensions: int, way: str, detail: Detail = "auto"
) -> Scenario:
    """A healthy one; with experts where one of its dimensions is theirs."""
    per_host = 4 if ranks < 64 else 8
    hosts = ranks // per_host
    parallelism = layout(ranks, dimensions, way)
    kind = "moe" if parallelism.ep > 1 else "dense"
    return Scenario(
        ranks=ranks, steps=steps, seed=seed, parallelism=parallelism, detail=detail,
        # a stage has as many blocks in two chunks as in one
        workload=Workload(kind=kind, blocks=2 // parallelism.chunks),  # type: ignore[arg-type]
        # small jobs have a fabric of two tiers as well
        hardware=Hardware(gpus_per_host=per_host, nics_per_host=per_host,
                          hosts_per_leaf=max(1, min(16, hosts // 4))),
    )  # fmt: skip


def layout(ranks: int, dimensions: int, way: str = PLAIN) -> Parallelism:
    """Data parallelism, and in this order tensors, pipeline, experts, context."""
    wide = 8 if ranks >= 1024 else 4 if ranks >= 64 else 2
    return Parallelism(
        tp=wide if dimensions >= 2 else 1, pp=wide if dimensions >= PIPELINE else 1,
        ep=2 if dimensions >= 4 else 1, cp=2 if dimensions >= 5 else 1,
        chunks=2 if way == INTERLEAVED else 1, sharding=_SHARDING.get(way, "zero1"),
    )  # fmt: skip


_SHARDING: Mapping[str, Sharding] = {"fsdp": "fsdp", "ddp": "ddp"}


def dimensions_of(scenario: Scenario) -> int:
    """How many of dp, tp, pp, ep and cp are above 1."""
    one = scenario.parallelism
    return sum(size > 1 for size in (scenario.dp, one.tp, one.pp, one.ep, one.cp))


def way_of(scenario: Scenario) -> str:
    """One of `WAYS`."""
    one = scenario.parallelism
    return INTERLEAVED if one.chunks > 1 else one.sharding


def ways_with(dimensions: int) -> list[str]:
    """Without a pipeline there is nothing to interleave."""
    return [one for one in WAYS if dimensions >= PIPELINE or one != INTERLEAVED]

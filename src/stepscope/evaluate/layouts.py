"""The layout of a job of a given size: grid of parallelism, sharding strategy, and machines."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.simulate import Hardware, Parallelism, Scenario, Workload
from stepscope.simulate.scenario import Detail, Sharding

PLAIN, INTERLEAVED = "zero1", "interleaved"
STRATEGIES = (PLAIN, INTERLEAVED, "fsdp", "ddp")
"""Sharded optimizer states; the same with an interleaved pipeline of two chunks per stage; fully
sharded; and not sharded."""
PIPELINE = 3
"""From this many dimensions on, there is a pipeline."""


def job(
    ranks: int, steps: int, seed: int, dimensions: int, strategy: str, detail: Detail = "auto"
) -> Scenario:
    """A healthy job; with experts if one of its dimensions is expert parallelism."""
    per_host = 4 if ranks < 64 else 8
    hosts = ranks // per_host
    parallelism = layout(ranks, dimensions, strategy)
    kind = "moe" if parallelism.ep > 1 else "dense"
    return Scenario(
        ranks=ranks, steps=steps, seed=seed, parallelism=parallelism, detail=detail,
        # two chunks of one block hold as much as one chunk of two
        workload=Workload(kind=kind, blocks=2 // parallelism.chunks),  # type: ignore[arg-type]
        # small jobs get a two-tier fabric as well
        hardware=Hardware(gpus_per_host=per_host, nics_per_host=per_host,
                          hosts_per_leaf=max(1, min(16, hosts // 4))),
    )  # fmt: skip


def layout(ranks: int, dimensions: int, strategy: str = PLAIN) -> Parallelism:
    """Dimensions are added in this order: data, tensor, pipeline, expert, context."""
    wide = 8 if ranks >= 1024 else 4 if ranks >= 64 else 2
    return Parallelism(
        tp=wide if dimensions >= 2 else 1, pp=wide if dimensions >= PIPELINE else 1,
        ep=2 if dimensions >= 4 else 1, cp=2 if dimensions >= 5 else 1,
        chunks=2 if strategy == INTERLEAVED else 1, sharding=_SHARDING.get(strategy, "zero1"),
    )  # fmt: skip


_SHARDING: Mapping[str, Sharding] = {"fsdp": "fsdp", "ddp": "ddp"}


def dimensions_of(scenario: Scenario) -> int:
    """How many of the degrees dp, tp, pp, ep and cp are above 1."""
    one = scenario.parallelism
    return sum(size > 1 for size in (scenario.dp, one.tp, one.pp, one.ep, one.cp))


def strategy_of(scenario: Scenario) -> str:
    """One of `STRATEGIES`."""
    one = scenario.parallelism
    return INTERLEAVED if one.chunks > 1 else one.sharding


def strategies_with(dimensions: int) -> list[str]:
    """The strategies that fit: without a pipeline there is nothing to interleave."""
    return [one for one in STRATEGIES if dimensions >= PIPELINE or one != INTERLEAVED]

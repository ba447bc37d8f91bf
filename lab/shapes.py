"""Jobs to run: a script, its options, and how many ranks on how many hosts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Option = int | float | str

SHAPES = 3
"""Of each kind of job: few, so that a fault from the first step finds its healthy twin recorded."""


@dataclass(frozen=True)
class Job:
    """What is run where, without its faults."""

    name: str
    script: str
    hosts: int
    per_host: int
    steps: int
    rate_mbit: float
    options: dict[str, Option] = field(default_factory=dict)
    stages: int = 1
    clocks_ms: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def world(self) -> int:
        return self.hosts * self.per_host

    @property
    def layers(self) -> int:
        return int(self.options["layers"])

    def ranks_on(self, host: int) -> list[int]:
        return list(range(host * self.per_host, (host + 1) * self.per_host))

    def host_of(self, rank: int) -> int:
        return rank // self.per_host

    def stage_of(self, rank: int) -> int:
        return rank // (self.world // self.stages)

    def ranks_of_stage(self, stage: int) -> list[int]:
        return [rank for rank in range(self.world) if self.stage_of(rank) == stage]

    def layers_of(self, rank: int) -> range:
        """The layers that a rank computes."""
        each = self.layers // self.stages
        return range(self.stage_of(rank) * each, (self.stage_of(rank) + 1) * each)

    def arguments(self, seed: int) -> list[str]:
        given = [("steps", self.steps), ("seed", seed), *self.options.items()]
        return [word for key, value in given for word in (f"--{key}", str(value))]


def job(kind: str, number: int) -> Job:
    """Shape `number` of a kind of job."""
    draw = random.Random(f"shape/{kind}/{number}")
    drawn = _KINDS[kind](f"{kind}-{number}", draw)
    if draw.random() < 0.5:
        return drawn
    clocks = tuple(round(draw.uniform(-20, 20), 1) for _ in range(drawn.hosts))
    return dataclasses.replace(drawn, clocks_ms=clocks)


def _common(draw: random.Random) -> dict[str, Option]:
    """What users set one way or the other."""
    return {
        "loader-ms": round(draw.uniform(3.0, 8.0), 1),
        "optimizer-ms": round(draw.uniform(4.0, 8.0), 1),
        "noise": round(draw.uniform(0.01, 0.05), 3),
        "checkpoint-every": draw.choice([0, 40, 60]),
        "log-every": draw.choice([0, 1, 10]),
        "reduce-loss": draw.choice([0, 1]),
    }


def _ddp(name: str, draw: random.Random) -> Job:
    options = _common(draw) | {
        "layers": draw.randint(5, 8),
        "layer-ms": round(draw.uniform(4.0, 7.0), 1),
        "workers": draw.choice([0, 0, 1]),
        "evaluate-every": draw.choice([0, 50]),
    }
    hosts, per_host = draw.choice([(4, 2), (4, 2), (2, 4), (3, 3)])
    return Job(name, "ddp.py", hosts, per_host, 150, 400.0, options)


def _accumulated(name: str, draw: random.Random) -> Job:
    options = _common(draw) | {"layers": 6, "layer-ms": 7.0, "accumulate": draw.choice([2, 4])}
    return Job(name, "ddp.py", 4, 2, 130, 400.0, options)


def _lengths(name: str, draw: random.Random) -> Job:
    spread = round(draw.uniform(0.05, 0.12), 2)
    options = _common(draw) | {"layers": 6, "layer-ms": 6.0, "length-spread": spread}
    return Job(name, "ddp.py", 4, 2, 150, 400.0, options)


def _fsdp(name: str, draw: random.Random) -> Job:
    options = _common(draw) | {
        # gathering costs processor time, of which there is little: few layers that take long
        "layers": draw.randint(3, 4),
        "layer-ms": round(draw.uniform(10.0, 13.0), 1),
        "width": 192,
        "workers": draw.choice([0, 0, 1]),
    }
    hosts, per_host = draw.choice([(4, 2), (2, 4), (4, 2)])
    return Job(name, "fsdp.py", hosts, per_host, 120, 400.0, options)


def _tensor(name: str, draw: random.Random) -> Job:
    options = _common(draw) | {
        "layers": 2,
        "layer-ms": round(draw.uniform(18.0, 24.0), 1),
        "tensor": draw.choice([2, 4]),
        "sequences": 6,
    }
    return Job(name, "tensor.py", 4, 2, 110, 300.0, options)


def _pipelined(script: str) -> Callable[[str, random.Random], Job]:
    def drawn(name: str, draw: random.Random) -> Job:
        stages = draw.choice([4, 4, 8])
        options = _common(draw) | {
            "stages": stages,
            "layers": 2 * stages,
            "layer-ms": round(draw.uniform(16.0, 22.0), 1),
            "microbatches": draw.choice([8, 8, 16]),
            "width": 128,
            "stream": 4096,
        }
        return Job(name, script, 4, 2, 120, 400.0, options, stages=stages)

    return drawn


def _experts(name: str, draw: random.Random) -> Job:
    options = _common(draw) | {
        "layers": 3,
        "layer-ms": round(draw.uniform(10.0, 14.0), 1),
        "width": 128,
        "stream": 512,
    }
    return Job(name, "experts.py", 4, 2, 120, 400.0, options)


_KINDS = {
    "ddp": _ddp, "accumulated": _accumulated, "lengths": _lengths, "fsdp": _fsdp,
    "tensor": _tensor, "pipeline": _pipelined("pipeline.py"),
    "own-pipeline": _pipelined("own_pipeline.py"), "experts": _experts,
}  # fmt: skip
KINDS = tuple(_KINDS)

"""Jobs to run: a script, its options, and how many ranks on how many hosts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Option = int | float | str

SHAPES = 3
"""Of each kind of job: few, so that a fault from the first step finds a healthy twin on the disk."""


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
    tensor: int = 1

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

    def arguments(self) -> list[str]:
        given = [("steps", self.steps), *self.options.items()]
        return [word for key, value in given for word in (f"--{key}", str(value))]


def job(kind: str, number: int) -> Job:
    """Shape `number` of a kind of job."""
    draw = random.Random(f"shape/{kind}/{number}")
    return _KINDS[kind](f"{kind}-{number}", draw)


def _ddp(name: str, draw: random.Random) -> Job:
    options: dict[str, Option] = {
        "layers": draw.randint(5, 8),
        "layer-ms": round(draw.uniform(4.0, 7.0), 1),
        "loader-ms": round(draw.uniform(3.0, 8.0), 1),
        "optimizer-ms": round(draw.uniform(4.0, 8.0), 1),
        "workers": draw.choice([0, 0, 1]),
        "checkpoint-every": draw.choice([0, 40, 60]),
        "evaluate-every": draw.choice([0, 50]),
        "log-every": draw.choice([0, 1, 10]),
    }
    hosts, per_host = draw.choice([(4, 2), (4, 2), (2, 4), (3, 3)])
    return Job(name, "ddp.py", hosts, per_host, 150, 400.0, options)


def _accumulated(name: str, draw: random.Random) -> Job:
    plain = _ddp(name, draw)
    options = {**plain.options, "accumulate": draw.choice([2, 4]), "layer-ms": 7.0, "workers": 0}
    return Job(name, "ddp.py", 4, 2, 130, 400.0, options)


def _lengths(name: str, draw: random.Random) -> Job:
    plain = _ddp(name, draw)
    options = {**plain.options, "length-spread": round(draw.uniform(0.05, 0.12), 2)}
    return Job(name, "ddp.py", 4, 2, 150, 400.0, options)


_KINDS = {"ddp": _ddp, "accumulated": _accumulated, "lengths": _lengths}
KINDS = tuple(_KINDS)

"""Named scenarios: a kind of job, and faults whose place, time and size a seed draws."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from lab import faults, shapes
from lab.faults import Fault, When
from lab.shapes import Job

Draw = Callable[[random.Random, Job], list[Fault]]


@dataclass(frozen=True)
class Case:
    """One scenario with one seed: what is run."""

    scenario: str
    family: str
    seed: int
    job: Job
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        return f"{self.scenario}-{self.seed}"

    @property
    def held_out(self) -> bool:
        """A third of the cases are not looked at while methods are being developed."""
        return zlib.crc32(self.name.encode()) % 3 == 0


def names() -> list[str]:
    return list(_SCENARIOS)


def case(scenario: str, seed: int) -> Case:
    kind, family, draw = _SCENARIOS[scenario]
    generator = random.Random(f"{scenario}/{seed}")
    job = shapes.job(kind, generator.randrange(shapes.SHAPES))
    return Case(scenario, family, seed, job, tuple(draw(generator, job)))


def twin(of: Case) -> Case:
    """The healthy run of the same job."""
    number = int(of.job.name.rpartition("-")[2])
    return healthy(of.job.kind, number)


def healthy(kind: str, seed: int) -> Case:
    return Case(f"healthy-{kind}", kind, seed, shapes.job(kind, seed % shapes.SHAPES), ())


# --- drawing ----------------------------------------------------------------------------------------


def _when(draw: random.Random, job: Job) -> When:
    """A third from the start, a fifth over before the end, the others from some step on."""
    kind = draw.random()
    if kind < 0.33:
        return When()
    first = draw.randint(int(0.3 * job.steps), int(0.5 * job.steps))
    return When(first, first + draw.randint(40, 60) if kind < 0.53 else None)


def _midway(draw: random.Random, job: Job) -> When:
    return When(draw.randint(int(0.3 * job.steps), int(0.5 * job.steps)))


def _rank(draw: random.Random, job: Job) -> int:
    return draw.randrange(job.world)


def _host(draw: random.Random, job: Job) -> int:
    return draw.randrange(job.hosts)


def _none(draw: random.Random, job: Job) -> list[Fault]:
    return []


def _device(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.SlowDevice(_when(draw, job), _rank(draw, job), draw.uniform(1.25, 2.2))]


def _layer(place: str) -> Draw:
    def drawn(draw: random.Random, job: Job) -> list[Fault]:
        layer = {"early": 0, "middle": job.layers // 2, "last": job.layers - 1}[place]
        passes = draw.choice(["layer", "forward", "backward"])
        when, rank = _when(draw, job), _rank(draw, job)
        return [faults.SlowLayer(when, rank, layer, draw.uniform(3.5, 7.0), passes)]

    return drawn


def _late_backward(draw: random.Random, job: Job) -> list[Fault]:
    when, rank = _when(draw, job), _rank(draw, job)
    return [faults.SlowLayer(when, rank, -1, draw.uniform(12.0, 30.0), "backward")]


def _optimizer(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.SlowOptimizer(_when(draw, job), _rank(draw, job), draw.uniform(4.0, 12.0))]


def _loader(draw: random.Random, job: Job) -> list[Fault]:
    when, seconds = _when(draw, job), draw.uniform(0.03, 0.12)
    if draw.random() < 0.7:
        return [faults.SlowLoader(when, (_rank(draw, job),), seconds + _hidden(job))]
    return [faults.SlowLoader(when, (), seconds + _hidden(job))]


def _hidden(job: Job) -> float:
    """What a worker process can be slower by before anybody waits for it."""
    return 0.15 if job.options.get("workers") else 0.0


def _link(draw: random.Random, job: Job) -> list[Fault]:
    mbit = job.rate_mbit / draw.uniform(3.0, 6.0)
    return [faults.SlowLink(_when(draw, job), _host(draw, job), mbit)]


def _loss(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.LostPackets(_when(draw, job), _host(draw, job), draw.uniform(0.01, 0.04))]


def _quota(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.Quota(_when(draw, job), _host(draw, job), draw.uniform(0.12, 0.25))]


def _others(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.OtherProcesses(_when(draw, job), _host(draw, job), draw.randint(4, 8))]


def _garbage(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.Garbage(_when(draw, job), _rank(draw, job), draw.uniform(0.04, 0.1))]


def _host_work(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.HostWork(_when(draw, job), _rank(draw, job), draw.uniform(0.03, 0.08))]


def _function(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.SlowFunction(_when(draw, job), draw.uniform(0.03, 0.08))]


def _sync(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.BlockingSync(_when(draw, job), draw.uniform(0.03, 0.08))]


def _stalls(draw: random.Random, job: Job) -> list[Fault]:
    when, rank = _when(draw, job), _rank(draw, job)
    return [faults.Stalls(when, rank, draw.uniform(0.6, 1.5), draw.randint(12, 30))]


def _jitter(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.Jitter(_when(draw, job), _rank(draw, job), draw.uniform(1.0, 2.5))]


def _sequences(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.LongSequences(_when(draw, job), _rank(draw, job), draw.uniform(1.3, 2.0))]


def _uneven(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.UnevenLengths(_when(draw, job), draw.uniform(0.25, 0.5))]


def _stopped(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.Stopped(_midway(draw, job), _rank(draw, job))]


def _stuck(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.StuckLoader(_midway(draw, job), _rank(draw, job))]


def _gone(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.LinkGone(_midway(draw, job), _host(draw, job))]


_SCENARIOS: dict[str, tuple[str, str, Draw]] = {
    "ddp-device": ("ddp", "compute", _device),
    "ddp-link": ("ddp", "network", _link),
    "ddp-loader": ("ddp", "loader", _loader),
    "ddp-quota": ("ddp", "host", _quota),
    "ddp-stopped": ("ddp", "hang", _stopped),
    "ddp-early-layer": ("ddp", "compute", _layer("early")),
    "ddp-middle-layer": ("ddp", "compute", _layer("middle")),
    "ddp-last-layer": ("ddp", "compute", _layer("last")),
    "ddp-late-backward": ("ddp", "compute", _late_backward),
    "ddp-optimizer": ("ddp", "compute", _optimizer),
    "ddp-loss": ("ddp", "network", _loss),
    "ddp-others": ("ddp", "host", _others),
    "ddp-gc": ("ddp", "host", _garbage),
    "ddp-host-work": ("ddp", "host", _host_work),
    "ddp-function": ("ddp", "code", _function),
    "ddp-sync": ("ddp", "code", _sync),
    "ddp-stalls": ("ddp", "jitter", _stalls),
    "ddp-jitter": ("ddp", "jitter", _jitter),
    "ddp-stuck-loader": ("ddp", "hang", _stuck),
    "ddp-link-gone": ("ddp", "hang", _gone),
    "accumulated-device": ("accumulated", "compute", _device),
    "accumulated-loader": ("accumulated", "loader", _loader),
    "lengths-sequences": ("lengths", "imbalance", _sequences),
    "lengths-uneven": ("lengths", "imbalance", _uneven),
    "lengths-device": ("lengths", "compute", _device),
}

"""Named scenarios: a kind of job, and faults whose place, time and size a seed draws."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from lab import faults, shapes
from lab.faults import Fault, When
from lab.shapes import Job

_HEALTHY, _EVEN = "healthy-", "even-"
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
    def slow_from_start(self) -> bool:
        """Whether a fault makes steps longer from the first one on."""
        return any(not fault.hangs and fault.when.first == 0 for fault in self.faults)

    @property
    def held_out(self) -> bool:
        """A third of the cases are not looked at while methods are being developed. The healthy
        twins of others are not among them."""
        is_twin = self.scenario.startswith(_EVEN) or (
            not self.faults and self.seed < shapes.SHAPES)  # fmt: skip
        return not is_twin and zlib.crc32(self.name.encode()) % 3 == 0


def names() -> list[str]:
    faulty = [f"{kind}-{what}" for kind, whats in _SCENARIOS.items() for what in whats]
    return [*faulty, *(f"{_HEALTHY}{kind}" for kind in shapes.KINDS)]


def case(scenario: str, seed: int, fit: Callable[[Job], Job] | None = None) -> Case:
    """One scenario with one seed; `fit` changes the job for other machines than the lab's own."""
    if scenario.startswith(_HEALTHY):
        return healthy(scenario.removeprefix(_HEALTHY), seed, fit)
    kind, what = _split(scenario)
    generator = random.Random(f"{scenario}/{seed}")
    job = _fitted(shapes.job(kind, generator.randrange(shapes.SHAPES)), fit)
    drawn = tuple(_DRAWS[what][1](generator, job))
    wrong = {key: value for fault in drawn for key, value in fault.options().items()}
    job = dataclasses.replace(job, options=job.options | wrong)
    return Case(scenario, _DRAWS[what][0], seed, job, drawn)


def _split(scenario: str) -> tuple[str, str]:
    return next((kind, what) for kind, whats in _SCENARIOS.items() for what in whats
                if f"{kind}-{what}" == scenario)  # fmt: skip


def twin(of: Case, fit: Callable[[Job], Job] | None = None) -> Case:
    """The healthy run of the same job; where a stage has more layers, with these spread evenly."""
    number = int(of.job.name.rpartition("-")[2])
    healed = healthy(of.job.kind, number, fit)
    more = sum(one.layers for one in of.faults if isinstance(one, faults.HeavyStage))
    if not more:
        return healed
    layers, each_ms = (float(healed.job.options[name]) for name in ("layers", "layer-ms"))
    options = healed.job.options | {"layer-ms": round(each_ms * (layers + more) / layers, 3)}
    even = dataclasses.replace(healed.job, options=options)
    return dataclasses.replace(healed, scenario=f"{_EVEN}{of.scenario}", seed=of.seed, job=even)


def healthy(kind: str, seed: int, fit: Callable[[Job], Job] | None = None) -> Case:
    job = _fitted(shapes.job(kind, seed % shapes.SHAPES), fit)
    return Case(f"{_HEALTHY}{kind}", "healthy", seed, job, ())


def _fitted(job: Job, fit: Callable[[Job], Job] | None) -> Job:
    return job if fit is None else fit(job)


# --- drawing -------------------------------------------------------------------------------------


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


def _layer(place: float) -> Draw:
    """Of the layers that the rank has, the one at this share of their number."""

    def drawn(draw: random.Random, job: Job) -> list[Fault]:
        when, rank = _when(draw, job), _rank(draw, job)
        layers = job.layers_of(rank)
        layer = layers[min(int(place * len(layers)), len(layers) - 1)]
        passes, factor = draw.choice(["layer", "forward", "backward"]), draw.uniform(1.4, 2.2)
        one_of = len(layers) * (3 if passes == "forward" else 1.5 if passes == "backward" else 1)
        return [faults.SlowLayer(when, rank, layer, 1 + (factor - 1) * one_of, passes)]

    return drawn


def _late_backward(draw: random.Random, job: Job) -> list[Fault]:
    when, rank = _when(draw, job), _rank(draw, job)
    return [faults.SlowLayer(when, rank, -1, draw.uniform(12.0, 30.0), "backward")]


def _optimizer(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.SlowOptimizer(_when(draw, job), _rank(draw, job), draw.uniform(4.0, 12.0))]


def _loader(draw: random.Random, job: Job) -> list[Fault]:
    when, seconds = _when(draw, job), draw.uniform(0.03, 0.12)
    if job.stages > 1:
        rank = draw.choice(job.ranks_of_stage(0))  # the others read nothing
    elif draw.random() < 0.7:
        rank = _rank(draw, job)
    else:
        return [faults.SlowLoader(when, (), seconds + _hidden(job))]
    return [faults.SlowLoader(when, (rank,), seconds + _hidden(job))]


def _hidden(job: Job) -> float:
    """What a worker process can be slower by before anybody waits for it."""
    return 0.15 if job.options.get("workers") else 0.0


def _link(draw: random.Random, job: Job) -> list[Fault]:
    # stages pass on less than replicas, and the fewer stages the more of them share a link
    times = draw.uniform(3.0, 6.0) * max(1.0, job.stages / 3)
    return [faults.SlowLink(_when(draw, job), _host(draw, job), job.rate_mbit / times)]


def _loss(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.LostPackets(_when(draw, job), _host(draw, job), draw.uniform(0.01, 0.04))]


def _quota(draw: random.Random, job: Job) -> list[Fault]:
    return [
        faults.Quota(_when(draw, job), _host(draw, job), job.per_host * draw.uniform(0.09, 0.14))
    ]


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


def _wrong_order(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.WrongOrder(_midway(draw, job), _rank(draw, job))]


def _no_receive(draw: random.Random, job: Job) -> list[Fault]:
    receivers = [rank for rank in range(job.world) if job.stage_of(rank) > 0]
    return [faults.UnpostedReceive(_midway(draw, job), draw.choice(receivers))]


def _expert(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.PopularExpert(_when(draw, job), _rank(draw, job), draw.uniform(2.0, 4.0))]


def _heavy_stage(draw: random.Random, job: Job) -> list[Fault]:
    return [faults.HeavyStage(When(), draw.randrange(job.stages), draw.choice([1, 2]))]


_SINGLE: tuple[Draw, ...] = (_device, _loader, _link, _garbage, _jitter)
"""Of which pairs are made: each can be distinguished from the others."""


def _one_after_the_other(draw: random.Random, job: Job) -> list[Fault]:
    first, second = (choice(draw, job)[0] for choice in draw.sample(_SINGLE, 2))
    begin, change = int(0.3 * job.steps), int(0.62 * job.steps)
    return [
        dataclasses.replace(first, when=When(begin, change)),
        dataclasses.replace(second, when=When(change + 5, None)),
    ]


def _at_once(draw: random.Random, job: Job) -> list[Fault]:
    """A slow rank, and code that is slow on all: where nothing overlaps it, so that both cost."""
    when = _midway(draw, job)
    rank = _device(draw, job)[0]
    other = draw.choice([_sync] if job.stages > 1 else [_sync, _function])(draw, job)[0]
    return [dataclasses.replace(rank, when=when), dataclasses.replace(other, when=when)]


_DRAWS: dict[str, tuple[str, Draw]] = {
    "device": ("compute", _device),
    "early-layer": ("compute", _layer(0.0)),
    "middle-layer": ("compute", _layer(0.5)),
    "last-layer": ("compute", _layer(1.0)),
    "late-backward": ("compute", _late_backward),
    "optimizer": ("compute", _optimizer),
    "link": ("network", _link),
    "loss": ("network", _loss),
    "loader": ("loader", _loader),
    "quota": ("host", _quota),
    "others": ("host", _others),
    "gc": ("host", _garbage),
    "host-work": ("host", _host_work),
    "function": ("code", _function),
    "sync": ("code", _sync),
    "stalls": ("jitter", _stalls),
    "jitter": ("jitter", _jitter),
    "sequences": ("imbalance", _sequences),
    "uneven": ("imbalance", _uneven),
    "expert": ("imbalance", _expert),
    "heavy-stage": ("imbalance", _heavy_stage),
    "stopped": ("hang", _stopped),
    "stuck-loader": ("hang", _stuck),
    "link-gone": ("hang", _gone),
    "wrong-order": ("hang", _wrong_order),
    "no-receive": ("hang", _no_receive),
    "in-turn": ("pair", _one_after_the_other),
    "at-once": ("pair", _at_once),
}

_SCENARIOS: dict[str, tuple[str, ...]] = {
    "ddp": (
        "device", "link", "loader", "quota", "stopped", "early-layer", "middle-layer",
        "last-layer", "late-backward", "optimizer", "loss", "others", "gc", "host-work",
        "function", "sync", "stalls", "jitter", "stuck-loader", "link-gone", "wrong-order",
        "in-turn", "at-once",
    ),
    "accumulated": ("device", "loader", "last-layer", "link", "function", "gc", "jitter"),
    "lengths": ("sequences", "uneven", "device", "link", "function"),
    "fsdp": (
        "device", "link", "early-layer", "last-layer", "optimizer", "loader", "quota", "others",
        "gc", "function", "sync", "stalls", "jitter", "stopped", "stuck-loader", "link-gone",
        "wrong-order", "in-turn", "at-once",
    ),
    "tensor": (
        "device", "link", "middle-layer", "optimizer", "loader", "quota", "gc", "sync", "stalls",
        "stopped", "link-gone", "in-turn",
    ),
    "pipeline": (
        "device", "link", "last-layer", "loader", "quota", "gc", "heavy-stage", "sync", "stalls",
        "stopped", "link-gone", "in-turn",
    ),
    "own-pipeline": (
        "device", "link", "early-layer", "loader", "quota", "gc", "heavy-stage", "jitter",
        "stopped", "no-receive", "link-gone", "in-turn", "at-once",
    ),
    "experts": (
        "device", "expert", "link", "loader", "quota", "gc", "function", "jitter", "stopped",
        "link-gone", "in-turn",
    ),
}  # fmt: skip

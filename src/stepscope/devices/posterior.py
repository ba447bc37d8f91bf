"""How likely each device is bad, by the evidence of all jobs.

The evidence of a device is added up in the order of time: between two jobs the sum decays by half
in `HALF_LIFE_DAYS`, and it is kept between `LEAST` and `MOST` after each job, as in a cumulative
sum chart (Page, Continuous inspection schemes, Biometrika 41, 1954). A device that becomes bad is
found as fast as one that always was.

    sum = clip(sum 0.5^(days since the last job / HALF_LIFE_DAYS) + evidence of the job)
    place = 1 / (1 + exp(-(log odds of PRIOR + sum)))

Where verdicts could not distinguish several devices, all of them have the sum, and share it: the
share of a device in one verdict is what the verdict gave it, times exp(sum), divided by the same of
all candidates. So a device that is a candidate in many verdicts explains those that it has in
common with others. Shares of several verdicts are averaged, weighted by their evidence now.

    probability = PRIOR + (place - PRIOR) share        (place, if the sum is below 0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import Literal

import numpy as np

from stepscope.devices.blame import Blame
from stepscope.devices.constants import (
    DRAIN,
    HALF_LIFE_DAYS,
    LEAST,
    MOST,
    PRIOR,
    PRIOR_LOG_ODDS,
    WATCH,
)
from stepscope.devices.evidence import JobEvidence
from stepscope.devices.used import Used
from stepscope.window import Floats, Ints, Mask

DAY_NS = 86_400 * 10**9

Advice = Literal["drain", "watch", "fine"]


@dataclass(frozen=True)
class Accusation:
    """One verdict of one job against a device."""

    job: str
    until_ns: int
    blame: Blame
    share: float
    """Of its blame, now that all jobs are known."""


@dataclass(frozen=True)
class Standing:
    """One device: how likely it is bad now, and why."""

    device: Used
    probability: float
    log_odds: float
    """The sum of the decayed evidence, now."""
    used: int
    """Jobs that used it."""
    accusations: tuple[Accusation, ...] = ()
    """The newest first."""
    last_used_ns: int = 0

    @property
    def bad(self) -> int:
        """Jobs that mainly blame it: with at least as much of the blame as all others have."""
        return len({one.job for one in self.accusations if one.share >= 0.5})

    @property
    def last_bad_ns(self) -> int | None:
        return max((one.until_ns for one in self.accusations if one.share >= 0.5), default=None)

    @property
    def causes(self) -> Mapping[str, int]:
        """In how many jobs it was blamed for which cause, the most frequent first."""
        found: dict[str, int] = {}
        for _, cause in {(one.job, one.blame.cause) for one in self.accusations}:
            found[cause] = found.get(cause, 0) + 1
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def advice(self) -> Advice:
        if self.probability >= DRAIN:
            return "drain"
        return "watch" if self.probability >= WATCH else "fine"


def standings(jobs: Sequence[JobEvidence], now_ns: int) -> list[Standing]:
    """All devices, the worst first. `jobs` are in the order of time."""
    sums = _Sums()
    for one in jobs:
        sums.add(one)
    now = sums.at(now_ns)
    accused = _accusations(jobs, {key: float(now[at]) for key, at in sums.index.items()})
    each = zip(sums.index, now.tolist(), sums.used.tolist(), sums.last_ns.tolist(), strict=True)
    found = [_standing(sums.newest[key], log_odds, used, accused.get(key, ()), now_ns, last_ns)
             for key, log_odds, used, last_ns in each]  # fmt: skip
    return sorted(found, key=lambda one: (-one.probability, -len(one.accusations), one.device.name))


def decay(elapsed_ns: float) -> float:
    """What is left of evidence after some time; that of a clock ahead of ours is new."""
    return float(0.5 ** (max(elapsed_ns, 0.0) / DAY_NS / HALF_LIFE_DAYS))


def probability_of(log_odds: float, share: float = 1.0) -> float:
    """The probability of a device with this sum of evidence and this share of the blame."""
    place = 1 / (1 + math.exp(-(PRIOR_LOG_ODDS + log_odds)))
    return place if place < PRIOR else PRIOR + (place - PRIOR) * share


@dataclass
class _Sums:
    """The sums of all devices, as arrays: ten thousand ranks have 40,000 devices."""

    index: dict[str, int] = field(default_factory=dict)
    newest: dict[str, Used] = field(default_factory=dict)
    """Each device by the newest of its names."""
    used: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    sum: Floats = field(default_factory=lambda: np.zeros(0))
    last_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, job: JobEvidence) -> None:
        blamed = _blamed(job)
        accused = self._numbers([device for device, _ in blamed])
        healthy = [(self._numbers(one.devices), one.log_odds) for one in job.healthy]
        others = self._numbers(job.unjudged)
        count = len(self.index)
        self.used = _grown(self.used, count)
        self.sum, self.last_ns = _grown(self.sum, count), _grown(self.last_ns, count)
        said = _marked(count, accused)
        self.used += _marked(count, accused, others, *(some for some, _ in healthy))
        for some, log_odds in (*healthy, (others, 0.0)):
            self._say(some[~said[some]], log_odds, job.until_ns)
            said[some] = True
        self._say(accused, np.array([log_odds for _, log_odds in blamed]), job.until_ns)

    def at(self, now_ns: int) -> Floats:
        """The sums as they are now."""
        return self._decayed(np.arange(len(self.index)), now_ns)

    def _say(self, at: Ints, log_odds: float | Floats, now_ns: int) -> None:
        self.sum[at] = np.clip(self._decayed(at, now_ns) + log_odds, LEAST, MOST)
        self.last_ns[at] = np.maximum(self.last_ns[at], now_ns)

    def _decayed(self, at: Ints, now_ns: int) -> Floats:
        days = np.maximum(now_ns - self.last_ns[at], 0) / DAY_NS
        decayed: Floats = self.sum[at] * 0.5 ** (days / HALF_LIFE_DAYS)
        return decayed

    def _numbers(self, devices: Sequence[Used]) -> Ints:
        """The numbers of devices, in their order; new ones get one."""
        keys = list(map(_KEY, devices))
        self.newest.update(zip(keys, devices, strict=True))
        found = np.fromiter(map(self.index.get, keys, repeat(-1)), np.int64, len(keys))
        for place in np.flatnonzero(found < 0).tolist():
            found[place] = self.index.setdefault(keys[place], len(self.index))
        return found


_KEY = attrgetter("key")


def _marked(count: int, *numbers: Ints) -> Mask:
    """Which of so many devices are among the numbers."""
    mask = np.zeros(count, np.bool_)
    for some in numbers:
        mask[some] = True
    return mask


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate((array, np.zeros(size - len(array), array.dtype)))


def _blamed(job: JobEvidence) -> list[tuple[Used, float]]:
    """What a job says against devices; of several verdicts the strongest, as it is one job."""
    said: dict[str, tuple[Used, float]] = {}
    for blame in job.blames:
        for one in blame.candidates:
            _, before = said.get(one.device.key, (one.device, 0.0))
            said[one.device.key] = (one.device, max(before, blame.log_odds))
    return list(said.values())


def _accusations(
    jobs: Sequence[JobEvidence], sums: Mapping[str, float]
) -> dict[str, list[Accusation]]:
    """The verdicts against each device, the newest first, with its share of their blame."""
    found: dict[str, list[Accusation]] = {}
    for job in reversed(jobs):
        for blame in job.blames:
            weights = [one.share * math.exp(sums[one.device.key]) for one in blame.candidates]
            for one, weight in zip(blame.candidates, weights, strict=True):
                accusation = Accusation(job.job, job.until_ns, blame, weight / sum(weights))
                found.setdefault(one.device.key, []).append(accusation)
    return found


def _standing(
    device: Used, log_odds: float, used: int, accusations: Sequence[Accusation], now_ns: int,
    last_ns: int,
) -> Standing:  # fmt: skip
    weights = [one.blame.log_odds * decay(now_ns - one.until_ns) for one in accusations]
    whole = sum(weights)
    share = sum(weight * one.share for weight, one in zip(weights, accusations, strict=True))
    chance = probability_of(log_odds, share / whole if whole > 0 else 1.0)
    return Standing(device, chance, log_odds, used, tuple(accusations), last_ns)

"""Holmes' estimate of anomalous devices across iterations, as printed.

Paper: Holmes (2025), section 4.4 and appendix D. Symbols: R -> `irregularity_rate`, H -> `decay`,
I(d) -> `index`, p(d) -> `SHARE_OF_TYPE`, alpha -> `ALPHA`, C(d) -> adapters below a device.

    R(x) = Pearson correlation of the abnormal operator's durations with the step times
    H(d) = ln(C(d) + 1e-6 - 1) / C(d)
    I(d) = (sum over x that use d of R(x) H(d) + a(d)) / (sum over d, x of R(x) H(d) + a(d) + b(d))

As printed, H of an adapter (C = 1) is ln(1e-6) = -13.8, so that its irregularities count against
it; e was probably meant instead of 1e-6, with which H would be 1. The denominator is the same sum
for all devices up to a and b, and may be negative. Neither alpha nor the decay of a GPU is printed:
alpha is 1 here, and GPUs are not damped ("for a network device d").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.window import Floats

EPSILON = 1e-6
"""Appendix D. Paper."""
ALPHA = 1.0
"""The scale of the prior, which the paper does not print. Our choice."""
SHARE_OF_TYPE: Mapping[str, float] = {
    "gpu": 0.587, "nic": 0.183, "link": 0.095, "nvlink": 0.095, "switch": 0.048, "cpu": 0.032,
}  # fmt: skip
"""p(d): table 1, the types of 126 anomalous devices. NVLinks are counted as links. Paper."""
OTHER = 0.055
"""Of all other types. Table 1. Paper."""


@dataclass(frozen=True)
class NamedDevice:
    """A device: its type, its name, and C(d), the number of adapters below it (0: not damped)."""

    type: str
    name: str
    below: int


@dataclass(frozen=True)
class Irregularity:
    """x: what was found in one step, its rate R, and the devices that it uses."""

    rate: float
    devices: Sequence[NamedDevice]


def irregularity_rate(operator_ns: Floats, step_ns: Floats) -> float:
    """R(x), over the steps in which both are known; 0 where one of them never varies."""
    known = np.isfinite(operator_ns) & np.isfinite(step_ns)
    if known.sum() < 2:
        return 0.0
    x, y = operator_ns[known], step_ns[known]
    x, y = x - x.mean(), y - y.mean()
    power = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / power if power > 0 else 0.0


def decay(below: int) -> float:
    """H(d); 1 for a device that is not part of the network."""
    return math.log(below + EPSILON - 1) / below if below else 1.0


def index(found: Sequence[Irregularity]) -> dict[NamedDevice, float]:
    """I(d) of every device that some irregularity uses."""
    rates: dict[NamedDevice, float] = {}
    for one in found:
        for device in one.devices:
            rates[device] = rates.get(device, 0.0) + one.rate * decay(device.below)
    total = sum(rates.values())
    return {one: _share(one, rate, total) for one, rate in rates.items()}


def _share(device: NamedDevice, rate: float, total: float) -> float:
    prior = SHARE_OF_TYPE.get(device.type, OTHER)
    a, b = ALPHA * prior, ALPHA * (1 - prior)
    whole = total + a + b
    return (rate + a) / whole if whole else 0.0


def ranked(found: Mapping[NamedDevice, float], most: int) -> list[tuple[NamedDevice, float]]:
    """The top K devices; equal ones by their names."""
    return sorted(found.items(), key=lambda one: (-one[1], one[0].type, one[0].name))[:most]

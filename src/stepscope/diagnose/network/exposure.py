"""Which device explains slow connections: a likelihood ratio with the exposure of every device.

Paper: Holmes (Yao et al., 2025), section 4.4 and appendix D, adds up what is slow on the paths
through a device and damps that by the adapters below it, which finds a bad spine in none of 100
simulated jobs. Here all paths through a device count, slow or not (algorithm notes, section 3: leaf
pairs, spines and adapters found in 100 of 100):

    LR(d) = slow paths * log(p1 / p0) + other paths * log((1 - p1) / (1 - p0))

p1, p0: the chance that a path is slow if the device is, and if it is not. Devices that only some of
whose paths are slow, such as the other members of a ring, thereby fall behind.
A path goes from one adapter to its leaf switch, over a spine switch to another leaf and adapter. So
two sums per path (one table for each end, by adapter and spine) are enough; all other devices are
sums over these tables.
Cost: 4 ms per sum for 640,000 paths of 8,192 adapters.
Cannot see: which spine a path takes, where nobody recorded it; it then counts for each in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.network.likelihood import STRAY
from stepscope.diagnose.network.topology import SUFFERS
from stepscope.window import Floats, Ints


@dataclass(frozen=True)
class Fabric:
    """Adapters, the leaf of each (-1: unknown), and how many leaves and spines there are."""

    leaf_of: Ints
    leaves: int
    spines: int


@dataclass(frozen=True)
class PathSums:
    """A weight of all paths, summed for each device that they pass."""

    by_nic: Floats
    """Also of the cable between an adapter and its leaf."""
    by_leaf: Floats
    by_spine: Floats
    by_uplink: Floats
    """`[leaf, spine]`: of the cable between them."""

    def flat(self) -> Floats:
        return np.concatenate((self.by_nic, self.by_leaf, self.by_spine, self.by_uplink.ravel()))


@dataclass(frozen=True)
class Connections:
    """Paths between two adapters; `spine` is -1 for those that stay below one leaf."""

    fabric: Fabric
    source: Ints
    target: Ints
    spine: Ints

    @cached_property
    def _keys(self) -> tuple[Ints, Ints]:
        """Table cells by adapter and spine; the last cell of an adapter is for paths without a
        spine."""
        width = self.fabric.spines + 1
        spine = np.where(self.spine < 0, self.fabric.spines, self.spine)
        return self.source * width + spine, self.target * width + spine

    def sums(self, weight: Floats) -> PathSums:
        """Adds up a weight of each path. A path counts once for a device, at most."""
        one, width = self.fabric, self.fabric.spines + 1
        source, target = (
            np.bincount(key, weight, one.leaf_of.size * width).reshape(-1, width)
            for key in self._keys
        )
        by_end = source + target
        by_leaf = np.zeros((one.leaves + 1, width))  # the last one is for unknown leaves
        np.add.at(by_leaf, one.leaf_of, by_end)
        by_leaf = by_leaf[: one.leaves]
        inside = by_leaf[:, -1] / 2  # both ends are below this leaf
        return PathSums(
            by_end.sum(axis=1), by_leaf[:, :-1].sum(axis=1) + inside,
            source[:, :-1].sum(axis=0), by_leaf[:, :-1],
        )  # fmt: skip


def log_ratios(slow: Floats, paths: Floats) -> Floats:
    """LR of each device, from its slow paths and all of its paths."""
    hit = np.log(SUFFERS / STRAY)
    missed = np.log((1 - SUFFERS) / (1 - STRAY))
    return np.asarray(slow * hit + (paths - slow) * missed)


def posterior(log: Floats, prior: Sequence[float] | Floats) -> Floats:
    """The probability of each device if one of them is slow: the maximum is the MAP estimate."""
    weight = log + np.log(np.asarray(prior))
    weight = np.exp(weight - weight.max())
    return np.asarray(weight / weight.sum())

"""Random numbers that depend only on their purpose, not on what was drawn before.

A draw is keyed by (seed, purpose, step) and ordered by place. Adding a fault, renumbering the ranks
or leaving out a table changes no other random number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Floats

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Random:
    """The random numbers of one scenario."""

    seed: int

    def source(self, purpose: str, step: int = 0) -> np.random.Generator:
        """The generator for one purpose in one step (or for the whole job)."""
        text = f"{self.seed}/{purpose}".encode()
        key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return np.random.Generator(np.random.Philox(key=np.array([key, step], np.uint64)))

    def factors(self, purpose: str, spread: float, shape: tuple[int, ...], step: int = 0) -> Floats:
        """Log-normal factors with median 1, places along the first axis."""
        if not spread:
            return np.ones(shape)
        return np.exp(spread * self.source(purpose, step).standard_normal(shape))

    def many_factors(
        self, purpose: str, spread: float, shape: tuple[int, int], step: int
    ) -> Floats32:
        """The same for `[place, slot]`, in single precision, returned as `[slot, place]`."""
        if not spread:
            return np.ones(shape[::-1], np.float32)
        drawn = self.source(purpose, step).standard_normal(shape, np.float32)
        drawn *= np.float32(spread)
        return np.ascontiguousarray(np.exp(drawn, out=drawn).T)


def job_factors(random: Random, wobble: float, drift: float, steps: int) -> Floats:
    """How many times longer everything takes in each step, on all ranks.

    The product of a log-normal first-order autoregression with a half-life of ten steps, and a
    random walk that has typically drifted by `drift` at the end.
    """
    memory = 0.5**0.1
    fresh = random.source("wobble").standard_normal(steps) * wobble * np.sqrt(1 - memory**2)
    wave = np.zeros(steps)
    for step in range(1, steps):
        wave[step] = memory * wave[step - 1] + fresh[step]
    walk = np.cumsum(random.source("drift").standard_normal(steps)) / np.sqrt(max(steps, 1))
    factors: Floats = np.exp(wave + drift * walk)
    return factors

"""Random numbers that depend on what they are for, and on nothing that happened before.

A draw is keyed by (seed, purpose, step) and lies in order of places: a fault that is added, a rank
that is renamed or a table that is left out changes no other number.
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
        """The generator of one purpose in one step (or once per job)."""
        text = f"{self.seed}/{purpose}".encode()
        key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return np.random.Generator(np.random.Philox(key=np.array([key, step], np.uint64)))

    def factors(self, purpose: str, spread: float, shape: tuple[int, ...], step: int = 0) -> Floats:
        """Log-normal factors of median 1, places along the first axis."""
        if not spread:
            return np.ones(shape)
        return np.exp(spread * self.source(purpose, step).standard_normal(shape))

    def many_factors(
        self, purpose: str, spread: float, shape: tuple[int, int], step: int
    ) -> Floats32:
        """The same, of `[place, slot]`, in single precision and returned as `[slot, place]`."""
        if not spread:
            return np.ones(shape[::-1], np.float32)
        drawn = self.source(purpose, step).standard_normal(shape, np.float32)
        drawn *= np.float32(spread)
        return np.ascontiguousarray(np.exp(drawn, out=drawn).T)


def job_pace(random: Random, wobble: float, drift: float, steps: int) -> Floats:
    """How many times longer everything takes in each step, for all ranks.

    A first-order autoregression that forgets half in ten steps, and a random walk that has drifted
    by `drift` at the end, typically.
    """
    memory = 0.5**0.1
    fresh = random.source("wobble").standard_normal(steps) * wobble * np.sqrt(1 - memory**2)
    wave = np.zeros(steps)
    for step in range(1, steps):
        wave[step] = memory * wave[step - 1] + fresh[step]
    walk = np.cumsum(random.source("drift").standard_normal(steps)) / np.sqrt(max(steps, 1))
    pace: Floats = np.exp(wave + drift * walk)
    return pace

"""Method `periods`: false alarms on slow steps at random, what is found, and in which unit.

    python benchmarks/periods.py [--trials 2000] [--seed 0]

Prints how many series with random slow steps, and with bursts of them, show a period (the limit is
1 in 1,000); how many series with a period show it, and in which unit; and the time of a series.
Steps scatter by 3 %, slow ones take half as long again, and a random 2 % are slow besides.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from stepscope.diagnose.numeric.combs import Axis, Comb, combs
from stepscope.window import Floats, Ints, Mask

NOISE, STEP_NS, SLOW_NS, BESIDE = 0.03, 1e9, 5e8, 0.02
BURST, DENSITY = 40, 0.35
"""Steps of a burst, and the share of them that is slow."""
Random = np.random.Generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    for steps in (100, 300, 1000, 4000):
        _false_alarms(random, steps, max(options.trials * 100 // steps, 20))
    for steps in (200, 400, 1000):
        _found(random, steps, max(options.trials // 20, 20))


def _false_alarms(random: Random, steps: int, trials: int) -> None:
    for rate in (0.02, 0.05, 0.1, 0.3):
        at_random = sum(_any(random, random.random(steps) < rate) for _ in range(trials))
        in_bursts = sum(_any(random, _bursts(random, steps, rate)) for _ in range(trials))
        began = time.perf_counter()
        _any(random, random.random(steps) < rate)
        took = time.perf_counter() - began
        print(f"{steps} steps, {rate:.0%} slow: {at_random} of {trials} series with random slow "
              f"steps, {in_bursts} of {trials} with bursts; {1e3 * took:.1f} ms a series",
              flush=True)  # fmt: skip


def _any(random: Random, slow: Mask) -> bool:
    return bool(combs(_axis(_lasted(random, slow.size) + SLOW_NS * slow), _begins(slow), 1, 3))


def _bursts(random: Random, steps: int, rate: float) -> Mask:
    slow = np.zeros(steps, np.bool_)
    for first in random.integers(0, steps, max(int(rate * steps / BURST / DENSITY), 1)):
        slow[first : first + BURST] |= random.random(slow[first : first + BURST].size) < DENSITY
    return slow


def _found(random: Random, steps: int, trials: int) -> None:
    """How many series with a period show it, by the unit in which it is given."""
    for unit, distance in (("steps", 10), ("steps", 50), ("seconds", 12.37), ("seconds", 60.0)):
        for missing in (0.0, 0.1):
            play = _by_steps if unit == "steps" else _by_seconds
            says = Counter(_says(random, play, steps, distance, missing) for _ in range(trials))
            told = ", ".join(f"{count} {what}" for what, count in says.most_common())
            print(f"{steps} steps, every {distance} {unit}, {missing:.0%} left out: {told}",
                  flush=True)  # fmt: skip


def _says(
    random: Random,
    play: Callable[..., tuple[Floats, Mask]],
    steps: int,
    distance: float,
    gap: float,
) -> str:
    lasted, slow = play(random, steps, distance, gap)
    found = combs(_axis(lasted), _begins(slow), 1, 1)
    return _unit(found[0], distance) if found else "nothing"


def _unit(comb: Comb, distance: float) -> str:
    either = " (or the other)" if comb.either is not None else ""
    scales = {"steps": 1.0, "seconds": 1e9}
    known = abs(comb.distance / scales[comb.unit] - distance) <= 0.02 * distance
    return f"in {comb.unit}{either}" if known else f"in {comb.unit}, other distance"


def _by_steps(random: Random, steps: int, every: float, gap: float) -> tuple[Floats, Mask]:
    slow = random.random(steps) < BESIDE
    due = np.arange(int(every) - 1, steps, int(every))
    slow[due[random.random(due.size) >= gap]] = True
    return _lasted(random, steps) + SLOW_NS * slow, slow


def _by_seconds(random: Random, steps: int, every: float, gap: float) -> tuple[Floats, Mask]:
    lasted, slow = _lasted(random, steps), random.random(steps) < BESIDE
    clock, due = 0.0, every * 1e9 * random.random()
    for step in range(steps):
        if clock + lasted[step] > due:
            slow[step] |= random.random() >= gap
            due += every * 1e9
        lasted[step] += SLOW_NS * slow[step]
        clock += lasted[step]
    return lasted, slow


def _lasted(random: Random, steps: int) -> Floats:
    return np.asarray(STEP_NS * np.exp(NOISE * random.normal(size=steps)))


def _axis(lasted: Floats) -> Axis:
    begins = (np.cumsum(lasted) - lasted).astype(np.int64)
    return Axis(np.arange(lasted.size), begins, STEP_NS)


def _begins(slow: Mask) -> Ints:
    return np.flatnonzero(slow & ~np.append(False, slow[:-1]))


if __name__ == "__main__":
    main()

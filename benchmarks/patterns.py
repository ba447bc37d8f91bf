"""Benchmark of runtime behaviour patterns: beta, the innermost calls, and Algorithm 1.

    python -m benchmarks.patterns [--events 1000000] [--samples 200000] [--rounds 5]

Events are of a rank on a GPU (30 % kernels on two streams, copies, collectives, Python), in windows
of 20 seconds; calls are nested Python functions, in the same order in every step, or in any order.
Beta is also done as the paper reads, by a sweep in Python over fewer events, and Algorithm 1 as the
paper's bisection, in Python and in numpy. All results are compared first. Times are CPU times of
this process, the minimum of several interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping

import numpy as np

from stepscope.patterns.compiled import busiest, critical_ns, innermost
from stepscope.patterns.use import SHARE
from stepscope.window import Floats, Ints

WINDOW_NS = 20_000_000_000
SHARES = (0.3, 0.05, 0.05, 0.6)
"""Of events in each class: kernels, copies, collectives, Python functions."""
BUSY = (0.45, 0.2, 0.8, 3.0)
"""The mean length of an event of each class, in mean distances of its events."""
FUNCTIONS = (12, 4, 4, 200)
LEVELS = 5
ROOT_NS = 1000 * 3**LEVELS
"""Time between two calls of the outermost level."""
FEWER = 20
"""The Python versions get one in so many events or samples."""
Class = tuple[Ints, Ints, Ints]
"""Start, end and function, in order of start."""
Ways = Mapping[str, tuple[int, Callable[[], object]]]
"""For each version, its number of events or samples, and the function."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    ways = {
        **of_beta(given.events), **of_calls(given.events), **of_durations(given.samples),
    }  # fmt: skip
    for name, (count, seconds) in timed(ways, given.rounds).items():
        rate = count / seconds / 1e6
        print(f"{name}: {count:,} in {1e3 * seconds:.2f} ms, {rate:.2f} million a second")


def timed(ways: Ways, rounds: int) -> dict[str, tuple[int, float]]:
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, (_, run) in ways.items():
            began = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - began)
    return {name: (ways[name][0], seconds) for name, seconds in best.items()}


def of_beta(events: int) -> Ways:
    many, few = classes(events), classes(events // FEWER)
    packed = tuple(map(packed_columns, many))
    functions = sum(FUNCTIONS)
    fast = np.frombuffer(
        critical_ns(tuple(map(packed_columns, few)), functions, 0, WINDOW_NS), np.int64
    )
    assert fast.tolist() == swept(few, functions)
    return {
        "beta": (events, lambda: critical_ns(packed, functions, 0, WINDOW_NS)),
        "beta, sweep in Python": (events // FEWER, lambda: swept(few, functions)),
    }


def of_calls(events: int) -> Ways:
    number = nested_calls(events, 3)[0].size
    same, other = (packed_columns(nested_calls(events, one)) for one in (3, None))
    return {
        "innermost calls": (number, lambda: innermost(*same)),
        "innermost calls, any order": (number, lambda: innermost(*other)),
    }


def of_durations(samples: int) -> Ways:
    use, few = bursts(samples), bursts(samples // FEWER)
    begin, end = np.array([0]).tobytes(), np.array([samples]).tobytes()
    packed = use.tobytes()

    def fast() -> tuple[int, int]:
        spans, _ = busiest(packed, begin, end, SHARE, 0.0)
        first, last = np.frombuffer(spans, np.int64).tolist()
        return first, last

    assert fast() == bisected(use) and bisected_slowly(few) == bisected(few)
    return {
        "Algorithm 1": (samples, fast),
        "Algorithm 1, bisection in numpy": (samples, lambda: bisected(use)),
        "Algorithm 1, bisection in Python": (few.size, lambda: bisected_slowly(few)),
    }


def classes(events: int) -> list[Class]:
    """A window of events in four classes."""
    random = np.random.default_rng(0)
    made: list[Class] = []
    first = 0
    for share, busy, functions in zip(SHARES, BUSY, FUNCTIONS, strict=True):
        count = int(events * share)
        start = np.sort(random.integers(0, WINDOW_NS, count))
        length = random.exponential(busy * WINDOW_NS / count, count).astype(np.int64) + 1
        if not made:  # kernels follow one another; two streams overlap a little
            length = np.minimum(length, np.diff(start, append=WINDOW_NS) + 200)
        of = random.integers(first, first + functions, count)
        made.append((start, np.minimum(start + length, WINDOW_NS), of))
        first += functions
    return made


def nested_calls(events: int, period: int | None) -> Class:
    """Calls of five levels, of ten functions each; three times as many in each as in the last.

    Args:
        period: after so many calls of a level the same functions follow; None: at random.
    """
    starts, ends, of = [], [], []
    roots = events * 2 // (3**LEVELS - 1)
    for level in range(LEVELS):
        count, apart = roots * 3**level, ROOT_NS // 3**level
        start = np.arange(count) * apart + 10 * level
        at = np.arange(count) if period else np.random.default_rng(level).integers(0, 10, count)
        starts.append(start)
        ends.append(start + apart - 20 * level - 10)
        of.append(at % (period or 10) + 10 * level)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.lexsort((-end, start))
    return start[order], end[order], np.concatenate(of)[order]


def packed_columns(events: Class) -> tuple[bytes, bytes, bytes]:
    start, end, of = events
    return start.tobytes(), end.tobytes(), of.astype(np.int32).tobytes()


def swept(some: list[Class], functions: int) -> list[int]:
    """Equations 2 and 3 by a sweep over all starts and ends."""
    moments = []
    for at, (start, end, of) in enumerate(some):
        for one, other, function in zip(start.tolist(), end.tolist(), of.tolist(), strict=True):
            moments += [(one, 1, at, function), (other, -1, at, function)]
    moments.sort()
    running: list[dict[int, int]] = [{} for _ in some]
    times, last = [0] * functions, 0
    for now, change, at, function in moments:
        if now > last:
            for function_on_path in next((one for one in running if one), ()):
                times[function_on_path] += now - last
            last = now
        left = running[at].get(function, 0) + change
        running[at][function] = left
        if not left:
            del running[at][function]
    return times


def bursts(samples: int) -> Floats:
    """Use in bursts of a hundred samples, with single zeros in them."""
    random = np.random.default_rng(0)
    on = np.repeat(random.random(samples // 100 + 1) < 0.4, 100)[:samples]
    return np.asarray(random.random(samples) * on * (random.random(samples) < 0.9))


def bisected(use: Floats) -> tuple[int, int]:
    """Algorithm 1 as printed, each of its checks in numpy."""
    used = np.flatnonzero(use)
    pause, total = np.diff(used) - 1, float(use.sum())
    left, right, best = 0, use.size, (0, use.size)
    while left <= right:
        g = (left + right) // 2
        begins = np.concatenate(([0], 1 + np.flatnonzero(pause > g)))
        sums = np.add.reduceat(use[used], begins)
        at = int(np.argmax(sums))
        if sums[at] >= SHARE * total * (1 - 1e-9):
            last = begins[at + 1] - 1 if at + 1 < begins.size else used.size - 1
            best, right = (int(used[begins[at]]), int(used[last]) + 1), g - 1
        else:
            left = g + 1
    return best


def bisected_slowly(use: Floats) -> tuple[int, int]:
    """Algorithm 1 as printed, sample by sample."""
    values = use.tolist()
    need = SHARE * sum(values) * (1 - 1e-9)
    left, right, best = 0, len(values), (0, len(values))
    while left <= right:
        g = (left + right) // 2
        found = _enough(values, need, g)
        if found is not None:
            best, right = found, g - 1
        else:
            left = g + 1
    return best


def _enough(values: list[float], need: float, g: int) -> tuple[int, int] | None:
    begin = end = 0
    total, found = 0.0, False
    for at, value in enumerate(values):
        if not value:
            continue
        if at - end > g:
            if found:
                break
            begin, total = at, 0.0
        begin = at if not total else begin
        total, end = total + value, at + 1
        found = found or total >= need
    return (begin, end) if found else None


if __name__ == "__main__":
    main()

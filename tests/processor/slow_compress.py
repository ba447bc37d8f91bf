"""Modes of durations in plain numpy, one group at a time: the slow twins of native/.

Densities are direct sums over all samples, as the papers print them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Floats, Ints

Triple = tuple[int, int, int]
"""Count, p50, p99."""
SPACING = math.log(1.10)


def published_slowly(durations: Ints) -> list[Triple]:
    """ARGUS, section 5.2."""
    values = np.sort(np.maximum(durations, 1))
    logs = np.log(values)
    least, samples = least_samples(len(logs)), len(logs)
    begin, last, ends = 0, -math.inf, []
    for valley, _ in valleys(*density(logs, scott(logs), steps=8)):
        end = int((logs <= valley).sum())
        enough = end - begin >= least and samples - end >= least
        if enough and valley - last >= SPACING:
            ends.append(end)
            begin, last = end, valley
    return triples(values, [*ends, samples])


def divided_slowly(durations: Ints, widen: float = 1) -> list[Triple]:
    """The default: deepest valleys of what histograms keep, each side anew.

    Args:
        widen: by how much bandwidths are wider.
    """
    values, logs = binned(durations)
    ends = divide(values, widen, logs, 0, len(logs), least_samples(len(logs)))
    while len(ends) > 1:
        middles = [math.log(p50) for _, p50, _ in triples(values, ends)]
        gaps = np.diff(middles)
        if gaps.min() >= SPACING:
            break
        del ends[int(gaps.argmin())]
    return triples(values, ends)


def divide(values: Ints, widen: float, logs: Floats, begin: int, end: int, least: int) -> list[int]:
    part = logs[begin:end]
    if end - begin < 2 * least:
        return [end]
    floor = max(1 / 128, 32 / triples(values[begin:end], [len(part)])[0][1])
    bandwidth = widen * max(scott(part), floor)
    cut, doubtful = deepest(part, bandwidth, least)
    if cut == len(part) and (doubtful or bandwidth > SPACING / 2) and bandwidth > floor:
        cut, _ = deepest(part, max(bandwidth / 2, floor), least)
    if cut == len(part):
        return [end]
    middle = begin + cut
    left = divide(values, widen, logs, begin, middle, least)
    return [*left, *divide(values, widen, logs, middle, end, least)]


def deepest(logs: Floats, bandwidth: float, least: int) -> tuple[int, bool]:
    """How many lie before the deepest valley, and whether there are some that may be chance."""
    grid, curve = density(logs, bandwidth, steps=4)
    best, cut, doubtful = 0.7, len(logs), False
    for valley, at in valleys(grid, curve):
        low, peak = curve[at], min(curve[:at].max(), curve[at:].max())
        left = int((logs <= valley).sum())
        if low >= best * peak or not least <= left <= len(logs) - least:
            continue
        if peak - low < 2.5 * math.sqrt((peak + low) / math.sqrt(2)):
            doubtful = True
        else:
            best, cut = low / peak, left
    return cut, doubtful


def least_samples(samples: int) -> int:
    return max(5, math.ceil(samples / 100))


def scott(logs: Floats) -> float:
    return float(1.06 * logs.std() * len(logs) ** -0.2)


def density(logs: Floats, bandwidth: float, steps: int) -> tuple[Floats, Floats]:
    """The grid and the sum of all samples' curves on it."""
    if len(logs) < 2 or logs[0] == logs[-1]:
        return np.zeros(0), np.zeros(0)
    points = int((logs[-1] - logs[0]) / bandwidth * steps + 6 * steps) + 2
    grid = logs[0] + (np.arange(points) / steps - 3) * bandwidth
    return grid, np.exp(-0.5 * ((grid[:, None] - logs) / bandwidth) ** 2).sum(axis=1)


def valleys(grid: Floats, curve: Floats) -> Iterator[tuple[float, int]]:
    """Local minima: where they are, and their place on the grid; what is 0 nearly is flat."""
    curve = np.where(curve < 1e-4, 0, curve)
    at = 1
    while at < len(curve) - 1:
        last = at
        while last < len(curve) - 1 and curve[last + 1] == curve[at]:
            last += 1
        if last < len(curve) - 1 and curve[at - 1] > curve[at] < curve[last + 1]:
            yield float(grid[(at + last) // 2]), (at + last) // 2
        at = last + 1


def triples(values: Ints, ends: Sequence[int]) -> list[Triple]:
    """Of sorted values, cut at places."""
    parts = [values[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    places = [((len(part) - 1) // 2, math.ceil(99 * len(part) / 100) - 1) for part in parts]
    return [(len(part), int(part[p50]), int(part[p99]))
            for part, (p50, p99) in zip(parts, places, strict=True)]  # fmt: skip


def binned(durations: Ints) -> tuple[Ints, Floats]:
    """What a histogram knows of durations: the samples of a bin, evenly, and the bin's middle."""
    octave = np.array([int(d).bit_length() - 1 for d in np.maximum(durations, 1)])
    width = 1 << np.maximum(octave - 7, 0)
    first, counts = np.unique(np.maximum(durations, 1) // width * width, return_counts=True)
    widths = [1 << max(int(f).bit_length() - 8, 0) for f in first]
    values = [f + int((k + 0.5) / c * w) for f, c, w in zip(first, counts, widths, strict=True)
              for k in range(c)]  # fmt: skip
    logs = np.log(first + (np.array(widths) - 1) / 2)
    return np.array(values, np.int64), np.repeat(logs, counts)


def host_minute(
    ranks: int, groups: int = 100, events: int = 100_000, seed: int = 0
) -> tuple[NDArray[np.uint32], Ints, Ints]:
    """Groups and durations of a minute of a host in no order, and how many modes each group has.

    Every rank runs the same kernels: 1 to 4 modes, 1.5 to 6 times apart, of 1 to 8 % spread; some
    kernels run a hundred times as often as others.
    """
    rng = np.random.default_rng(seed)
    modes = rng.choice([1, 2, 3, 4], groups, p=[0.45, 0.3, 0.15, 0.1])
    sizes = 1 / np.arange(1, groups + 1) ** 0.8
    sizes = np.maximum(sizes / sizes.sum() * events, 60).astype(int)
    rng.shuffle(sizes)
    number, took = [], []
    for group in range(groups):
        steps = np.cumsum([rng.uniform(7.6, 14.5), *np.log(rng.uniform(1.5, 6, modes[group] - 1))])
        spread = rng.uniform(0.01, 0.08, modes[group])
        share = np.maximum(rng.dirichlet(np.full(modes[group], 3.0)), 0.05)
        for rank in range(ranks):
            mode = rng.choice(modes[group], sizes[group], p=share / share.sum())
            log = steps[mode] + spread[mode] * rng.standard_normal(sizes[group])
            took.append(np.exp(log))
            number.append(np.full(sizes[group], rank * groups + group))
    order = rng.permutation(ranks * sizes.sum())
    all_modes = np.tile(modes, ranks).astype(np.int64)
    return (
        np.concatenate(number)[order],
        np.rint(np.concatenate(took))[order].astype(int),
        all_modes,
    )

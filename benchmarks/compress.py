"""Benchmark of kernel-event compression in C++ and in plain numpy: speed, modes, bytes, and errors.

    python -m benchmarks.compress [--rounds 40] [--seed 0]

The input is a synthetic minute of a host: 8 ranks with 1e5 kernels each, 100 pairs of kernel and
stream, each with 1 to 4 modes. Measured are both methods of `processor.compress.modes`, and
`SummaryWindows` fed with packets of half a second of one rank. The plain form, group by group with
a direct sum, processes one rank. Times are CPU times of this process, the minimum of several
interleaved rounds; they include copying the input for the native code.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.processor.slow_compress import host_minute, published_slowly

from stepscope.processor.compress.modes import Histograms, Modes, as_published
from stepscope.processor.compress.windows import Finished, SummaryWindows
from stepscope.store.encode import arrow_table, parquet_bytes
from stepscope.trace.modes import WINDOW_NS
from stepscope.window import Ints

RANKS, GROUPS = 8, 100
PACKETS = 120
"""Packets of one rank per minute."""
OUTLIERS, LONGER = 0.005, (10, 60)
"""Share of outliers, and how many times longer they take."""


@dataclass(frozen=True)
class Minute:
    """The kernels that the ranks of a host ran in a minute."""

    groups: NDArray[np.uint32]
    durations: Ints
    truth: Ints

    def of_rank(self, rank: int) -> tuple[NDArray[np.uint32], Ints]:
        mine = self.groups // GROUPS == rank
        return self.groups[mine], self.durations[mine]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    minute = Minute(*host_minute(RANKS, GROUPS, seed=arguments.seed))
    print(f"load {os.getloadavg()[0]:.1f}; {len(minute.durations)} events, "
          f"{len(minute.truth)} groups; best CPU time of {arguments.rounds}")  # fmt: skip
    compare_speed(minute, arguments.rounds)
    compare_modes(minute, "as they are")
    compare_modes(with_outliers(minute), "0.5 % outliers")
    show_size(minute)
    show_error(minute)


def compare_speed(minute: Minute, rounds: int) -> None:
    ranks = [minute.of_rank(rank) for rank in range(RANKS)]
    packets = in_packets(minute)
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "plain numpy, one rank": (len(ranks[0][0]), lambda: slowly(*ranks[0])),
        "as published": (len(minute.groups), lambda: published(minute)),
        "histograms": (len(minute.groups), lambda: summed_up([(minute.groups, minute.durations)])),
        "histograms, rank by rank": (len(minute.groups), lambda: summed_up(ranks)),
        "windows, packet by packet": (len(minute.groups), lambda: through_windows(packets)),
    }
    least = dict.fromkeys(ways, float("inf"))
    for number in range(rounds):
        for name, (_, run) in ways.items():
            if number < 3 or "plain" not in name:
                least[name] = min(least[name], processor_time(run))
    naive = least["plain numpy, one rank"] / ways["plain numpy, one rank"][0]
    for name, (events, _) in ways.items():
        each = least[name] / events
        print(f"{name:28} {least[name] * 1e3:8.2f} ms {1e-6 / each:8.2f} M events/s "
              f"{naive / each:7.1f} times plain numpy")  # fmt: skip


def processor_time(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def slowly(groups: NDArray[np.uint32], durations: Ints) -> object:
    return [published_slowly(durations[groups == group]) for group in range(GROUPS)]


def published(minute: Minute) -> Modes:
    return as_published(minute.groups, minute.durations, len(minute.truth))[0]


def summed_up(parts: list[tuple[NDArray[np.uint32], Ints]]) -> Modes:
    histograms = Histograms()
    for groups, durations in parts:
        histograms.add(groups, durations)
    return histograms.modes()


Packet = tuple[int, Ints, Ints, Ints, Ints]


def in_packets(minute: Minute) -> list[Packet]:
    """Rank, kernels, streams, durations and ends."""
    packets: list[Packet] = []
    for rank in range(RANKS):
        groups, durations = minute.of_rank(rank)
        kernels = (groups % GROUPS).astype(np.int64)
        ends = np.linspace(0, WINDOW_NS - 1, len(groups)).astype(np.int64)
        columns = (kernels, kernels % 7, durations, ends)
        parts = zip(*(np.array_split(column, PACKETS) for column in columns), strict=True)
        packets += [(rank, *part) for part in parts]
    return packets


def through_windows(packets: list[Packet]) -> Finished:
    windows = SummaryWindows()
    for rank, kernels, streams, durations, ends in packets:
        windows.add(rank, kernels, streams, durations, ends, now_ns=0)
    (finished,) = windows.finish()
    return finished


def with_outliers(minute: Minute) -> Minute:
    rng = np.random.default_rng(9)
    slow = rng.random(len(minute.durations)) < OUTLIERS
    times = np.where(slow, rng.uniform(*LONGER, len(slow)), 1)
    return Minute(minute.groups, (minute.durations * times).astype(np.int64), minute.truth)


def compare_modes(minute: Minute, what: str) -> None:
    found = {"as published": published(minute),
             "histograms": summed_up([(minute.groups, minute.durations)])}  # fmt: skip
    for name, modes in found.items():
        counts = np.bincount(modes["group"], minlength=len(minute.truth))
        print(f"true number of modes, {what}, {name}: {(counts == minute.truth).mean():.2%}, "
              f"too many {(counts > minute.truth).mean():.2%}")  # fmt: skip


def show_size(minute: Minute) -> None:
    finished = through_windows(in_packets(minute))
    written = len(parquet_bytes(arrow_table("kernel_summaries", finished.rows(kernel_name))))
    packed = 4 * 4 * len(finished.modes) + 4 * len(finished.keys)
    print(f"{len(finished.modes) / RANKS:.0f} modes per rank: {packed / RANKS:.0f} B as numbers of "
          f"4 B, {written / RANKS:.0f} B as Parquet with all columns and names; "
          f"{32 * len(minute.groups) / written:.0f} times less than 32 B per event")  # fmt: skip


def kernel_name(_rank: int, number: int) -> str:
    return f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_{number}x128_ldg8_f2f_tn>"


def show_error(minute: Minute) -> None:
    """Compares percentiles from histograms with those of the same samples."""
    modes = summed_up([(minute.groups, minute.durations)])
    order = np.lexsort((minute.durations, minute.groups))
    durations = minute.durations[order]
    ends = np.cumsum(modes["count"])
    begins = ends - modes["count"]
    true = {"p50_ns": begins + (modes["count"] - 1) // 2,
            "p99_ns": begins + (99 * modes["count"] + 99) // 100 - 1}  # fmt: skip
    for name, place in true.items():
        error: Any = np.abs(modes[name] / durations[place] - 1)
        shown = [f"{np.quantile(error, share):.3%}" for share in (0.5, 0.99, 1)]
        print(f"{name} from histograms: median error {shown[0]}, of 99 % at most {shown[1]}, "
              f"largest {shown[2]}")  # fmt: skip


if __name__ == "__main__":
    main()

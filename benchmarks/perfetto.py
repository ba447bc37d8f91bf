"""Benchmark of writing Perfetto packets from kernel columns, in slices per second.

    python -m benchmarks.perfetto [--slices 1000000] [--rounds 10]

The input is a synthetic minute of a rank: kernels of a hundred names, one after the other, on one
stream. `plain` has what every trace has: begin, end and name. `queued` adds how long each kernel
waited in its stream, and an arrow from its launch. Compared with them are `plain` in numpy alone,
its compression to gzip, and the official protobuf messages (`perfetto`, built field by field like
Perfetto's own trace builder does). CPU times of this process, the minimum of several interleaved
rounds.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
from tests.perfetto.naive import trace_of

from stepscope.perfetto import protobuf
from stepscope.perfetto.members import packed, packed_parts
from stepscope.perfetto.packets import GroupWriter
from stepscope.perfetto.slices import Group, Slices, Track
from stepscope.window import Strings

NAMES = 100
NAIVE_SLICES = 20_000
GROUP = Group("rank 3", "rank 3", 5, 3, 3)
T0 = 1_766_000_000_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--slices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    count = arguments.slices
    plain, queued, few = kernels(count), kernels(count, True), kernels(NAIVE_SLICES)
    parts = list(blocks(plain))
    data = b"".join(parts)
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "official messages": (NAIVE_SLICES, lambda: trace_of(few, 5, 7).SerializeToString()),
        "plain": (count, lambda: through(plain)),
        "plain, numpy alone": (count, lambda: by_numpy(plain)),
        "queued, with arrows": (count, lambda: through(queued)),
        "packed as rows": (count, lambda: packed_parts(parts)),
        "packed by igzip": (count, lambda: packed(data)),
        "packed by zlib, level 1": (count, lambda: gzip.compress(data, 1)),
    }
    least = dict.fromkeys(ways, float("inf"))
    for number in range(arguments.rounds):
        for name, (_, run) in ways.items():
            if number < 3 or "official" not in name:
                least[name] = min(least[name], processor_time(run))
    print(f"load {os.getloadavg()[0]:.1f}; {count} slices, {len(data) / count:.0f} B each, "
          f"{len(packed_parts(parts)) / count:.1f} packed as rows, "
          f"{len(packed(data)) / count:.1f} by igzip, {len(gzip.compress(data, 1)) / count:.1f} "
          f"by zlib; best CPU time of {arguments.rounds}")  # fmt: skip
    naive = least["official messages"] / NAIVE_SLICES
    for name, (slices, _) in ways.items():
        each = least[name] / slices
        print(f"{name:24} {1e-6 / each:7.2f} M slices/s {naive / each:7.1f} times the official")


def kernels(count: int, queued: bool = False) -> Slices:
    start = T0 + np.arange(count) * 600
    names = tuple(f"void cutlass::Kernel2<gemm_{n}x128_ldg8_f2f_tn>" for n in range(NAMES))
    coded = Strings((np.arange(count) % NAMES).astype(np.int32), names)
    if not queued:
        return Slices(start, start + 400, coded)
    return Slices(start, start + 400, coded, {"queued_ns": np.arange(count) % 5000}, start)


def blocks(slices: Slices) -> Iterator[bytes]:
    writer = GroupWriter(GROUP)
    yield writer.head()
    yield from writer.track(Track("stream 7", slices))


def through(slices: Slices) -> int:
    """The number of bytes, block by block, as the compressor receives them."""
    return sum(map(len, blocks(slices)))


def by_numpy(slices: Slices) -> int:
    with patch.object(protobuf, "native_rows", None):
        return through(slices)


def processor_time(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


if __name__ == "__main__":
    main()

"""Benchmark of a processor whose ranks report every kernel, at ordinary load and far above it.

    python -m benchmarks.processor [--seconds 120] [--times 1 50] [--ranks 8]

A processor runs in its own process, as `stepscope processor` starts it, and another process feeds
it. Each rank sends a packet twice a second with its share of 1e5 kernels a minute (ARGUS, section
5.2), of a hundred names on four streams, and the steps, phases and collectives of one step per
second. Prints the processor's CPU time between the first packets and the last second (without its
start-up), its memory, and what it had to drop.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from tests.processor.producers import MS, Producer

from stepscope.processor.records.normalise import RECORD_TYPE
from stepscope.store.reader import JobReader
from stepscope.wire.frames import MAX_RECORDS, PacketKind, pack
from stepscope.wire.records import RecordKind

KERNELS_PER_MINUTE = 100_000
NAMES = 100
STREAMS = 4
TURN_SECONDS = 0.5
STEP_NS = 1_000_000_000
PARTS = 8
"""Phases and collectives of a step, one after the other."""
WARM_SECONDS = 15.0
"""By then the processor knows how long a step takes."""
JOB = "benchmark"
_WORDS = ("loader", "optimizer", "forward-compute", "dp-0", "AllReduce")


@dataclass
class Rank:
    """A simulated rank that trains in real time."""

    producer: Producer
    line: socket.socket
    told_ns: int = 0
    sent: int = 0
    refused: int = 0

    def kernels(self, count: int, now_ns: int) -> Iterator[bytes]:
        """The kernels since the last report, packet by packet."""
        starts = np.linspace(self.told_ns, now_ns - 1, count, endpoint=False).astype(np.int64)
        self.told_ns = now_ns
        records = np.zeros(count, RECORD_TYPE)
        records["kind"], records["ordinal"] = int(RecordKind.KERNEL), self.producer.ordinal
        names = np.arange(self.sent, self.sent + count) % NAMES
        columns = (len(_WORDS) + names, names % STREAMS, starts, 20_000 + 5_000 * names,
                   starts - 50_000)  # fmt: skip
        for at, column in enumerate(columns):
            records["field"][:, at] = column
        self.sent += count
        for first in range(0, count, MAX_RECORDS):
            part = records[first : first + MAX_RECORDS]
            yield pack(PacketKind.RECORDS, part.tobytes(), self.producer.pid, 0, len(part))

    def step(self) -> bytes:
        """The records of hooks for one step."""
        it = self.producer
        end = it.now_ns
        it.now_ns -= STEP_NS
        events = it.iteration(compute_ns=STEP_NS - 10 * MS)
        parts = []
        for number in range(PARTS):
            it.now_ns = end - STEP_NS + number * STEP_NS // PARTS
            operator = it.ordinal * PARTS + number
            parts += [it.phase("forward-compute"),
                      it.comm("AllReduce", operator, end_ns=it.now_ns + 5 * MS)]  # fmt: skip
        it.now_ns = end
        return it.packet(*events, *parts)

    def send(self, packet: bytes) -> None:
        """Sends like a training process: drops and counts what does not fit into the socket."""
        try:
            self.line.send(packet, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.refused += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--times", type=float, nargs="+", default=[1, 50])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--options", nargs="*", default=[], help="of the processor")
    arguments = parser.parse_args()
    for times in arguments.times:
        with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
            measure(Path(folder), arguments.ranks, times, arguments.seconds, arguments.options)


def measure(folder: Path, count: int, times: float, seconds: float, options: list[str]) -> None:
    with started(folder / "p.sock", options) as process:
        ranks = [connected(folder, rank) for rank in range(count)]
        feed(ranks, times, WARM_SECONDS)
        before, begun, peaks = cpu_seconds(process), time.monotonic(), []
        for _ in range(4):
            feed(ranks, times, seconds / 4)
            peaks.append(psutil.Process(process.pid).memory_info().rss)
        used = cpu_seconds(process) - before
        share = used / (time.monotonic() - begun)
        for rank in ranks:
            rank.line.close()
        process.terminate()
        process.wait(30)
    report(folder / JOB, ranks, times, share, peaks)


def started(path: Path, options: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stepscope.cli", "processor", "--no-stacks", *options]
    process = subprocess.Popen([*command, "--socket", str(path)])
    while not path.exists():
        time.sleep(0.05)
    return process


def connected(folder: Path, rank: int) -> Rank:
    now = time.monotonic_ns()
    producer = Producer(rank, JOB, str(folder), world_size=8, now_ns=now)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(str(folder / "p.sock"))
    line.send(producer.hello(wall_ns=time.time_ns() - now))
    line.send(producer.tell(*_WORDS, *(kernel_name(n) for n in range(NAMES))))
    return Rank(producer, line, now)


def kernel_name(number: int) -> str:
    return f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_{number}x128_ldg8_f2f_tn>"


def feed(ranks: list[Rank], times: float, seconds: float) -> None:
    """Sends in real time, one rank after the other, as real ranks do."""
    turns = int(seconds / TURN_SECONDS)
    count = round(KERNELS_PER_MINUTE * times * TURN_SECONDS / 60)
    began = time.monotonic()
    for turn in range(turns):
        for place, rank in enumerate(ranks):
            at = began + (turn + place / len(ranks)) * TURN_SECONDS
            time.sleep(max(0.0, at - time.monotonic()))
            now = rank.producer.now_ns = time.monotonic_ns()
            for packet in rank.kernels(count, now):
                rank.send(packet)
            if turn % 2 == 0:
                rank.send(rank.step())


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    used = psutil.Process(process.pid).cpu_times()
    return used.user + used.system


def report(folder: Path, ranks: list[Rank], times: float, share: float, peaks: list[int]) -> None:
    window = JobReader(str(folder)).read()
    sums, losses = window.table("kernel_summaries"), window.table("losses")
    counted = 0 if sums is None else int(sums.ints("count").sum())
    sent = sum(rank.sent for rank in ranks)
    traces = sum(file.stat().st_size for file in folder.glob("traces/**/*.gz"))
    memory = ", ".join(f"{peak / 2**20:.0f}" for peak in peaks)
    print(f"load {os.getloadavg()[0]:.1f}; {len(ranks)} ranks, {times:g} x 1e5 kernels a minute: "
          f"{share:.2%} of a core; memory {memory} MiB")  # fmt: skip
    print(f"  {sent} kernels, {sum(rank.refused for rank in ranks)} packets refused by the socket, "
          f"{counted} in summaries, traces {traces / 2**20:.1f} MiB")  # fmt: skip
    if losses is not None:
        for name in sorted(set(losses.strings("table").values)):
            rows = losses.take(losses.strings("table").equals(name)).ints("rows")
            print(f"  lost from {name}: {int(rows.sum())}")


if __name__ == "__main__":
    main()

"""Benchmark of a window of profiling: what it costs the training thread.

    python benchmarks/profile_window.py [--pairs 20]

One process trains a small model, with Python work in each step. In each pair, some steps are
profiled once by a window of ours, and once by `torch.profiler` with the same settings, in the order
ABBA; `torch.profiler` writes its trace as its users do, at the end of the steps. The cost is the
time of the profiled steps and those that follow, until both traces are written, beyond the time of
as many steps without a profiler. Prints the median ratio of ours to theirs with its 95 % bootstrap
interval, the same where theirs writes no trace at all, and the cost of a step while a window is
armed that has not begun.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.progress import track
from torch import nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.overhead import interval
from stepscope.collect import identity
from stepscope.collect.hooks import kineto
from stepscope.collect.session import Session
from stepscope.collect.windows import Windows
from stepscope.wire.profiling import Profiled, RankProfile

PROFILED, AFTER = 20, 150
"""The steps of a window, and of those after it: ours writes its trace meanwhile."""
FAR = 1 << 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(Path(folder))
        rank.ours(), rank.theirs(), rank.without_trace()  # the first of each is slower
        costs = [measured(rank, pair) for pair in track(range(pairs), "measuring")]
    ours, theirs, stops = zip(*costs, strict=True)
    for name, others in (("torch.profiler and its export", theirs), ("without export", stops)):
        ratios = [a / b for a, b in zip(ours, others, strict=True)]
        low, high = interval(ratios)
        print(
            f"a window costs {statistics.median(ours) / 1e6:.0f} ms, {name} "
            f"{statistics.median(others) / 1e6:.0f} ms: median ratio "
            f"{statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f} "
            f"({pairs} pairs, {PROFILED} steps each)"
        )
    print(f"an armed window costs {armed_ns():.0f} ns per step, none {idle_ns():.0f} ns")


def measured(rank: Rank, pair: int) -> tuple[float, float, float]:
    """The costs of ours, theirs, and theirs without a trace, in ns."""
    before = rank.plain()
    if pair % 2:
        theirs, ours = rank.theirs(), rank.ours()
    else:
        ours, theirs = rank.ours(), rank.theirs()
    stops = rank.without_trace()
    plain = (before + rank.plain()) / 2
    return ours - plain, theirs - plain, stops - plain


class Rank:
    """A training thread: this one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rank0.json.gz"
        self.session = new_session()
        self.windows = kineto.install(self.session)
        self._model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(12)])
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4)

    def step(self) -> None:
        sum(hash(str(number)) for number in range(500))
        self._optimizer.zero_grad()
        self._model(torch.ones(64, 128)).square().mean().backward()
        self._optimizer.step()
        self.session.stepped()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def plain(self) -> float:
        return timed(lambda: self.train(PROFILED + AFTER))

    def ours(self) -> float:
        """The steps after the window end when the trace is written, or later."""
        done = threading.Event()

        def answer(reply: Profiled) -> None:
            assert reply.trouble is None and reply.note is None, "all steps were recorded"
            done.set()

        first = self.session.shared.ordinal + 2  # the calls of the step before it are counted
        window = RankProfile(str(first), first, first + PROFILED - 1, 600.0, str(self.path))
        self.windows.begin(window, answer)
        self.train(2)
        took = timed(lambda: self.train(PROFILED + AFTER))
        assert done.is_set(), "more steps are needed after a window"
        return took

    def theirs(self) -> float:
        return timed(lambda: self._profile(lambda own: own.export_chrome_trace(str(self.path))))

    def without_trace(self) -> float:
        return timed(lambda: self._profile(lambda _: None))

    def _profile(self, export: Callable[[torch.profiler.profile], None]) -> None:
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, with_stack=True) as own:
            self.train(PROFILED)
        export(own)
        self.train(AFTER)


def new_session() -> Session:
    os.environ[identity.OWNER_VARIABLE] = str(os.getpid())
    return Session("/nowhere", identity.Identity("job", "", "host"))


def timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begun


def armed_ns() -> float:
    session = new_session()
    windows = Windows(session, kineto.Kineto(torch.autograd.profiler))
    windows.begin(RankProfile("far", FAR, FAR, 1.0, "/nowhere"), lambda _: None)
    return per_step(session)


def idle_ns() -> float:
    return per_step(new_session())


def per_step(session: Session, steps: int = 100_000) -> float:
    def many() -> None:
        for _ in range(steps):
            session.stepped()

    return timed(many) / steps


if __name__ == "__main__":
    main()

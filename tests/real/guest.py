"""A script with habits of its own, one function each, which prints whatever it can see of itself.

    python -m guest FOLDER        (with a `sitecustomize` of the user's, and a line on its input)

Everything printed is the same in every run: clocks are compared, not printed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STATUS = 5
SIGNALS = [signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1]


class TimeUpError(Exception):
    """What many scripts raise from an alarm, to stop in time."""


def main() -> int:
    torch.manual_seed(0)
    print("started as", __name__, __spec__ and __spec__.name, sys.argv[1:], sys.path[0])
    print("own start-up", sys.modules["sitecustomize"].greeting)
    handlers("at first")
    print("input", sys.stdin.readline().strip())
    trained("at first", train(5))
    elsewhere(Path(sys.argv[1]))
    ticks()
    stopped_in_time()
    spawned()
    from_a_fork_server()
    print("chance", random.Random(7).random(), torch.rand(2).tolist())
    handlers("at last")
    print("some say it here", file=sys.stderr)
    return STATUS


def train(steps: int, pause: float = 0.0) -> Tensor:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(steps * 4, 8, generator=torch.Generator().manual_seed(1))
    for (batch,) in DataLoader(TensorDataset(rows), batch_size=4):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
    return loss


def trained(how: str, loss: Tensor) -> None:
    print(how, repr(loss.item()))


def handlers(when: str) -> None:
    found = [signal.getsignal(number) for number in SIGNALS]
    print("handlers", when, [getattr(one, "__qualname__", one) for one in found])


def elsewhere(folder: Path) -> None:
    """Works in another folder, and writes relative paths."""
    os.chdir(folder)
    trained("elsewhere", train(5))
    Path("result").write_text("mine")
    print("left there", sorted(os.listdir()))  # noqa: PTH208


def ticks() -> None:
    """A timer that goes off all the time, in calls that wait too."""
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    trained("under a timer", train(20, pause=0.01))
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("ticked", len(seen) >= 5)


def stopped_in_time() -> None:
    """The alarm's handler raises, wherever the script is."""

    def raise_time_up(number: int, frame: FrameType | None) -> None:
        raise TimeUpError

    signal.signal(signal.SIGALRM, raise_time_up)
    signal.alarm(1)
    try:
        train(1_000, pause=0.01)
    except TimeUpError:
        print("time is up")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def spawned() -> None:
    child = multiprocessing.get_context("spawn").Process(target=as_child, args=("spawned",))
    child.start()
    child.join()
    print("child ended with", child.exitcode)


def as_child(how: str) -> None:
    print(how, __name__, Path.cwd().name, sys.argv[1:], torch.ones(3).sum().item(), flush=True)
    sys.exit(3)


def from_a_fork_server() -> None:
    """Also what a loader's workers are started by."""
    rows = TensorDataset(torch.arange(8.0))
    loader = DataLoader(rows, batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    print("loaded", [batch.tolist() for (batch,) in loader])


if __name__ == "__main__":
    sys.exit(main())

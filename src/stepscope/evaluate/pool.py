"""Work for several processes: each does one item after the other, as far as memory has room.

A process that dies, as one that the kernel ends for want of memory, takes one item down with it and
is replaced. An interrupt ends them all at once: nobody waits for what would be thrown away.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")

# arrow has threads of its own, which a fork would lose
_CONTEXT = get_context("spawn")
_STOP_S = 5.0
"""How long a process has to end when it is told to; it has nothing to save."""


def each(
    work: Callable[[Item], Done], items: Sequence[Item], needs: Sequence[int], room: int,
    processes: int,
) -> Generator[tuple[int, Done | None]]:  # fmt: skip
    """Numbers and results of the items as they come, those with the largest needs begun first.

    Items whose needs are more than what is left of `room` wait; one alone may need more than there
    is. None: the process died. `work` must be importable, and never raise.
    """
    workers = [_Worker(work) for _ in range(processes)]
    waiting = sorted(range(len(items)), key=lambda at: -needs[at])
    try:
        while waiting or any(worker.at is not None for worker in workers):
            for worker in workers:
                if worker.at is None:
                    busy = [needs[one.at] for one in workers if one.at is not None]
                    at = next_item(waiting, needs, room, busy)
                    if at is not None:
                        waiting.remove(at)
                        worker.give(at, items[at])
            for worker in _ready(workers):
                yield worker.take()
    finally:
        for worker in workers:
            worker.stop()


def next_item(
    waiting: Sequence[int], needs: Sequence[int], room: int, busy: Sequence[int]
) -> int | None:  # fmt: skip
    """The first item that there is room for; the first of all, if nothing else is done."""
    if not busy:
        return next(iter(waiting), None)
    left = room - sum(busy)
    return next((at for at in waiting if needs[at] <= left), None)


class _Worker(Generic[Item, Done]):
    """A process, and the number of the item that it is at."""

    def __init__(self, work: Callable[[Item], Done]) -> None:
        self._work = work
        self.at: int | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, self._work))
        self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def give(self, at: int, item: Item) -> None:
        self.at = at
        self.pipe.send(item)

    def take(self) -> tuple[int, Done | None]:
        assert self.at is not None
        at, self.at = self.at, None
        try:
            done: Done = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            self._start()
            return at, None
        return at, done

    def stop(self) -> None:
        self._process.terminate()
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()


def _ready(workers: Sequence[_Worker[Any, Done]]) -> list[_Worker[Any, Done]]:
    """Those that are through with their item, or dead, as soon as one is."""
    pipes = {worker.pipe: worker for worker in workers if worker.at is not None}
    return [pipes[pipe] for pipe in wait(list(pipes)) if isinstance(pipe, Connection)]


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """What a process does until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with suppress(EOFError, BrokenPipeError):  # nobody is there any more
        while True:
            pipe.send(work(pipe.recv()))

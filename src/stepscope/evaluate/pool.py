"""A pool of processes that starts items only while there is memory for them.

A process that dies, for example because the kernel's OOM killer ended it, loses only its current
item and is replaced. An interrupt ends all processes at once, without waiting for their results.
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

# not fork: arrow has threads of its own, which do not survive one
_CONTEXT = get_context("spawn")
_STOP_S = 5.0
"""How long a process may take to end after SIGTERM; it has nothing to save."""


def each(
    work: Callable[[Item], Done], items: Sequence[Item], needs: Sequence[int], room: int,
    processes: int,
) -> Generator[tuple[int, Done | None]]:  # fmt: skip
    """Indices and results of the items as they finish; items with the largest needs start first.

    An item whose need exceeds what is left of `room` waits, but a single item may exceed all of
    `room`. The result is None if the process died. `work` must be importable and must not raise.
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
    """The first item that fits into the memory left; the first of all if no other item runs."""
    if not busy:
        return next(iter(waiting), None)
    left = room - sum(busy)
    return next((at for at in waiting if needs[at] <= left), None)


class _Worker(Generic[Item, Done]):
    """A process, and the index of the item it is working on."""

    def __init__(self, work: Callable[[Item], Done]) -> None:
        self._work = work
        self.at: int | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, far_end = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(far_end, self._work))
        self._process.start()
        far_end.close()  # so that the pipe ends with the process

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
    """The workers that have finished their item or died; waits until there is one."""
    pipes = {worker.pipe: worker for worker in workers if worker.at is not None}
    return [pipes[pipe] for pipe in wait(list(pipes)) if isinstance(pipe, Connection)]


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """The main loop of a worker process, until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with suppress(EOFError, BrokenPipeError):  # the parent is gone
        while True:
            pipe.send(work(pipe.recv()))

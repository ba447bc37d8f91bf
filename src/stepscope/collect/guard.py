"""Keeps our faults from the training process: they are counted, logged once and swallowed."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

RAISE_VARIABLE = "STEPSCOPE_RAISE"
"""Set by our tests: an internal fault is then raised instead of swallowed."""


class Tally:
    """A counter that is exact on any thread, and reentrant: a GC callback may interrupt an add."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.value = 0

    def add(self) -> None:
        with self._lock:
            self.value += 1


class Faults:
    """The same for each place in our code."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_place: Counter[str] = Counter()

    def add(self, where: str, times: int = 1) -> None:
        with self._lock:
            self._by_place[where] += times

    @property
    def value(self) -> int:
        return sum(self.places().values())

    def places(self) -> dict[str, int]:
        """How often something failed, by place."""
        with self._lock:
            return dict(self._by_place)


faults = Faults()
"""Internal faults in this process."""
_seen: set[str] = set()


def report(where: str, error: BaseException) -> None:
    """Counts a fault, and logs it to standard error once per place, in one line."""
    if raises():
        faults.add(where)
        raise error
    swallow(where, repr(error))


def swallow(where: str, text: str, times: int = 1) -> None:
    """Counts faults that were caught already, and logs the first of each place."""
    faults.add(where, times)
    say_once(where, f"stepscope: internal fault in {where}, collecting less: {text}")


def raises() -> bool:
    """Whether internal faults are to end the training."""
    return bool(os.environ.get(RAISE_VARIABLE))


def say_once(about: str, text: str) -> None:
    """Writes one line to standard error, once per subject."""
    if about not in _seen:
        _seen.add(about)
        with contextlib.suppress(Exception):  # stderr is closed, or a pipe that nobody reads
            sys.stderr.write(f"{text}\n")


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Wraps a function so that an exception is reported, and None is returned."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the guest's promise
            report(function.__qualname__, error)
            return None

    return call

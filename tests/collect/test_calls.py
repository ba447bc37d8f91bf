"""Python calls are counted, and what counts them is gone afterwards."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from stepscope.collect.calls import LIBRARY, Calls

needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")


def work(times: int) -> None:
    for _ in range(times):
        nothing()


def nothing() -> None:
    pass


@needs_library
def test_calls_are_counted() -> None:
    calls = Calls()
    calls.begin()
    work(1_000)
    counted = calls.end()

    assert counted is not None and 1_000 <= counted < 1_100
    assert sys.getprofile() is None
    work(10)
    assert calls.end() is None


@needs_library
def test_it_counts_again() -> None:
    calls = Calls()
    for times in (10, 1_000):
        calls.begin()
        work(times)
        counted = calls.end()
        assert counted is not None and times <= counted < times + 100


@needs_library
def test_a_profiler_of_the_script_is_left_alone() -> None:
    calls, seen = Calls(), []

    def theirs(_frame: object, event: str, _argument: object) -> None:
        seen.append(event)

    sys.setprofile(theirs)
    try:
        calls.begin()
        assert calls.end() is None and sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    calls.begin()
    sys.setprofile(theirs)
    try:
        assert calls.end() is None and sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert seen


@needs_library
def test_another_thread_ends_it() -> None:
    """The thread that counts removes what counts with its next call."""
    calls = Calls()
    calls.begin()
    other = threading.Thread(target=calls.end)
    other.start()
    other.join()
    work(10)
    calls.begin()
    work(100)
    counted = calls.end()
    assert counted is not None and counted < 200


@needs_library
def test_a_forked_child_counts_nothing() -> None:
    calls = Calls()
    calls.begin()
    child = os.fork()
    if not child:
        os._exit(0 if calls.end() is None else 1)
    _, status = os.waitpid(child, 0)
    counted = calls.end()
    assert os.waitstatus_to_exitcode(status) == 0
    assert counted is not None


def test_without_the_library_nothing_is_known(tmp_path: Path) -> None:
    calls = Calls(tmp_path / "libstepscope_calls.so")
    calls.begin()
    assert calls.end() is None

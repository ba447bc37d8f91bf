"""A fault of ours inside a training process."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from stepscope.collect import guard
from stepscope.collect.guard import guarded
from stepscope.collect.hooks.native_operators import NativeWatch


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has seen no fault yet, and swallows them."""
    monkeypatch.delenv(guard.RAISE_VARIABLE)
    monkeypatch.setattr(guard, "_seen", set())
    monkeypatch.setattr(guard, "faults", guard.Faults())


@guarded
def divide(number: float, by: float) -> float:
    """Divides."""
    return number / by


def test_a_fault_is_counted_each_time_and_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert divide(1, 2) == 0.5
    assert [divide(1, 0) for _ in range(3)] == [None] * 3

    assert guard.faults.value == 3
    assert capsys.readouterr().err == (
        "stepscope: internal fault in divide, collecting less: "
        "ZeroDivisionError('division by zero')\n"
    )


def test_another_place_is_told_of_too(capsys: pytest.CaptureFixture[str]) -> None:
    guard.report("here", ValueError("a"))
    guard.report("there", ValueError("b"))

    assert capsys.readouterr().err.count("\n") == 2


class _Library:
    """A library in which thirteen calls of one place have failed."""

    def stepscope_fault(self, at: int, room: Any, most: int, times: Any) -> int:
        if at > 0:
            return 0
        text = b"the arguments of an operator\nno storage"
        room.value, times._obj.value = text, 13
        return len(text)


def test_what_fails_in_the_library_is_said_once_with_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = NativeWatch.__new__(NativeWatch)
    watch._library, watch._told_faults = _Library(), Counter()
    watch._tell_faults()
    watch._tell_faults()

    assert guard.faults.places() == {"the arguments of an operator": 13}
    assert capsys.readouterr().err == (
        "stepscope: internal fault in the arguments of an operator, collecting less: no storage\n"
    )


def test_tests_see_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guard.RAISE_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        divide(1, 0)


def test_an_interrupt_is_no_fault() -> None:
    @guarded
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


class _Closed:
    def write(self, _text: str) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("stderr", [None, _Closed()])
def test_nobody_to_tell(stderr: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be closed, or a pipe whose reader is gone."""
    monkeypatch.setattr(sys, "stderr", stderr)

    assert divide(1, 0) is None


def test_a_guarded_function_is_still_itself() -> None:
    assert (divide.__name__, divide.__doc__) == ("divide", "Divides.")

"""`kill -USR2`: the next steps are profiled, unless somebody else handles the signal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepscope.collect import signals
from stepscope.collect.session import Session

from .test_windows import PATIENCE_SECONDS, Rank


@pytest.fixture
def rank(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """A rank whose script has no handler."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.signal(signals.SIGNAL, signal.SIG_DFL)
    yield Rank(session, tmp_path)
    signal.signal(signals.SIGNAL, before)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Waits for the line on standard error."""

    def line() -> str:
        deadline, text = time.monotonic() + PATIENCE_SECONDS, ""
        while not text.endswith("\n"):
            assert time.monotonic() < deadline
            text += capfd.readouterr().err
        return text

    return line


def start_training(rank: Rank) -> None:
    signals.install(rank.session, rank.windows)
    rank.step()


def send() -> None:
    os.kill(os.getpid(), signals.SIGNAL)


def test_the_next_steps_are_profiled_and_the_path_is_said(
    rank: Rank, said: Callable[[], str]
) -> None:
    start_training(rank)
    send()
    rank.step(9)

    line = said()
    assert line.startswith("stepscope: profiled optimizer steps 3 to 7: ")
    assert Path(line.rpartition(": ")[2].strip()).exists()
    assert rank.profiler.said[2:9] == ["start", "3", "4", "5", "6", "7", "stop"]


def test_the_number_of_steps_can_be_set(
    rank: Rank, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signals.STEPS_VARIABLE, "2")
    start_training(rank)
    send()
    rank.step(5)

    assert "optimizer steps 3 to 4" in said()


def test_a_second_signal_meanwhile_is_refused(rank: Rank, said: Callable[[], str]) -> None:
    start_training(rank)
    send()
    rank.step(2)
    send()

    assert "not profiled: another window is open" in said()


def test_a_handler_of_the_script_stays(rank: Rank) -> None:
    came: list[int] = []
    signal.signal(signals.SIGNAL, lambda number, _: came.append(number))
    start_training(rank)
    send()
    rank.step(3)

    assert came == [signals.SIGNAL]
    assert "start" not in rank.profiler.said


def test_it_can_be_switched_off(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signals.STEPS_VARIABLE, "0")
    start_training(rank)

    assert signal.getsignal(signals.SIGNAL) == signal.SIG_DFL


def test_nothing_is_installed_before_training(rank: Rank) -> None:
    signals.install(rank.session, rank.windows)

    assert signal.getsignal(signals.SIGNAL) == signal.SIG_DFL


def test_a_forked_child_dies_of_the_signal_as_without_us(rank: Rank) -> None:
    start_training(rank)
    child = os.fork()
    if not child:
        rank.session.disable()
        send()
        time.sleep(PATIENCE_SECONDS)
        os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == -signals.SIGNAL

"""Windows with the real `torch.profiler`, in this process."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.autograd import profiler as torch_profiler

from stepscope.collect import plan
from stepscope.collect.hooks.kineto import Kineto
from stepscope.collect.session import Session
from stepscope.collect.windows import IN_BACKWARD, Windows
from stepscope.wire.profiling import Profiled, RankProfile

PATIENCE_SECONDS = 60.0
_WRAPPED = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


class Rank:
    """A small model, trained on this thread, with a window of two steps."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.kineto = Kineto(torch_profiler)
        self.windows = Windows(session, self.kineto)
        self.path = folder / "rank0.json.gz"
        self.replies: list[Profiled] = []
        self._come = threading.Event()
        self.work: Callable[[], object] = lambda: None
        self._model = torch.nn.Linear(4, 4)

    def ask(self, first: int = 2, last: int = 3, seconds: float = 60.0) -> None:
        self.windows.begin(RankProfile("w", first, last, seconds, str(self.path)), self._answer)

    def _answer(self, reply: Profiled) -> None:
        self.replies.append(reply)
        self._come.set()

    def reply(self) -> Profiled:
        assert self._come.wait(PATIENCE_SECONDS)
        return self.replies[-1]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            prepare_batch()
            self.work()
            self._model(torch.ones(2, 4)).sum().backward()
            self.session.stepped()

    def events(self, category: str) -> list[dict[str, Any]]:
        trace = json.loads(gzip.decompress(self.path.read_bytes()))
        return [event for event in trace["traceEvents"] if event.get("cat") == category]


def prepare_batch() -> int:
    return len([str(number) for number in range(20)])


@pytest.fixture
def rank(session: Session, tmp_path: Path) -> Iterator[Rank]:
    before = {name: getattr(torch_profiler, name) for name in _WRAPPED}
    yield Rank(session, tmp_path)
    for name, function in before.items():
        setattr(torch_profiler, name, function)


def test_the_trace_names_functions_with_their_file_and_line(rank: Rank) -> None:
    rank.ask()
    rank.train(6)

    assert rank.reply().trouble is None
    calls = [e for e in rank.events("python_function") if "prepare_batch" in e["name"]]
    assert len(calls) == 2  # one in each step
    assert f"test_kineto.py({prepare_batch.__code__.co_firstlineno}): prepare" in calls[0]["name"]
    assert [e["name"] for e in rank.events("cpu_op")].count("aten::linear") == 2


def test_other_threads_are_in_the_trace(rank: Rank) -> None:
    over = threading.Event()

    def burn() -> None:
        while not over.wait(0.001):
            prepare_batch()

    helper = threading.Thread(target=burn)
    helper.start()
    rank.ask(2, 20)
    for _ in range(30):
        rank.train(1)
        time.sleep(0.002)  # the helper gets its turn
    over.set()
    helper.join()
    rank.reply()

    calls = [e for e in rank.events("python_function") if "prepare_batch" in e["name"]]
    assert len({event["tid"] for event in calls}) == 2


def busy(calls: int) -> None:
    for _ in range(calls):
        prepare_nothing()


def prepare_nothing() -> None:
    pass


def test_recorded_calls_are_limited_by_number(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_CALLS", 12_000)
    rank.work = lambda: busy(2_000)
    rank.ask(2, 21)
    rank.train(30)

    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (2, 6)
    assert len(rank.events("python_function")) < plan.MOST_CALLS


def test_steps_of_millions_of_calls_are_recorded_without_them(rank: Rank) -> None:
    rank.work = lambda: busy(1_000_000)
    rank.ask(2, 4)
    rank.train(6)

    assert "functions were not recorded" in str(rank.reply().note)
    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (2, 4)
    assert rank.events("python_function") == []
    assert [e["name"] for e in rank.events("cpu_op")].count("aten::linear") == 3


class Slept(torch.autograd.Function):
    """An operator in Python; what it calls is within an operator of torch."""

    asks: ClassVar[list[Callable[[str], bool]]] = []
    said: ClassVar[list[tuple[str, bool]]] = []

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        Slept.said += [("forward", ask("forward")) for ask in Slept.asks]
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        Slept.said += [("backward", ask("backward")) for ask in Slept.asks]
        return gradients[0].clone()


class Asking(torch.nn.Module):
    """A module in the script asks while it computes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Slept.said += [("module", ask("module")) for ask in Slept.asks]
        return x


def test_within_operators_of_torch_no_profiler_begins_or_ends(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slept, "asks", [lambda _: rank.kineto.may_switch()])
    monkeypatch.setattr(Slept, "said", [])
    x = torch.ones(2, requires_grad=True)
    Slept.apply(Asking()(x)).sum().backward()
    assert Slept.said == [("module", True), ("forward", False), ("backward", False)]
    assert rank.kineto.may_switch()


def test_windows_that_end_by_time_in_backward_passes_leave_torch_as_it_was(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked to end many times within an operator; a profiler that ended there would be
    back when the pass is over, though it is gone."""

    def within(where: str) -> bool:
        over = time.monotonic() + (0.05 if where == "backward" else 0.0)
        while time.monotonic() < over:
            for task in list(rank.session.before_flush):
                task()
        return True

    monkeypatch.setattr(Slept, "asks", [within])
    monkeypatch.setattr(Slept, "said", [])
    rank.work = lambda: Slept.apply(torch.ones(2, requires_grad=True)).sum().backward()
    for turn in range(3):
        at = rank.session.shared.ordinal
        rank.windows.begin(
            RankProfile(f"w{turn}", at + 2, at + 900, 0.01, str(rank.path)), rank._answer
        )
        rank.train(5)
        assert rank.reply().trouble is None
        rank._come.clear()
        writer = rank.windows._writer
        assert writer is not None
        writer.join(PATIENCE_SECONDS)


def test_a_second_window_works_as_the_first(rank: Rank) -> None:
    for first in (2, 12):
        rank.replies.clear()
        rank._come.clear()
        rank.ask(first, first + 1)
        rank.train(10)
        assert rank.reply().trouble is None
        assert rank.events("cpu_op")


def test_nothing_remains_after_a_window(rank: Rank) -> None:
    rank.ask()
    rank.train(6)
    rank.reply()

    assert sys.getprofile() is None
    assert not torch._C._autograd._profiler_enabled()
    assert not torch_profiler._is_profiler_enabled
    assert "KINETO_LOG_LEVEL" not in os.environ


def test_a_profiler_of_the_script_that_runs_comes_first(rank: Rank) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        rank.ask()
        rank.train(6)

    assert "profiler of its own" in str(rank.reply().trouble)
    assert any(event.key == "aten::linear" for event in theirs.key_averages())


def test_a_profiler_of_the_script_that_is_warming_up_comes_first(rank: Rank) -> None:
    plan = torch.profiler.schedule(wait=1, warmup=3, active=2, repeat=1)
    with torch.profiler.profile(schedule=plan) as theirs:
        rank.ask(3, 4)
        for _ in range(8):
            rank.train(1)
            theirs.step()

    assert "profiler of its own" in str(rank.reply().trouble)
    assert any(event.key == "aten::linear" for event in theirs.key_averages())


def test_ours_makes_room_for_a_profiler_that_the_script_starts(rank: Rank) -> None:
    rank.ask(2, 1000)
    rank.train(4)
    with torch.profiler.profile() as theirs:
        rank.train(2)
    rank.train(2)

    assert "started a profiler of its own" in str(rank.reply().trouble)
    assert any(event.key == "aten::linear" for event in theirs.key_averages())
    assert not rank.path.exists()


def test_a_window_is_possible_after_the_scripts_profiler(rank: Rank) -> None:
    with torch.profiler.profile():
        rank.train(1)
    rank.ask(3, 4)
    rank.train(6)

    assert rank.reply().trouble is None


def test_cprofile_is_left_alone(rank: Rank) -> None:
    sys.setprofile(lambda *_: None)
    with contextlib.ExitStack() as stack:
        stack.callback(sys.setprofile, None)
        rank.ask()
        rank.train(6)

    assert "cProfile" in str(rank.reply().trouble)


def test_a_child_that_is_forked_during_a_window_records_nothing(rank: Rank) -> None:
    os.register_at_fork(after_in_child=rank.kineto.leave_child_alone)
    rank.ask(2, 1000)
    rank.train(4)
    child = os.fork()
    if not child:
        os._exit(0 if sys.getprofile() is None else 1)
    _, status = os.waitpid(child, 0)
    for task in rank.session.before_close:
        task()

    assert os.waitstatus_to_exitcode(status) == 0


def test_optimizers_that_step_within_the_backward_pass_are_not_profiled(rank: Rank) -> None:
    """As those that update each parameter as soon as its gradient is there."""
    x = torch.ones(2, requires_grad=True)
    handle = x.register_post_accumulate_grad_hook(lambda _: rank.session.stepped())
    rank.ask(2, 3)
    for _ in range(6):
        x.sum().backward()
    assert rank.reply().trouble == IN_BACKWARD
    handle.remove()

    rank._come.clear()
    at = rank.session.shared.ordinal
    rank.windows.begin(RankProfile("x", at + 2, at + 3, 60.0, str(rank.path)), rank._answer)
    rank.train(6)
    assert rank.reply().trouble is None
    assert rank.events("cpu_op")

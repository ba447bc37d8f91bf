"""Windows of synchronized profiling: begun and ended between two steps, or with the reason why not.

The profiler is a fake; `test_kineto.py` has the real one.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepscope.collect import plan, windows
from stepscope.collect.session import Session
from stepscope.collect.windows import Windows
from stepscope.wire.profiling import Profiled, RankProfile, encode_profile

PATIENCE_SECONDS = 30.0


class FakeProfiler:
    """Writes down between which steps it ran."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.in_backward = False
        self.is_within = False
        """Whether the thread is within an operator."""
        self.said: list[str] = []
        self.aside: Callable[[], None] = lambda: None
        self.fails = False
        self.calls: int | None = 0
        self.is_counting = False
        self.functions = True

    def count(self) -> None:
        self.is_counting = True

    def counted(self) -> int | None:
        self.is_counting, known = False, self.is_counting
        return self.calls if known else None

    def why_not(self) -> str | None:
        return self.trouble

    def may_switch(self) -> bool:
        return not self.is_within

    def is_in_backward(self) -> bool:
        return self.in_backward

    def start(self, aside: Callable[[], None], *, functions: bool = True) -> None:
        self.functions = functions
        if self.fails:
            raise RuntimeError("no Kineto")
        self.aside = aside
        self.said.append("start")

    def abandon(self) -> None:
        self.said.append("abandon")

    def stop(self) -> FakeProfiler:
        self.said.append("stop")
        return self

    def save(self, path: str) -> None:
        Path(path).write_text(" ".join(self.said))


class Rank:
    """A training thread: this one."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.profiler = FakeProfiler()
        self.windows = Windows(session, self.profiler)
        self.path = folder / "w" / "rank0.json.gz"
        self.replies: list[Profiled] = []
        self._come = threading.Event()

    def ask(
        self, first: int, last: int, seconds: float = 60.0, window: str = "w",
        ordinals_per_step: int = 1,
    ) -> None:  # fmt: skip
        request = RankProfile(window, first, last, seconds, str(self.path), ordinals_per_step)
        self.windows.begin(request, self._answer)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.session.stepped()
            self.profiler.said.append(str(self.session.shared.ordinal))

    def _answer(self, reply: Profiled) -> None:
        self.replies.append(reply)
        self._come.set()

    def reply(self) -> Profiled:
        assert self._come.wait(PATIENCE_SECONDS)
        return self.replies[-1]

    def until_started(self) -> None:
        """Calls are counted for half a second before."""

        def started() -> bool:
            self.watch()
            return "start" in self.profiler.said

        until(started)

    def watch(self) -> None:
        """What the sender's thread does, ten times a second."""
        for task in list(self.session.before_flush):
            task()


@pytest.fixture
def rank(session: Session, tmp_path: Path) -> Rank:
    return Rank(session, tmp_path)


def until(condition: Callable[[], object]) -> None:
    """Runs bytecodes until a pending call has been made."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline


def test_exactly_the_steps_that_were_asked_for_are_profiled(rank: Rank) -> None:
    rank.step(2)
    rank.ask(4, 5)
    rank.step(6)

    reply = rank.reply()

    assert rank.profiler.said == ["1", "2", "3", "start", "4", "5", "stop", "6", "7", "8"]
    assert (reply.first_ordinal, reply.last_ordinal, reply.trouble) == (4, 5, None)
    assert 0 < reply.start_ns <= reply.end_ns
    assert gzip.decompress(rank.path.read_bytes()).startswith(b"1 2 3 start 4 5 stop")
    assert [file.name for file in rank.path.parent.iterdir()] == ["rank0.json.gz"]


def test_without_a_window_a_step_has_nothing_to_do(rank: Rank) -> None:
    before = list(rank.session.after_step), list(rank.session.before_flush)
    rank.ask(1, 1)
    rank.step(4)
    rank.reply()

    assert (rank.session.after_step, rank.session.before_flush) == before


def test_steps_that_have_begun_are_refused_and_no_others_are_recorded(rank: Rank) -> None:
    rank.step(5)
    rank.ask(5, 9)
    rank.step(9)

    assert "has begun already" in str(rank.reply().trouble)
    assert "start" not in rank.profiler.said


def test_a_window_that_the_training_has_overtaken_is_refused(rank: Rank) -> None:
    rank.ask(3, 4)
    rank.session.shared.ordinal = 7
    rank.step()

    assert "had begun already" in str(rank.reply().trouble)
    assert "start" not in rank.profiler.said


def test_a_request_that_is_repeated_changes_nothing(rank: Rank) -> None:
    rank.ask(2, 3)
    rank.ask(2, 3)
    rank.step(5)
    rank.reply()

    assert rank.profiler.said.count("start") == 1
    assert len(rank.replies) == 1


def test_there_is_one_window_at_a_time(rank: Rank) -> None:
    rank.ask(2, 3)
    rank.ask(8, 9, window="another")

    assert "another window is open: w" in str(rank.reply().trouble)


def test_a_profiler_of_the_script_comes_first(rank: Rank) -> None:
    rank.profiler.trouble = "the script uses a profiler of its own"
    rank.ask(1, 2)
    rank.step(4)

    assert rank.reply().trouble == "the script uses a profiler of its own"
    assert "start" not in rank.profiler.said


def test_ours_ends_when_the_script_starts_one(rank: Rank) -> None:
    rank.ask(2, 9)
    rank.step(3)
    rank.profiler.aside()
    rank.step(12)

    assert "started a profiler of its own" in str(rank.reply().trouble)
    assert rank.profiler.said[:5] == ["1", "start", "2", "3", "stop"]
    assert len(rank.replies) == 1
    assert not rank.path.exists()


def test_a_window_ends_after_its_time_even_within_a_step(rank: Rank) -> None:
    rank.ask(2, 1000, seconds=0.001)
    rank.step(3)
    time.sleep(0.002)
    rank.watch()
    until(lambda: "stop" in rank.profiler.said)

    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (2, 2)
    assert (rank.reply().trouble, rank.reply().note) == (None, None)


def test_within_an_operator_a_window_neither_begins_nor_ends(rank: Rank) -> None:
    rank.step(3)
    rank.profiler.is_within = True
    rank.ask(-1, -1, seconds=1.0)
    over = time.monotonic() + 0.8
    while time.monotonic() < over:
        rank.watch()
    assert "start" not in rank.profiler.said
    rank.profiler.is_within = False
    rank.until_started()
    rank.profiler.is_within = True
    over = time.monotonic() + 1.2
    while time.monotonic() < over:
        rank.watch()
    assert "stop" not in rank.profiler.said
    rank.step()
    assert "stop" in rank.profiler.said, "the step has ended"


def test_an_optimizer_within_a_backward_pass_begins_and_ends_no_window(rank: Rank) -> None:
    rank.ask(2, 3)
    rank.step(3)
    rank.profiler.in_backward = True
    rank.step(2)
    assert "stop" not in rank.profiler.said
    rank.profiler.in_backward = False
    rank.watch()
    until(lambda: "stop" in rank.profiler.said)
    rank.profiler.in_backward = True
    rank.reply()
    until(lambda: rank.windows._writer is not None and not rank.windows._writer.is_alive())
    rank._come.clear()
    rank.ask(8, 9, window="x")
    rank.step(5)
    assert rank.reply().trouble == windows.IN_BACKWARD


def test_a_window_ends_once_the_operators_that_began_in_it_have(rank: Rank) -> None:
    open_operators = [2]
    rank.session.open_since = lambda since_ns: open_operators[0] if since_ns > 0 else 0
    rank.ask(2, 3)
    rank.step(6)
    assert "stop" not in rank.profiler.said
    open_operators[0] = 0
    rank.step()
    assert "stop" in rank.profiler.said
    assert (rank.reply().first_ordinal, rank.reply().trouble) == (2, None)


def test_an_end_that_is_noted_a_moment_late_makes_a_window_no_longer(rank: Rank) -> None:
    asked = iter([1, 1])
    rank.session.open_since = lambda since_ns: next(asked, 0) if since_ns > 0 else 0
    rank.ask(4, 5)
    rank.step(10)
    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (4, 5)


def test_a_window_whose_operators_never_end_is_given_up(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_LATE_SECONDS", 0.0)
    rank.session.open_since = lambda _: 1
    rank.ask(2, 3)
    rank.step(4)
    time.sleep(0.001)
    rank.step()
    assert "abandon" in rank.profiler.said and "stop" not in rank.profiler.said
    assert rank.reply().trouble == windows.NEVER_ENDED


def test_a_window_ends_when_the_process_grows_too_much(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_GROWTH_BYTES", -1)
    rank.ask(2, 1000)
    rank.step(3)
    rank.watch()
    until(lambda: "stop" in rank.profiler.said)

    assert rank.reply().last_ordinal == 2


def test_a_window_of_a_stuck_job_begins_at_once(rank: Rank) -> None:
    rank.step(3)
    rank.ask(-1, -1)
    rank.until_started()
    rank.step(2)

    assert rank.profiler.said[-4:] == ["start", "stop", "4", "5"]
    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (3, 3)


def test_a_job_of_many_calls_gets_fewer_steps(rank: Rank) -> None:
    rank.profiler.calls = plan.MOST_CALLS // 8
    rank.ask(4, 23)
    rank.step(30)

    assert rank.profiler.said[:8] == ["1", "2", "3", "start", "4", "5", "6", "7"]
    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (4, 8)
    assert "5 of 20 steps" in str(rank.reply().note) and rank.profiler.functions


def test_a_step_of_too_many_calls_is_recorded_without_functions(rank: Rank) -> None:
    rank.profiler.calls = plan.MOST_CALLS + 1
    rank.ask(4, 6)
    rank.step(10)

    assert not rank.profiler.functions
    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (4, 6)
    assert "functions were not recorded" in str(rank.reply().note)


def test_of_calls_that_were_not_counted_a_few_steps_are_recorded(rank: Rank) -> None:
    rank.profiler.calls = None
    rank.ask(4, 23)
    rank.step(30)

    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (4, 5)


def test_steps_of_several_optimizers_are_recorded_whole(rank: Rank) -> None:
    rank.profiler.calls = plan.MOST_CALLS // 2
    rank.ask(6, 29, ordinals_per_step=3)
    rank.step(30)

    assert (rank.reply().first_ordinal, rank.reply().last_ordinal) == (6, 11)


def test_what_counts_calls_is_never_left_installed(rank: Rank) -> None:
    rank.ask(2, 3, seconds=0.001)
    rank.step()
    assert rank.profiler.is_counting
    for task in rank.session.before_close:
        task()

    assert not rank.profiler.is_counting


def test_a_thread_that_cannot_be_interrupted_is_reported(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank.windows, "_on_main_thread", SimpleNamespace(call=lambda: None))
    rank.ask(-1, -1, seconds=0.001)
    time.sleep(0.002)
    rank.watch()

    assert "does not end" in str(rank.reply().trouble)
    assert "start" not in rank.profiler.said


def test_a_profiler_that_fails_is_reported(rank: Rank) -> None:
    rank.profiler.fails = True
    rank.ask(1, 2)
    with pytest.raises(RuntimeError):  # swallowed where our tests do not ask for it
        rank.step()

    assert "no Kineto" in str(rank.reply().trouble)


def test_a_trace_that_cannot_be_written_is_reported(rank: Rank) -> None:
    rank.path.parent.write_text("not a folder")
    rank.ask(1, 1)
    rank.step(3)

    assert "cannot write" in str(rank.reply().trouble)


def test_what_was_recorded_is_kept_when_the_script_ends(rank: Rank) -> None:
    rank.ask(2, 100)
    rank.step(5)
    for task in rank.session.before_close:
        task()

    assert (rank.reply().last_ordinal, rank.reply().trouble) == (4, None)
    assert rank.path.exists()


def test_a_request_of_the_processor_is_taken_and_others_are_not(rank: Rank) -> None:
    request = encode_profile(RankProfile("w", 3, 4, 60.0, str(rank.path)))

    assert rank.windows.take(memoryview(request))
    assert not rank.windows.take(memoryview(b'{"hurry_seconds": 2}'))

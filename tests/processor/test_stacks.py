"""Call stacks: py-spy's output into runs, and py-spy itself on a real process."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.processor.records.normalise import Rows
from stepscope.processor.sampling import stacks
from stepscope.processor.sampling.recorder import find_py_spy
from stepscope.processor.sampling.runs import (
    Run,
    clip,
    events_of,
    rows_of,
    runs_of_chrometrace,
    runs_of_counts,
    runs_of_dump,
    worker_runs,
)
from stepscope.processor.sampling.stacks import StackSampler, Target

from .golden_stacks import DUMP, TRACE, chrometrace

START_NS = 1_000_000_000
EVENTS = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()))


def _spans(runs: list[Run]) -> list[tuple[str, str, int, int]]:
    """Thread, stack, start and end in µs since the recorder's start."""
    return [
        (r.thread, r.frames, (r.start_ns - START_NS) // 1000,
         (r.start_ns + r.duration_ns - START_NS) // 1000)
        for r in runs
    ]  # fmt: skip


def test_samples_become_runs_without_gaps() -> None:
    assert _spans(runs_of_chrometrace(TRACE, START_NS, START_NS + 900_000)) == [
        ("MainThread", "main (train.py:40);load (train.py:12)", 100, 300),
        ("MainThread", "main (train.py:40);step (train.py:20);step (train.py:21)", 300, 700),
        ("MainThread", "main (train.py:40)", 700, 900),
        ("stepscope-sender", "wait (train.py:9)", 100, 900),
    ]


def test_a_thread_that_ended_has_no_last_run() -> None:
    events = chrometrace(
        "0 B 7 thread (0x7): MainThread 0", "0 B 7 main 1", "50 E 7 main 1",
        "50 E 7 thread (0x7): MainThread 0",
    )  # fmt: skip
    assert _spans(runs_of_chrometrace(events, START_NS, START_NS + 900_000)) == [
        ("MainThread", "main (train.py:1)", 0, 50)
    ]


def test_a_thread_without_a_name_is_called_what_py_spy_calls_it() -> None:
    events = chrometrace("0 B 9 thread (0x9) 0", "0 B 9 work 1")
    (run,) = runs_of_chrometrace(events, START_NS, START_NS + 1000)
    assert run.thread == "thread (0x9)"


def test_nothing_was_sampled() -> None:
    assert runs_of_chrometrace([], START_NS, START_NS + 10) == []


@given(
    st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none())), st.integers(0, 4)
)
def test_events_are_read_one_at_a_time_as_they_are_all_at_once(
    events: list[dict[str, Any]], indent: int
) -> None:
    text = json.dumps(events, indent=indent or None)
    assert list(events_of(text.encode())) == events


@pytest.mark.parametrize("data", [b"", b"{}", b"[", b'[{"a": 1}', b'[{"a": 1},', b"[x]"])
def test_what_a_killed_recorder_left_is_no_trace(data: bytes) -> None:
    with pytest.raises(ValueError):
        list(events_of(data))


def test_windows_cut_runs() -> None:
    run = Run("t", 100, 50, "main (a.py:1)")
    parts = [clip([run], 0, 100), clip([run], 90, 120), clip([run], 120, 400), clip([run], 150, 9)]
    assert [[(r.start_ns, r.duration_ns) for r in part] for part in parts] == [
        [], [(100, 20)], [(120, 30)], [],
    ]  # fmt: skip


def test_holders_of_the_gil_follow_each_other_as_long_as_they_held_it() -> None:
    text = "thread (7): MainThread;main (a.py:1) 3\nthread (8): helper;burn (a.py:2) 2\nodd\n"

    assert runs_of_counts(text, 0, 10**9, 10) == [
        Run("GIL: MainThread", 0, 300_000_000, "main (a.py:1)", True, True),
        Run("GIL: helper", 300_000_000, 200_000_000, "burn (a.py:2)", True, True),
    ]


def test_threads_of_a_loader_are_called_by_what_they_do() -> None:
    pins = "_bootstrap (threading.py:1);_pin_memory_loop (torch/utils/pin_memory.py:52)"
    rows = rows_of(0, [Run("Thread-3 (_pin_memory_loop)", 0, 5, pins)])
    loads = worker_runs([Run("MainThread", 0, 5, "f (a.py:1)"), Run("QueueFeeder", 0, 5, "g")], 2)

    assert rows["thread"] == ["pin memory"]
    assert [run.thread for run in loads] == ["loader worker 2", "loader worker 2: QueueFeeder"]


def test_one_dump_of_every_thread() -> None:
    assert runs_of_dump(DUMP, 5) == [
        Run("MainThread", 5, 0, "main (train.py:40);load (a,b.py:12)", True, False),
        Run("8", 5, 0, "", False, False),
    ]


_SLEEPER = """
import time
def a_long_sleep():
    print("here", flush=True)
    time.sleep(600)
a_long_sleep()
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.wait()


class Kept:
    """Where a sampler's rows go."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, int]] = []
        self.threads: list[tuple[str, str, bool | None]] = []

    def append(self, job: str, table: str, rows: Rows) -> None:
        assert (job, table) == ("job-1", "stacks")
        self.rows += zip(
            rows["frames"], rows["rank"], rows["start_ns"], rows["duration_ns"], strict=True
        )
        self.threads += zip(rows["thread"], rows["frames"], rows["gil"], strict=True)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def sampler(kept: Kept) -> Iterator[StackSampler]:
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed")
    sampler = StackSampler(kept.append)
    yield sampler
    sampler.close()


def _may_sample(pid: int) -> bool:
    command = [str(find_py_spy()), "dump", "--pid", str(pid), "--nonblocking"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_windows_follow_one_another_without_gaps(
    sampler: StackSampler,
    kept: Kept,
    sleeper: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not _may_sample(sleeper.pid):
        pytest.skip("this machine does not let us look at other processes")
    monkeypatch.setattr(stacks, "FIRST_WINDOW_SECONDS", 1.0)
    monkeypatch.setattr(stacks, "WINDOW_SECONDS", 1.0)
    sampler.watch(Target("job-1", 4, sleeper.pid))
    while len(kept.rows) < 3:
        sampler.turn()
        time.sleep(0.02)
    sampler.unwatch(sleeper.pid)

    frames = {frames for frames, _, _, _ in kept.rows}
    assert all(frame.endswith("a_long_sleep (<string>:5)") for frame in frames)
    assert {rank for _, rank, _, _ in kept.rows} == {4}
    spans = sorted((start, start + duration) for _, _, start, duration in kept.rows)
    gaps = [start - end for (_, end), (start, _) in itertools.pairwise(spans)]
    assert all(gap >= 0 for gap in gaps), "no moment twice"
    assert sum(gaps) < 0.25 * (spans[-1][1] - spans[0][0]), gaps


def test_a_snapshot(sampler: StackSampler, kept: Kept, sleeper: subprocess.Popen[str]) -> None:
    if not _may_sample(sleeper.pid):
        pytest.skip("this machine does not let us look at other processes")
    sampler.watch(Target("job-1", 4, sleeper.pid))
    sampler.dump("another job")
    assert kept.rows == []
    sampler.dump("job-1")

    ((frames, rank, _, duration),) = kept.rows
    assert frames.endswith("a_long_sleep (<string>:5)") and (rank, duration) == (4, 0)


def test_a_process_that_cannot_be_sampled_is_logged_once(
    sampler: StackSampler, caplog: pytest.LogCaptureFixture
) -> None:
    """It exists, and is no Python; the same goes for one that is not ours to look at."""
    process = subprocess.Popen(["sleep", "600"])
    sampler.watch(Target("job-1", 4, process.pid))
    while not caplog.records:
        sampler.turn()
        time.sleep(0.02)
    for _ in range(20):
        sampler.turn()
    process.kill()
    process.wait()

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"no call stacks of rank 4 (pid {process.pid}): py-spy reports: " in record.message
    assert "\n" not in record.message


def test_a_process_that_is_gone_is_not_complained_of(
    sampler: StackSampler, caplog: pytest.LogCaptureFixture
) -> None:
    process = subprocess.Popen(["sleep", "600"])
    sampler.watch(Target("job-1", 4, process.pid))
    process.kill()
    process.wait()
    sampler.turn()
    sampler.unwatch(process.pid)
    sampler.turn()

    assert caplog.records == []


def test_for_a_process_that_is_none_no_recorder_is_started(
    sampler: StackSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started one"))
    sampler.watch(Target("job-1", 4, 1 << 22))
    sampler.turn()
    sampler.dump("job-1")


def test_without_py_spy_there_are_no_stacks(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    sampler = StackSampler(kept.append)
    sampler.watch(Target("job-1", 0, 1))
    sampler.turn()
    sampler.dump("job-1")
    sampler.close()

    assert kept.rows == [] and "pip install py-spy" in caplog.text


_LOADS = """
import threading, time
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index): return read_number(index)

def read_number(index):
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until: pass
    return index

def burn():
    while True:
        sum(range(100))

threading.Thread(target=burn, name="helper", daemon=True).start()
for at, _ in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=2)):
    time.sleep(0.001)
    if at == 3: print("ready", flush=True)
"""


@pytest.fixture
def loading() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a helper thread and two loader workers."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LOADS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_a_closer_look_has_the_workers_of_the_loader_and_the_holders_of_the_gil(
    loading: subprocess.Popen[bytes], sampler: StackSampler, kept: Kept
) -> None:
    if not _may_sample(loading.pid):
        pytest.skip("this machine does not let us look at other processes")
    sampler.watch(Target("job-1", 4, loading.pid))
    until_ns = time.time_ns() + 3_000_000_000
    sampler.closely([loading.pid], until_ns)
    while time.time_ns() < until_ns or sampler.busy("job-1"):
        sampler.turn()
        time.sleep(0.1)
    sampler.unwatch(loading.pid)

    for worker in (0, 1):
        loads = [frames for name, frames, _ in kept.threads if name == f"loader worker {worker}"]
        assert any("read_number" in frames for frames in loads)
    assert any(t == "GIL: helper" and "burn" in f and gil for t, f, gil in kept.threads)

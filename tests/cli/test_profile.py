"""`stepscope profile`: the order that it writes, and what it waits for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.cli.profile import Progress, order_for, ranks_of
from stepscope.errors import UsageError
from stepscope.store.location import Location
from stepscope.store.writer import JobWriter
from stepscope.trace import Host, Job
from stepscope.wire.profiling import ProfileOrder, decode_order

SECOND = 1_000_000_000
NOW_NS = 1_780_000_000 * SECOND
JOB = Job("train", 2, (Host("host-0", (0, 1)),), {}, ())
PROGRESS = Progress(100, 0.5 * SECOND, frozenset({0, 1}))


class Running:
    """A job folder in which both ranks have made steps until just now."""

    def __init__(self, folder: Path, ended_s_ago: float = 0.0) -> None:
        self.folder = folder / "train"
        self.writer = JobWriter(Location.parse(str(self.folder)), "host-0")
        self.writer.write_job(JOB)
        now = time.time_ns() - int(ended_s_ago * SECOND)
        for step in range(10):
            start = now - (10 - step) * SECOND // 10
            self.writer.append("steps", {
                "rank": [0, 1], "step": [step, step], "start_ns": [start, start],
                "duration_ns": [SECOND // 10, SECOND // 10],
            })  # fmt: skip
        self.writer.flush()

    def orders(self) -> list[ProfileOrder]:
        return [decode_order(file.read_bytes()) for file in self.folder.glob("control/*.json")]

    def answer(self) -> None:
        """What the processors do, once there is an order."""
        while not self.orders():
            time.sleep(0.01)
        order = self.orders()[0]
        self.writer.append("patterns", {
            "rank": [0, 1], "window_start_ns": [1, 1], "window_ns": [1, 1],
            "function": ["f", "f"], "kind": ["python", "python"], "beta": [0.1, 0.1],
            "mu": [0.5, 0.5], "sigma": [0.1, 0.1],
            "first_step": [order.first_step] * 2, "last_step": [order.last_step] * 2,
        })  # fmt: skip
        self.writer.flush()

    def refuse(self) -> None:
        while not self.orders():
            time.sleep(0.01)
        order = self.orders()[0]
        self.writer.append("profiles", {
            "rank": [0, 1], "host": ["h", "h"], "window": [order.window] * 2, "why": ["user"] * 2,
            "first_step": [order.first_step] * 2, "last_step": [order.last_step] * 2,
            "start_ns": [1, 1], "duration_ns": [None, None], "trace": [None, None],
            "trouble": ["another profiler is active"] * 2,
        })  # fmt: skip
        self.writer.flush()


def test_the_order_is_in_the_job_folder(tmp_path: Path) -> None:
    job = Running(tmp_path)

    assert main(["profile", str(job.folder), "--steps", "4", "--ranks", "1", "--no-wait"]) == 0

    [order] = job.orders()
    assert (order.ranks, order.why, order.last_step - order.first_step) == ((1,), "user", 3)
    assert order.first_step >= 9 + 150  # 15 seconds ahead


def test_it_waits_for_the_results_and_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Running(tmp_path)
    answering = threading.Thread(target=job.answer)
    answering.start()

    assert main(["profile", str(job.folder)]) == 0

    answering.join()
    said = capsys.readouterr()
    assert said.out == f"2 of 2 ranks profiled; next: stepscope diagnose {job.folder}\n"
    assert "asked for steps" in said.err


def test_it_does_not_wait_for_ranks_that_say_why_they_have_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Running(tmp_path)
    answering = threading.Thread(target=job.refuse)
    answering.start()

    assert main(["profile", str(job.folder)]) != 0

    answering.join()
    said = capsys.readouterr()
    assert "rank 1: another profiler is active" in said.err


def test_a_job_that_has_ended_is_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Running(tmp_path, ended_s_ago=600)

    assert main(["profile", str(job.folder)]) == 2

    assert "last step ended 600 s ago" in capsys.readouterr().err
    assert not job.orders()


def test_the_first_step_is_ahead_and_the_time_limit_fits_the_steps() -> None:
    order = order_for(PROGRESS, 20, None, (), NOW_NS)

    assert (order.first_step, order.last_step, order.seconds) == (130, 149, 50.0)
    assert order_for(PROGRESS, 2, 105, (0,), NOW_NS).first_step == 105


@pytest.mark.parametrize(("start", "ranks"), [(100, ()), (3, ()), (None, (2,))])
def test_what_cannot_be_profiled_is_refused(start: int | None, ranks: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        order_for(PROGRESS, 20, start, ranks, NOW_NS)


def test_ranks_are_written_as_people_do() -> None:
    assert ranks_of("0-2,7, 5") == (0, 1, 2, 5, 7)
    for wrong in ("", "a", "3-1", "1-", "-1", "0-99999999"):
        with pytest.raises(UsageError, match="expected ranks like"):
            ranks_of(wrong)

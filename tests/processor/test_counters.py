"""Counter windows: samples of a fake CUPTI become rows, and each problem one line."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli import main
from stepscope.errors import WireError
from stepscope.processor.counters import sampler, windows
from stepscope.processor.counters.frames import MOST_METRICS, SAMPLE_TYPE, Lost, Samples
from stepscope.processor.counters.rows import loss_rows, sample_rows
from stepscope.processor.counters.sampler import Wanted
from stepscope.processor.counters.windows import WARM_STEP, Sink, Windows
from stepscope.processor.daemon import Processor
from stepscope.processor.records.normalise import Rows
from stepscope.processor.sampling.watcher import OutsideWatcher
from stepscope.processor.settings import Settings
from stepscope.wire.control import Counted, decode_counted, decode_counters, encode_counters
from tests.native.pm import INTERVAL_NS, library, mocks

from .daemons import Daemon, ints, read, wait_for
from .producers import Producer

GPUS, METRICS = 2, 8
SHORT = Wanted(hz=10_000, seconds=0.05)
LONG = Wanted(hz=10_000, seconds=3600)


@dataclass
class Kept:
    """What a processor would store."""

    rows: list[tuple[str, str, Rows]] = field(default_factory=list)
    hurried: list[str] = field(default_factory=list)
    aside: list[frozenset[int]] = field(default_factory=list)

    def sink(self, *jobs: str) -> Sink:
        def append(job: str, table: str, rows: Rows) -> None:
            self.rows.append((job, table, rows))

        return Sink(lambda: jobs, append, self.hurried.append, self.aside.append)

    def metrics(self, job: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        for of, table, rows in self.rows:
            if (of, table) == (job, "hardware"):
                names = rows["metric"].values
                for code, count in enumerate(np.bincount(rows["metric"].codes)):
                    counted[names[code]] += int(count)
        return counted

    @property
    def lost(self) -> int:
        return sum(sum(rows["rows"]) for _, table, rows in self.rows if table == "losses")


@pytest.fixture(scope="module")
def cupti(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mocks(pytestconfig, tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def here(cupti: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine that has it."""
    monkeypatch.setattr(sampler, "cupti_folders", lambda: [cupti])
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cupti))
    yield monkeypatch


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def some(here: pytest.MonkeyPatch, kept: Kept, pytestconfig: pytest.Config) -> Iterator[Windows]:
    """Those of two GPUs and two jobs, asked for by nobody yet."""
    made = Windows("host-0", GPUS, None, kept.sink("one", "two"), library=library(pytestconfig))
    yield made
    made.close()


def finish(some: Windows) -> None:
    wait_for(lambda: not some.under_way, "end of the window")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_job_gets_each_value_with_its_period(some: Windows, kept: Kept) -> None:
    some.begin(SHORT)
    finish(some)
    for job in ("one", "two"):
        told = kept.metrics(job)
        assert len(told) == GPUS * METRICS and set(told.values()) == {999}
    periods = {int(p) for _, table, rows in kept.rows if table == "hardware"
               for p in np.unique(rows["period_ns"])}  # fmt: skip
    assert periods == {INTERVAL_NS}
    assert kept.lost == 0
    assert kept.aside == [frozenset({0, 1}), frozenset()], "NVML steps aside meanwhile"


def test_many_rows_are_stored_as_they_come(
    some: Windows, kept: Kept, here: pytest.MonkeyPatch
) -> None:
    here.setenv("MOCK_PM_SAMPLES", "20000")
    some.begin(SHORT)
    finish(some)
    assert sum(kept.metrics("one").values()) == GPUS * METRICS * 19_999
    assert {"one", "two"} <= set(kept.hurried)


def test_lost_samples_are_lost_rows(some: Windows, kept: Kept, here: pytest.MonkeyPatch) -> None:
    here.setenv("MOCK_PM_GAP", "5")
    some.begin(SHORT)
    finish(some)
    assert kept.lost == 2 * GPUS * METRICS * 5, "of two jobs"


def test_a_job_is_sampled_once_it_is_warm_and_once_only(
    here: pytest.MonkeyPatch, kept: Kept, pytestconfig: pytest.Config
) -> None:
    asked = Windows("host-0", 1, SHORT, kept.sink("one"), library=library(pytestconfig))
    asked.stepped("one", range(WARM_STEP))
    assert not asked.under_way
    asked.stepped("one", [WARM_STEP])
    assert asked.under_way
    finish(asked)
    asked.stepped("one", [WARM_STEP + 1])
    asked.stalled()
    assert not asked.under_way, "there was a window just now"
    asked.forget("one")
    asked.stepped("one", [WARM_STEP])
    assert asked.under_way
    asked.close()


def test_a_job_that_does_not_get_on_is_sampled_after_a_rest(
    here: pytest.MonkeyPatch, kept: Kept, pytestconfig: pytest.Config
) -> None:
    asked = Windows("host-0", 1, SHORT, kept.sink("one"), library=library(pytestconfig))
    asked.stalled()
    finish(asked)
    assert kept.metrics("one")
    asked.stalled()
    assert not asked.under_way
    here.setattr(windows, "REST_SECONDS", 0.0)
    asked.stalled()
    assert asked.under_way
    asked.close()


def test_counters_are_read_while_ranks_profile(
    here: pytest.MonkeyPatch, kept: Kept, pytestconfig: pytest.Config
) -> None:
    """At once, whenever the last window was, and no longer than the steps last."""
    asked = Windows("host-0", 1, Wanted(1000, 600), kept.sink("one"), library=library(pytestconfig))
    for _ in range(2):
        asked.profiled(0.2)
        assert asked.under_way
        asked.profiled(0.2)
        finish(asked)
    assert kept.metrics("one")


def test_nothing_is_sampled_unasked(some: Windows, kept: Kept) -> None:
    some.profiled(1.0)
    some.stepped("one", [WARM_STEP])
    some.stalled()
    assert not some.under_way and not kept.rows


@pytest.mark.parametrize(
    ("code", "said"), [("35", "may not read counters"), ("26", "another profiler has")]
)
def test_trouble_of_all_gpus_is_one_line(
    some: Windows, kept: Kept, here: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    code: str, said: str,
) -> None:  # fmt: skip
    here.setenv("MOCK_PM_REFUSES", code)
    some.begin(SHORT)
    finish(some)
    (line,) = warnings(caplog)
    assert line.startswith("counters of gpu0, gpu1 are not sampled: ") and said in line
    assert not kept.rows


def test_a_child_that_is_killed_is_a_line_and_the_next_window_comes(
    some: Windows, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    some.begin(LONG)
    wait_for(lambda: len(kept.metrics("one")) == GPUS * METRICS, "samples")
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    finish(some)
    (line,) = warnings(caplog)
    assert "its process was killed by signal 9" in line
    kept.rows.clear()
    some.begin(SHORT)
    finish(some)
    assert set(kept.metrics("one").values()) == {999}


def test_a_driver_that_hangs_costs_its_child_alone(
    some: Windows, here: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here.setenv("MOCK_PM_HANGS", "1")
    here.setattr(windows, "GRACE_SECONDS", 1.0)
    some.begin(SHORT)
    pids = wait_for_children(GPUS)
    finish(some)
    (line,) = warnings(caplog)
    assert "CUPTI does not respond" in line
    wait_for(lambda: not set(children()) & set(pids), "end of the children")


def test_a_child_that_cannot_even_begin_is_a_line(
    here: pytest.MonkeyPatch, kept: Kept, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "pm.so").write_text("no library")
    broken = Windows("host-0", 1, None, kept.sink("one"), library=tmp_path / "pm.so")
    broken.begin(SHORT)
    finish(broken)
    assert warnings(caplog) == [
        "counters of gpu0 are not sampled: its process exited with status 1"
    ]


def test_closing_keeps_the_samples_and_leaves_no_child(some: Windows, kept: Kept) -> None:
    some.begin(LONG)
    wait_for(lambda: len(kept.metrics("one")) == GPUS * METRICS, "samples")
    pids = wait_for_children(GPUS)
    some.close()
    assert not some.under_way and not set(children()) & set(pids)
    assert set(kept.metrics("one").values()) == {999}


@pytest.mark.parametrize(
    ("gpus", "built", "said"),
    [(0, True, "NVML finds no GPU on this host"), (1, False, "pm.so was not built")],
)
def test_why_nothing_can_be_sampled(
    kept: Kept, caplog: pytest.LogCaptureFixture, tmp_path: Path, pytestconfig: pytest.Config,
    gpus: int, built: bool, said: str,
) -> None:  # fmt: skip
    path = library(pytestconfig) if built else tmp_path / "pm.so"
    answers: list[Counted] = []
    Windows("host-0", gpus, None, kept.sink("one"), library=path).begin(SHORT, answers.append)
    ((trouble,),) = (answer.troubles for answer in answers)
    assert said in trouble and warnings(caplog) == [trouble]


def test_a_window_at_a_time(some: Windows) -> None:
    some.begin(LONG)
    answers: list[Counted] = []
    some.begin(SHORT, answers.append)
    assert answers == [Counted(0, 0, ("counters are not sampled: a window is under way",))]


def test_a_value_that_is_none_is_no_row() -> None:
    of = np.zeros(2, SAMPLE_TYPE)
    of["end_ns"] = [10, 30]
    of["start_ns"] = [0, 10]
    of["value"][:, :2] = [[0.5, np.nan], [0.25, 7.0]]
    rows = sample_rows("host-0", 3, ("sm_active", "sm_clock_mhz"), Samples(of))
    assert of["value"].shape == (2, MOST_METRICS)
    assert [rows["metric"][row] for row in range(3)] == [
        "sm_active.gpu3", "sm_active.gpu3", "sm_clock_mhz.gpu3",
    ]  # fmt: skip
    assert rows["value"].tolist() == [0.5, 0.25, 7.0]
    assert rows["ts_ns"].tolist() == [10, 30, 30] and rows["period_ns"].tolist() == [10, 20, 20]
    assert loss_rows(("a", "b"), Lost(3, 10, 40))["rows"] == [6]


def test_in_a_processor_they_land_in_the_job_folder(
    here: pytest.MonkeyPatch,
    socket_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once of itself, and once because somebody asks."""
    if not sampler.LIBRARY.exists():
        pytest.skip("the sampler was not built")
    here.setattr(OutsideWatcher, "gpus", property(lambda _: ("gpu-0",)))
    settings = Settings(
        socket_path, flush_seconds=0.1, sample_stacks=False, counters_hz=10_000,
        counters_seconds=0.05,
    )  # fmt: skip
    processor = Processor(settings)
    thread = threading.Thread(target=processor.run)
    thread.start()
    try:
        rank = warm_rank(socket_path, tmp_path)
        folder = tmp_path / "job-1"
        wait_for(lambda: of_metric(folder, "tensor_active.gpu0").size == 999, "samples")
        assert of_metric(folder, "tensor_active.gpu0").tolist() == [0.02] * 999
        ask = ["counters", "--seconds", "0.1", "--socket", str(socket_path)]
        wait_for(lambda: main(ask) == 0, "end of the window")
        assert capsys.readouterr().out == "999 samples, 0 lost\n"
        wait_for(lambda: periods(folder).count(INTERVAL_NS) == 2 * 999 * METRICS, "all rows")
        rank.close()
        wait_for(lambda: main(ask) == 2, "end of the job")
        assert "no job runs here" in capsys.readouterr().err
    finally:
        processor.stop()
        thread.join()


def test_asking_a_processor_that_cannot_says_why(
    own_daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["counters", "--socket", str(own_daemon.path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "counters are not sampled" in line


def test_requests_that_are_not_sensible_are_refused() -> None:
    for hz, seconds in ((0, 20), (1e9, 20), (1000, 0), (1000, 1e9), (float("nan"), 1)):
        assert decode_counters(memoryview(encode_counters(hz, seconds))) is None
    assert decode_counters(memoryview(encode_counters(10_000, 20))) == (10_000, 20)
    assert decode_counters(memoryview(b"[]")) is None
    with pytest.raises(WireError):
        decode_counted(memoryview(b"{}"))


def warm_rank(socket_path: Path, store: Path) -> socket.socket:
    """One that has told of enough steps, and is still there."""
    producer = Producer(0, store=str(store))
    introduction = producer.hello(), producer.tell("loader", "optimizer")
    records = [record for _ in range(WARM_STEP + 5) for record in producer.iteration()]
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(str(socket_path))
    for packet in (*introduction, producer.packet(*records)):
        line.send(packet)
    return line


def periods(folder: Path) -> list[int]:
    return ints(folder, "hardware", "period_ns")


def of_metric(folder: Path, name: str) -> np.ndarray:
    rows = read(folder).table("hardware")
    if rows is None:
        return np.zeros(0)
    return rows.floats("value")[rows.strings("metric").equals(name)]


def children() -> list[int]:
    """Samplers that this process has."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if b"counters.child" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for_children(count: int) -> list[int]:
    wait_for(lambda: len(children()) >= count, "children")
    return children()

"""Kernels by CUPTI, from a libcupti without a GPU: none is lost uncounted, nobody is disturbed."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepscope.wire.records import RECORD_BYTES, UNKNOWN, RecordKind
from tests.collect.listener import Heard, Listener, Peer
from tests.processor.daemons import Daemon, ints, strings, wait_for

from .compiling import THREADS
from .conftest import Start
from .cupti import Injected, injected
from .driver import END_SECONDS, SANITIZERS, Driver, environment

QUEUE_RECORDS = 65_536
IN_SOCKET = int(Path("/proc/sys/net/core/wmem_default").read_text()) // RECORD_BYTES
"""Records that wait in the queue and in a socket that nobody reads."""
LARGE = {"MOCK_CUPTI_KERNEL_BYTES": "65536"}
"""Each of the 32 buffers of 2 MiB holds 32 such records."""
IN_ALL_BUFFERS = 32 * 32
DECLINED = "stepscope_cupti_declined"
OLD = {"MOCK_CUPTI_VERSION": "26"}
"""The last CUPTI, of CUDA 12.8, that must not go without a buffer."""


@pytest.fixture(scope="session")
def racing(pytestconfig: pytest.Config) -> Injected:
    """Finds races."""
    return injected(pytestconfig, THREADS)


@pytest.fixture(scope="session")
def addressed(pytestconfig: pytest.Config) -> Injected:
    """Finds wrong accesses."""
    return injected(pytestconfig, ("-fsanitize=address",))


def begin(start: Start, what: Injected, **env: str) -> Driver:
    driver = start(what.program, **{**what.variables, **env})
    assert driver.ask("inject") == "1"
    return driver


def kernels(heard: Heard) -> Counter[str]:
    return Counter(record.name for record in heard.records(RecordKind.KERNEL))


def with_one_after(driver: Driver, listener: Listener, expected: int = 0) -> Counter[str]:
    """The kernels so far, if so many are expected, and one more that shows that these are all."""
    driver.ask("kernels after 1 1 1000")
    driver.ask("flush")
    return kernels(read_all(listener.accept(), expected + 1))


def lost(heard: Heard) -> int:
    return sum(counters(heard, "dropped.kernels"))


def read_all(peer: Peer, count: int) -> Heard:
    """Until so many kernels were told of or counted as lost."""
    told = looked_at = 0

    def enough(heard: Heard) -> bool:
        nonlocal told, looked_at
        told += sum(row[0] == RecordKind.KERNEL for row in heard.rows[looked_at:])
        looked_at = len(heard.rows)
        return told >= count or told + lost(heard) >= count

    return peer.read_until(enough)


def counters(heard: Heard, name: str) -> list[int]:
    names = heard.names
    return [row[4] for row in heard.rows if row[0] == RecordKind.COUNT and names[row[3]] == name]


def test_kernels_of_all_threads_are_told_of(
    racing: Injected, start: Start, listener: Listener
) -> None:
    driver = begin(start, racing)
    began_ns = time.monotonic_ns()
    driver.ask("kernels _Z4gemmIfEvPT_ 4 3000 1000")
    driver.ask("kernels flash 1 10000 2000")
    driver.ask("flush")
    heard = read_all(listener.accept(), 22_000)
    assert kernels(heard) == {"void gemm<float>(float*)": 12_000, "flash": 10_000}
    assert heard.hellos[0].source == "cupti"
    assert heard.hellos[0].rank == 1
    for record in heard.records(RecordKind.KERNEL):
        _, stream, start_ns, duration_ns, enqueue_ns, launch, _ = record.fields
        assert (stream, duration_ns) == (7, 1000 if record.name != "flash" else 2000)
        assert began_ns - 2000 <= start_ns <= time.monotonic_ns()
        assert enqueue_ns == UNKNOWN and launch > 0
    assert len({record.fields[5] for record in heard.records(RecordKind.KERNEL)}) == 22_000
    driver.end()


def test_copies_sets_graphs_and_waits(racing: Injected, start: Start, listener: Listener) -> None:
    driver = begin(start, racing)
    driver.ask("others 3 4 5 6")
    peer = listener.accept()
    read_all(peer, 12)
    heard = peer.read_until(lambda heard: sum(counters(heard, "device_wait_ns")) >= 6 * 1000)
    names = {"Memcpy HtoD (Pinned -> Device)": 3, "Memset (Device)": 4, "CUDA graph 4": 5}
    assert kernels(heard) == names
    assert sum(counters(heard, "device_wait_ns")) == 6 * 1000
    driver.end()


@pytest.mark.parametrize(("level", "told"), [("off", {}), ("node", {})])
def test_graphs_may_be_left_out(
    racing: Injected, start: Start, listener: Listener, level: str, told: dict[str, int]
) -> None:
    driver = begin(start, racing, STEPSCOPE_CUDA_GRAPHS=level)
    driver.ask("others 0 0 5 0")
    assert with_one_after(driver, listener) == {"after": 1, **told}
    driver.end()


@pytest.mark.parametrize(("level", "told"), [("off", {}), ("graph", {"inside": 3})])
def test_after_another_profiler_kernels_of_graphs_come_one_by_one(
    racing: Injected, start: Start, listener: Listener, level: str, told: dict[str, int]
) -> None:
    """CUPTI crashes processes that launch a graph which is older than its recording of graphs."""
    driver = begin(start, racing, STEPSCOPE_CUDA_GRAPHS=level)
    driver.ask("profiler 0")
    driver.ask("others 0 0 5 0")
    driver.ask("in-graph 4")
    driver.ask("kernels inside 1 3 1000")
    driver.ask("in-graph 0")
    assert with_one_after(driver, listener, sum(told.values())) == {"after": 1, **told}
    driver.end()


@pytest.mark.parametrize(("level", "seen"), [("off", 5), ("graph", 5), ("node", 3)])
def test_that_there_are_graphs_is_told(
    racing: Injected, start: Start, listener: Listener, level: str, seen: int
) -> None:
    """Their kernels cannot be counted one by one against what was called."""
    driver = begin(start, racing, STEPSCOPE_CUDA_GRAPHS=level)
    driver.ask("others 0 0 5 0")
    driver.ask("in-graph 4")
    if level == "node":
        driver.ask("kernels inside 1 3 1000")
    driver.ask("flush")
    metric = "stepscope_cupti_graphs"
    heard = listener.accept().read_until(lambda heard: seen in counters(heard, metric))
    assert counters(heard, metric)[-1] == seen
    driver.end()


def test_a_processor_counts_as_many_as_were_launched(
    racing: Injected, start: Start, daemon: Daemon, tmp_path: Path
) -> None:
    env = {"STEPSCOPE_STORE": str(tmp_path)}
    driver = begin(start, racing, **env)
    driver.ask("kernels gemm 2 4000 1000")
    driver.end()
    folder = tmp_path / "job-1"
    wait_for(lambda: sum(ints(folder, "kernel_summaries", "count")) >= 8000, "summaries")
    assert sum(ints(folder, "kernel_summaries", "count")) == 8000
    assert set(strings(folder, "kernel_summaries", "kernel")) == {"gemm"}
    for p50_ns in ints(folder, "kernel_summaries", "p50_ns"):
        assert p50_ns == pytest.approx(1000, rel=0.01)
    assert ints(folder, "losses", "rows") == []


@pytest.mark.parametrize("version", [{}, OLD])
def test_what_finds_no_buffer_is_counted(
    racing: Injected, start: Start, listener: Listener, version: dict[str, str]
) -> None:
    driver = begin(start, racing, **LARGE, **version)
    driver.ask("hold 1")
    driver.ask("kernels gemm", 1, IN_ALL_BUFFERS + 100, 1000)
    driver.ask("hold 0")
    driver.ask("kernels after 1 10 1000")
    driver.ask("flush")
    peer = listener.accept()
    heard = read_all(peer, IN_ALL_BUFFERS + 110)
    assert lost(heard) + kernels(heard).total() == IN_ALL_BUFFERS + 110
    assert lost(heard) >= 100
    peer.read_until(lambda heard: max(counters(heard, DECLINED), default=0) >= 100)
    driver.end()


def test_a_reader_that_does_not_read_costs_rows_that_are_counted(
    addressed: Injected, start: Start, listener: Listener
) -> None:
    driver = begin(start, addressed)
    peer = listener.accept()
    launched = QUEUE_RECORDS + IN_SOCKET + 5000
    driver.ask("kernels gemm", 1, launched, 1000)
    driver.ask("flush")
    heard = read_all(peer, launched)
    assert kernels(heard).total() + lost(heard) == launched
    assert lost(heard) > 0
    driver.end()


def test_what_has_no_times_is_lost(racing: Injected, start: Start, listener: Listener) -> None:
    driver = begin(start, racing)
    driver.ask("untimed 3 2")
    driver.ask("kernels gemm 1 4 1000")
    driver.ask("flush")
    heard = read_all(listener.accept(), 9)
    assert (lost(heard), kernels(heard)) == (5, {"gemm": 4})
    driver.end()


def launch(
    driver: Driver, count: int, every_s: float, seconds: float, finalized: int | None = None
) -> int:
    """Launches so many kernels again and again, for some seconds at most, or until CUPTI was
    detached so many times; returns how many."""
    launched, until = 0, time.monotonic() + seconds
    while time.monotonic() < until and driver.ask("finalized") != str(finalized):
        launched += int(driver.ask(f"kernels gemm 1 {count} 1000"))
        time.sleep(every_s)
    return launched


def test_more_kernels_than_the_budget_allows_are_recorded_in_a_part_of_the_time(
    racing: Injected, start: Start, listener: Listener
) -> None:
    """Ten thousand a second cost about 1 %: with 0.1 %, they are recorded for 0.625 s in ten."""
    driver = begin(start, racing, STEPSCOPE_KERNEL_BUDGET="0.001")
    peer = listener.accept()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(peer.read_to_the_end)
        launched = launch(driver, 500, 0.05, 8)
        driver.ask("flush")
        driver.end()
        heard = reading.result()
    assert counters(heard, "stepscope_cupti_parts")[-1] in (8, 16, 32)
    assert 0 < kernels(heard)["gemm"] < launched / 2
    assert lost(heard) == 0, "what is not recorded is no loss"


def test_between_the_parts_cupti_leaves_the_process(
    racing: Injected, start: Start, listener: Listener
) -> None:
    """Each call of CUDA costs the host more as long as it is there."""
    driver = begin(start, racing, STEPSCOPE_KERNEL_BUDGET="0.001", STEPSCOPE_CUPTI_DETACH="1")
    peer = listener.accept()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(peer.read_to_the_end)
        launched = launch(driver, 100, 0.02, 25, finalized=2)
        assert driver.ask("finalized") == "2", "it came back for the next part, and left again"
        driver.end()
        heard = reading.result()
    assert 0 < kernels(heard)["gemm"] < launched / 2
    assert lost(heard) == 0, "what is not recorded is no loss"


def test_another_profiler_comes_while_cupti_is_away(
    racing: Injected, start: Start, listener: Listener
) -> None:
    driver = begin(start, racing, STEPSCOPE_KERNEL_BUDGET="0.001", STEPSCOPE_CUPTI_DETACH="1")
    peer = listener.accept()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(peer.read_to_the_end)
        launch(driver, 500, 0.02, 15, finalized=1)
        others_bytes, strange = driver.ask("profiler 50").split()
        driver.end()
        heard = reading.result()
    assert int(others_bytes) > 0 and strange == "0", "the other one got its own"
    assert "others" not in kernels(heard)


def test_a_forked_child_is_silent(racing: Injected, start: Start, listener: Listener) -> None:
    driver = begin(start, racing)
    peer = listener.accept()
    driver.ask("kernels before 1 5 1000")
    assert driver.ask("fork 50") == "0"
    driver.ask("kernels after 1 5 1000")
    driver.ask("flush")
    assert kernels(read_all(peer, 10)) == {"before": 5, "after": 5}
    assert not listener.has_visitor()
    driver.end()


def test_another_profiler_gets_its_kernels_and_we_ours_again(
    racing: Injected, start: Start, listener: Listener
) -> None:
    driver = begin(start, racing)
    driver.ask("kernels before 1 5 1000")
    assert driver.numbers("profiler 3") == [3 * 216, 0]
    driver.ask("kernels after 1 5 1000")
    driver.ask("flush")
    heard = read_all(listener.accept(), 10)
    assert kernels(heard) == {"before": 5, "after": 5}
    assert counters(heard, "stepscope_cupti_paused")[:2] == [1, 0]
    driver.end()


def test_who_was_paused_before_cuda_began_records_afterwards(
    racing: Injected, start: Start, listener: Listener
) -> None:
    driver = start(racing.program, **racing.variables)
    driver.ask("pause")
    assert driver.ask("inject") == "1"
    driver.ask("kernels others 1 5 1000")
    driver.ask("resume")
    driver.ask("kernels ours 1 5 1000")
    driver.ask("flush")
    assert kernels(read_all(listener.accept(), 5)) == {"ours": 5}
    driver.end()


def test_a_rank_that_becomes_another_program_is_the_rank_still(
    racing: Injected, start: Start, listener: Listener
) -> None:
    driver = begin(start, racing)
    listener.accept()
    assert driver.ask("exec") == "next"
    assert driver.ask("inject") == "1"
    driver.ask("kernels gemm 1 5 1000")
    driver.ask("flush")
    assert kernels(read_all(listener.accept(), 5)) == {"gemm": 5}
    driver.end()


def test_times_are_right_when_another_profiler_left_its_clock(
    racing: Injected, start: Start, listener: Listener
) -> None:
    driver = begin(start, racing)
    driver.ask("ticks")
    driver.ask("profiler 0")
    began_ns = time.monotonic_ns()
    driver.ask("kernels gemm 1 5 1000000")
    driver.ask("flush")
    heard = read_all(listener.accept(), 5)
    for record in heard.records(RecordKind.KERNEL):
        _, _, start_ns, duration_ns, *_ = record.fields
        assert duration_ns == pytest.approx(1_000_000, rel=1e-3)
        assert began_ns - 3_000_000 < start_ns < time.monotonic_ns()
    assert lost(heard) == 0
    driver.end()


def test_what_is_left_is_told_at_exit_and_not_at_a_sudden_end(
    racing: Injected, start: Start, listener: Listener
) -> None:
    sudden, orderly = begin(start, racing), begin(start, racing)
    for driver in (sudden, orderly):
        driver.ask("kernels gemm 1 5 1000")
    peers = [listener.accept(), listener.accept()]
    sudden.end("_exit")
    orderly.end()
    told = sorted(kernels(peer.read_to_the_end()).total() for peer in peers)
    assert told in ([0, 5], [5, 5])


def injects(what: Injected, socket: Path, command: str, **env: str) -> str:
    """Has a process with such a command line use CUDA; what it said on standard error."""
    ours = {**SANITIZERS, **environment(socket, **what.variables)}
    done = subprocess.run(
        command.split("|"), executable=what.program, input="inject\nexit\n", text=True,
        env={name: value for name, value in (ours | env).items() if value},
        capture_output=True, timeout=END_SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1"]
    return done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "/venv/bin/python|/venv/bin/torchrun|train.py",
        "python3|-u|-m|torch.distributed.run|train.py",
        "python|/lib/torch/_inductor/compile_worker/__main__.py|--pickler=x",
        "python|-X|dev|-c|from multiprocessing.spawn import spawn_main; spawn_main()|--m",
    ],
)
def test_launchers_and_helpers_are_left_alone(
    racing: Injected, listener: Listener, command: str
) -> None:
    assert injects(racing, listener.path, command) == ""
    assert not listener.has_visitor()


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": ""},
        {"STEPSCOPE_SOCKET": ""},
        {"STEPSCOPE_OWNER": "1"},
        {"STEPSCOPE_CUPTI_OWNER": "1"},
    ],
)
def test_who_is_no_rank_is_left_alone(
    racing: Injected, listener: Listener, env: dict[str, str]
) -> None:
    assert injects(racing, listener.path, "python|train.py", **env) == ""
    assert not listener.has_visitor()


def test_a_rank_is_recorded_whatever_its_script_is_called(
    racing: Injected, listener: Listener
) -> None:
    assert injects(racing, listener.path, "python|-u|/jobs/deepspeed/train.py|torchrun") == ""
    assert listener.has_visitor()


def test_where_cupti_refuses_training_goes_on(racing: Injected, listener: Listener) -> None:
    said = injects(racing, listener.path, "python|train.py", MOCK_CUPTI_REFUSES="1")
    assert said.startswith("stepscope: kernels are not recorded: CUPTI refuses")
    assert said.count("\n") == 1


def test_no_memory_is_misused(addressed: Injected, start: Start, listener: Listener) -> None:
    driver = begin(start, addressed, **LARGE, **OLD)
    peer = listener.accept()
    driver.ask("hold 1")
    driver.ask("kernels _Z4gemmIfEvPT_ 3", IN_ALL_BUFFERS, 1000)
    driver.ask("hold 0")
    driver.ask("others 1 2 3 0")
    driver.ask("untimed 1 1")
    driver.ask("profiler 5")
    driver.ask("fork 5")
    driver.ask("flush")
    launched = 3 * IN_ALL_BUFFERS + 6 + 2
    heard = read_all(peer, launched)
    assert kernels(heard).total() + lost(heard) == launched
    driver.end()

"""How the processes of ranks ended. Each rank here is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stepscope.processor.sampling.out_of_memory import KernelLog, OomKills
from stepscope.wire.control import encode_exited
from stepscope.wire.frames import PacketKind, pack

from .daemons import Daemon, ints, wait_for

RANK = """
import os, signal, sys
from stepscope.collect import identity
from stepscope.collect.session import Session
from stepscope.wire.records import RecordKind

path, store, job, rank, how = sys.argv[1:]
session = Session(path, identity.Identity(job, store, "host-0", int(rank), 3))
session.emit(RecordKind.PHASE, 0, session.name("forward"), 1, 1)
session.find_rank = lambda: None
print("ready", flush=True)
sys.stdin.readline()
exec(how)
"""


class Rank:
    """A training process that ends in a given way when it is told to."""

    def __init__(self, daemon: Daemon, store: Path, job: str, how: str, rank: int = 0) -> None:
        command = [sys.executable, "-c", RANK, str(daemon.path), str(store), job, str(rank), how]
        env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=env, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        wait_for((store / job / "topology").exists, "connection of the rank")

    def end(self) -> None:
        """Lets it end; it stays a zombie, as until a launcher looks."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def reap(self) -> None:
        self.process.communicate()


def exits(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "exits").glob("**/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


NORMAL = {"status": 0, "signal": None, "announced": True, "reason": None, "detail": None}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "normal": ("pass", NORMAL),
    "status": ("sys.exit(7)", {**NORMAL, "status": 7}),
    "exception": (
        "raise ValueError('bad sample')",
        {**NORMAL, "status": 1, "reason": "exception", "detail": "ValueError: bad sample"},
    ),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        {**NORMAL, "status": None, "signal": int(signal.SIGKILL), "announced": False},
    ),
    "at once": ("os._exit(9)", {**NORMAL, "status": 9, "announced": False}),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_a_rank_is_recorded(daemon: Daemon, tmp_path: Path, way: str) -> None:
    how, expected = WAYS[way]
    rank = Rank(daemon, tmp_path, "job", how)
    rank.end()
    wait_for(lambda: bool(exits(tmp_path / "job")), "row")
    rank.reap()

    (row,) = exits(tmp_path / "job")
    assert {name: row[name] for name in expected} == expected
    assert (row["rank"], row["host"], row["pid"]) == (0, "host-0", rank.process.pid)
    raised = "<module> (<string>:13);<module> (<string>:1)" if way == "exception" else None
    assert row["frames"] == raised


def test_what_a_library_says_before_it_aborts_is_recorded(daemon: Daemon, tmp_path: Path) -> None:
    """It says so on a thread of its own; the sender passes it on, and then the process ends."""
    says = "gloo::EnforceNotMet: data size doesn't match"
    how = f"session.abort({says!r}); import time; time.sleep(1)"
    rank = Rank(daemon, tmp_path, "job", f"{how}; os.abort()")
    rank.end()
    wait_for(lambda: bool(exits(tmp_path / "job")), "row")
    rank.reap()
    (row,) = exits(tmp_path / "job")
    assert (row["signal"], row["reason"], row["detail"]) == (signal.SIGABRT, "exception", says)


def test_the_parent_that_was_faster_says_how_it_ended(daemon: Daemon, tmp_path: Path) -> None:
    """As `stepscope run` does, whose command may be the rank itself."""
    rank = Rank(daemon, tmp_path, "job", "os._exit(5)")
    rank.end()
    rank.reap()
    said = encode_exited(rank.process.pid, rank.process.returncode)
    with daemon.connect(pack(PacketKind.CONTROL, said, os.getpid(), 0)):
        wait_for(lambda: bool(exits(tmp_path / "job")), "row")
    (row,) = exits(tmp_path / "job")
    assert (row["status"], row["announced"]) == (5, False)


def test_a_report_that_is_wanted_now_includes_who_has_just_died(
    daemon: Daemon, tmp_path: Path
) -> None:
    rank = Rank(daemon, tmp_path, "job", "os._exit(5)")
    rank.end()
    rank.reap()
    assert daemon.flush("job") == {"flushed": "job", "trouble": None}
    (row,) = exits(tmp_path / "job")
    assert row["announced"] is False


def test_a_processor_that_leaves_accuses_nobody(own_daemon: Daemon, tmp_path: Path) -> None:
    rank = Rank(own_daemon, tmp_path, "job", "pass")
    assert own_daemon.terminate() == 0
    rank.end()
    rank.reap()
    assert ints(tmp_path / "job", "exits", "pid") == []


def test_the_kernel_says_whom_it_killed(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(b"3,1,1,-;Out of memory: Killed process 17 (old) total-vm:1kB\n")
    kernel = KernelLog(str(log))
    with log.open("ab") as file:
        file.write(b"3,2,2,-;Memory cgroup out of memory: Killed process 42 (python) anon-rss:9\n")
    line = "Memory cgroup out of memory: Killed process 42 (python) anon-rss:9"
    assert (kernel.killed(17), kernel.killed(42), kernel.killed(42)) == (None, line, None)
    kernel.close()


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/job", "sys/fs/cgroup/job/memory.events"),
        ("4:cpu,memory:/job", "sys/fs/cgroup/memory/job/memory.oom_control"),
    ],
)
def test_the_memory_cgroup_counts_kills(tmp_path: Path, line: str, file: str) -> None:
    """Version 2 and version 1."""
    for path, text in (("proc/42/cgroup", f"9:pids:/\n{line}\n"), (file, "oom_kill 3\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    kills = OomKills(42, tmp_path)
    assert not kills.any_new()
    (tmp_path / file).write_text("under_oom 0\noom_kill 4\n")
    assert kills.any_new()

"""A simulated job sent to a processor, rank by rank, over a real socket."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli import main, ranks
from stepscope.cli.ranks import Rank, store_and_name
from stepscope.collect import sender
from stepscope.errors import UsageError
from stepscope.evaluate.producers import groups_of, hello_of
from stepscope.evaluate.records import by_rank
from stepscope.simulate import Simulation, simulate
from stepscope.store import JobReader
from stepscope.window import Table
from stepscope.wire.frames import Names
from stepscope.wire.records import COMM_OPEN, RecordKind
from tests.collect.listener import Heard, Listener
from tests.processor.daemons import PATIENCE_SECONDS, Daemon, ints, wait_for
from tests.simulate.jobs import a_scenario

Capture = pytest.CaptureFixture[str]

SHORT_STEPS = """
ranks = 4
steps = 30
detail = "normal"
parallelism = { tp = 2, microbatches = 1 }
hardware = { gpus_per_host = 2 }
[workload]
attention_ms = 1.0
mlp_ms = 1.0
head_ms = 0.2
optimizer_ms = 1.0
launch_us = 1.0
gradient_mb = 20.0
"""
"""Fifteen milliseconds each: the job takes the time that it takes."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: pytest's own folders are too long for a socket's path on some machines."""
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        yield Path(folder)


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    daemon = Daemon(folder / "p.sock")
    yield daemon
    daemon.kill()


def test_a_job_sent_to_a_processor_is_diagnosed(
    daemon: Daemon, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "EXIT_SECONDS", PATIENCE_SECONDS)
    (folder / "job.toml").write_text(SHORT_STEPS, encoding="utf-8")
    out = folder / "practice"
    what = [str(folder / "job.toml"), "--fault", "gpu_slow:rank=2,factor=2"]
    assert main(["simulate", *what, "--live", "--socket", str(daemon.path), "--out", str(out)]) == 0
    assert "--follow" in capsys.readouterr().err
    wait_for(lambda: len(ints(out, "steps", "step")) == 120, "steps")
    assert main(["diagnose", str(out), "--json"]) == 1
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["ranks"], verdict["hosts"], verdict["cause"]) == ([2], ["host-001"], "compute")

    window = JobReader(str(out)).refresh()
    assert window.job.job_id == "practice" and window.job.fabric is not None
    assert [host.nics[0] for host in window.job.hosts] == ["nic-0", "nic-0"]
    assert all(nic.startswith("nic-") for host in window.job.hosts for nic in host.nics)
    assert "stacks" not in window.tables and "kernel_summaries" not in window.tables


def test_a_socket_is_for_a_live_job(folder: Path, capsys: Capture) -> None:
    assert main(["simulate", "--socket", "/nowhere", "--out", str(folder / "job")]) == 2
    assert "--socket needs --live" in capsys.readouterr().err


def test_a_folder_that_no_processor_would_make(folder: Path, capsys: Capture) -> None:
    few = ["--ranks", "2", "--steps", "1", "--microbatches", "1"]
    out = folder / "two words"
    assert main(["simulate", *few, "--live", "--socket", "/nowhere", "--out", str(out)]) == 2
    assert "name another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "store", "name"),
    [("/practice", "/", "practice"), ("/runs/a/", "/runs", "a"), ("s3://b/a", "s3://b", "a")],
)
def test_a_processor_creates_the_requested_folder(out: str, store: str, name: str) -> None:
    assert store_and_name(out) == (store, name)


def test_a_bucket_is_no_folder_of_a_job() -> None:
    with pytest.raises(UsageError, match="is a bucket"):
        store_and_name("s3://bucket")


@pytest.fixture
def stuck() -> Simulation:
    """Rank 1 stops in the first step, rank 0 waits for it."""
    return simulate(a_scenario("hang:rank=1,from=0,at=host", ranks=2, steps=1))


def a_rank(simulation: Simulation, socket: Path, room: int = 1000) -> Rank:
    (host, *_), groups = simulation.job.hosts, groups_of(simulation.job)
    hello = hello_of(simulation.job, "/store", host, 0, time.time_ns(), time.monotonic_ns())
    return Rank(hello, Names(groups=groups[0]), socket, room)


def rows_of(simulation: Simulation, *names: str) -> dict[str, Table]:
    return {name: by_rank(simulation.window.table(name))[0] for name in names}


def test_a_new_processor_gets_open_operators_again(
    stuck: Simulation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(sender, "RECONNECT_SECONDS", 0.02)
    monkeypatch.setattr(ranks, "COST_SECONDS", 0.02)
    listener = Listener(folder / "s")
    rank = a_rank(stuck, listener.path)
    rank.record(rows_of(stuck, "phases", "comm_ops"))
    peer = listener.accept()
    first = in_flight(peer.read_until(something_is_in_flight))
    peer.close()
    again = listener.accept().read_until(something_is_in_flight)
    assert in_flight(again) == first and "dp-0" in first
    assert again.hellos[0].at_risk is not None and "dp-0" in again.groups()
    rank.close()
    listener.close()


def in_flight(heard: Heard) -> set[str]:
    """The groups of the operators that have not ended."""
    return {one.name for one in heard.records(RecordKind.COMM) if one.flags == COMM_OPEN}


def something_is_in_flight(heard: Heard) -> bool:
    return bool(in_flight(heard))


def test_a_stuck_processor_does_not_block_ranks(stuck: Simulation, folder: Path) -> None:
    listener = Listener(folder / "s")
    rank = a_rank(stuck, listener.path, room=100)
    rows = rows_of(stuck, "phases")
    sent = 200 * (len(rows["phases"]) + 1)  # and the batch
    for _ in range(200):
        rank.record(rows)
    assert 100 < rank.close() <= sent
    listener.close()

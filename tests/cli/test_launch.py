"""What `stepscope run` says to the processor it starts, and when one runs already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import deaths, main
from stepscope.cli.launch import HostProcessor, job_name
from stepscope.processor.settings import Settings
from stepscope.store import JobWriter, job_location

SETTINGS = Settings(
    sample_stacks=False, traces=False, keep_kernels=True,
    keep_hours=5.0, keep_gb=2.5, remote_write="http://x/write",
)  # fmt: skip
OPTIONS = [
    "--no-stacks",
    "--no-traces",
    "--kernels",
    "--keep-hours",
    "5.0",
    "--keep-gb",
    "2.5",
    "--remote-write",
    "http://x/write",
]


def test_jobs_that_start_in_the_same_second_have_different_names() -> None:
    now = datetime(2026, 11, 28, 19, 35, 49, tzinfo=timezone.utc)
    name = job_name(["torchrun", "train.py"], {}, now)
    assert name == f"train-20261128-193549-{os.getpid()}"


def test_the_hosts_of_a_step_of_slurm_have_one_name() -> None:
    command = ["torchrun", "train.py"]
    assert job_name(command, {"SLURM_JOB_ID": "77"}) == "train-77"
    assert job_name(command, {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}) == "train-77.2"


def test_a_started_processor_gets_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def popen(command: list[str], **_: Any) -> None:
        started.append(command)

    answers = iter([False, True])
    monkeypatch.setattr("subprocess.Popen", popen)
    monkeypatch.setattr(HostProcessor, "_answers", lambda _: next(answers))
    monkeypatch.setattr(HostProcessor, "_wait", lambda _: None)
    HostProcessor(tmp_path / "p.sock", SETTINGS.options()).ensure()
    assert started[0][-len(OPTIONS) :] == OPTIONS


def test_a_processor_that_is_slow_to_start_does_not_keep_training_from_it(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a host whose processors are all busy: a monitor that is late is no reason to fail."""
    monkeypatch.setattr("stepscope.cli.launch._START_SECONDS", 0.0)
    monkeypatch.setattr(HostProcessor, "_answers", lambda _: False)
    processor = HostProcessor(socket_path)
    processor.ensure()
    slow = processor._process
    assert slow is not None and "the command starts without it" in caplog.text
    processor.keep()
    assert processor._process is slow, "it is still starting"
    slow.kill()
    slow.wait()


def test_a_running_processor_keeps_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HostProcessor, "_answers", lambda _: True)
    HostProcessor(tmp_path / "p.sock").ensure()
    assert caplog.text == ""
    HostProcessor(tmp_path / "p.sock", SETTINGS.options()).ensure()
    assert "a processor is already running" in caplog.text and "--keep-gb 2.5" in caplog.text


def test_a_processor_that_was_killed_is_noted_once(socket_path: Path, tmp_path: Path) -> None:
    """Also one that left nothing else behind: no data is no healthy job."""
    processor = HostProcessor(socket_path)
    processor.ensure()
    started = processor._process
    assert started is not None and not processor.deaths()
    started.kill()
    started.wait()
    (death,) = processor.deaths()
    assert not processor.deaths()
    assert (death.pid, death.returncode) == (started.pid, -signal.SIGKILL)
    deaths.note(death, str(tmp_path), "job")
    command = [sys.executable, "-m", "stepscope", "diagnose", str(tmp_path / "job"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("stepscope: no data: nothing was recorded in ")
    assert "killed (SIGKILL) at " in line


def test_of_two_commands_that_start_at_once_the_slower_notes_no_death(socket_path: Path) -> None:
    """Each started a processor before either answered; one of them is enough."""
    faster, slower = HostProcessor(socket_path), HostProcessor(socket_path)
    faster.ensure()
    slower._start()
    slower._wait()
    serving, superseded = faster._process, slower._process
    assert serving is not None and superseded is not None
    superseded.wait()
    assert not slower.deaths() and not faster.deaths()
    serving.kill()
    serving.wait()
    slower.keep()
    (death,) = slower.deaths()
    assert death.returncode is None, "what became of another command's processor is unknown"
    assert slower._process is not None
    slower._process.terminate()
    slower._process.wait()


def test_the_diagnosis_names_the_recorder_that_died(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--ranks", "4", "--steps", "20", "--out", str(tmp_path / "job")]) == 0
    deaths.note(deaths.Death(1_766_000_000 * 10**9, 7, -9), str(tmp_path), "job")
    capsys.readouterr()
    main(["diagnose", str(tmp_path / "job"), "--json"])
    skipped = json.loads(capsys.readouterr().out)["skipped"]
    (dead,) = (one for one in skipped if one["method"].startswith("recorder on "))
    assert dead["why"].startswith("killed (SIGKILL) at 2025-12-17 19:33:20 UTC")


def test_a_signal_without_a_name_has_a_number() -> None:
    death = deaths.Death(1_766_000_000 * 10**9, 7, -35)
    assert "was killed (signal 35)" in str(death), "most real-time signals have none"


def test_the_diagnosis_says_which_ranks_other_processes_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As processors count them: every new one that is refused is one more."""
    assert main(["simulate", "--ranks", "4", "--steps", "20", "--out", str(tmp_path / "job")]) == 0
    claims = [(1, 1), (2, 1), (3, 1), (3, 2)]
    writer = JobWriter(job_location(str(tmp_path), "job"), "host-000")
    writer.append("hardware", {
        "rank": [rank for rank, _ in claims], "host": ["host-000"] * 4,
        "metric": ["rank_claims_refused"] * 4, "ts_ns": [1_766_000_000 * 10**9] * 4,
        "value": [float(count) for _, count in claims],
    })  # fmt: skip
    assert writer.close().ok
    capsys.readouterr()
    main(["diagnose", str(tmp_path / "job"), "--json"])
    printed = capsys.readouterr()
    refused = {one["method"]: one["why"] for one in json.loads(printed.out)["skipped"]
               if one["method"].startswith("rank ")}  # fmt: skip
    assert list(refused) == ["rank 1", "rank 2", "rank 3"]
    assert refused["rank 3"].startswith("also claimed by 2 other live processes, not recorded")
    once, twice = (line for line in printed.err.splitlines() if "also claimed by" in line)
    assert once.startswith("stepscope: warning: rank 1, rank 2: also claimed by 1 other live")
    assert twice.startswith("stepscope: warning: rank 3: also claimed by 2 other")
    main(["diagnose", str(tmp_path / "job")])
    assert "rank 3: also claimed by 2 other live processes" in capsys.readouterr().out

"""What `stepscope run` says to the processor it starts, and when one runs already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.launch import HostProcessor
from stepscope.processor.settings import Settings

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


def test_a_running_processor_keeps_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HostProcessor, "_answers", lambda _: True)
    HostProcessor(tmp_path / "p.sock").ensure()
    assert caplog.text == ""
    HostProcessor(tmp_path / "p.sock", SETTINGS.options()).ensure()
    assert "a processor is already running" in caplog.text and "--keep-gb 2.5" in caplog.text

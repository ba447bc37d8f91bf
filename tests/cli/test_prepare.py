"""Compiling before the training starts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.cli.prepare import interpreter, prepare_for
from stepscope.collect.native import build

FAILS = shutil.which("false") or "/bin/false"


def script(path: Path, first_line: str) -> Path:
    path.write_text(f"{first_line}\nprint()\n")
    path.chmod(0o755)
    return path


def test_the_python_of_a_command(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    other = script(tmp_path / "python3.9", "#!/bin/sh")
    script(tmp_path / "torchrun", f"#!{other}")
    script(tmp_path / "accelerate", "#!/usr/bin/env python3.9")
    script(tmp_path / "mpirun", "#!/bin/sh")

    assert interpreter(["torchrun", "--nproc-per-node", "8", "train.py"], env) == str(other)
    assert interpreter(["accelerate", "launch", "train.py"], env) == str(other)
    assert interpreter(["mpirun", "-n", "8", "python3.9", "train.py"], env) == str(other)
    assert interpreter(["mpirun", "./train.py"], env) == sys.executable
    assert interpreter(["missing"], env) == sys.executable


def test_prepare_prints_where_the_library_lies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare"]) == 0
    assert Path(capsys.readouterr().out.strip()).exists()


def test_prepare_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = script(tmp_path / "python", "#!/bin/sh")
    assert main(["prepare", "--python", str(python)]) == 2
    assert "cannot find torch; name another interpreter" in capsys.readouterr().err


def test_a_failing_compiler_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("CXX", FAILS)

    prepare_for(["torchrun", "train.py"], {"PATH": ""})
    notice, why = capsys.readouterr().err.splitlines()
    assert "compiling hooks for this version of torch, once" in notice
    assert "recorded from Python, at 0.1 ms each" in why and "failed" in why

    assert main(["prepare"]) == 2
    assert "not compiled: compiling failed before" in capsys.readouterr().err


def test_nothing_is_compiled_if_native_hooks_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(build.NATIVE_VARIABLE, "0")
    prepare_for(["torchrun", "train.py"], {"PATH": ""})
    assert not (tmp_path / "cache").exists() and capsys.readouterr().err == ""

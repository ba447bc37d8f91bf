"""Libraries that ranks load because `stepscope run` was asked to have them do so."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli import native
from stepscope.errors import UsageError


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    for _, file in native.LIBRARIES.values():
        (tmp_path / file).touch()
    return tmp_path


def test_nothing_is_set_by_default(built: Path) -> None:
    assert native.variables(None, {}) == {}


def test_both_are_named_by_their_variables(built: Path) -> None:
    assert native.variables("cupti,nccl", {}) == {
        "CUDA_INJECTION64_PATH": str(built / "libstepscope_cupti.so"),
        "NCCL_PROFILER_PLUGIN": str(built / "libnccl-profiler-stepscope.so"),
    }


def test_a_switch_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path / "empty")
    assert native.variables("phases,modules", {}) == {
        "STEPSCOPE_PHASES": "device", "STEPSCOPE_MODULES": "32",
    }  # fmt: skip
    assert native.variables("modules", {"STEPSCOPE_MODULES": "8"}) == {"STEPSCOPE_MODULES": "8"}


def test_another_profiler_is_not_replaced(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert native.variables("cupti", {"CUDA_INJECTION64_PATH": "/nsys.so"}) == {}
    assert "CUDA_INJECTION64_PATH is already set to /nsys.so" in capsys.readouterr().err


def test_our_library_may_be_set_already(built: Path) -> None:
    ours = native.variables("nccl", {})
    assert native.variables("nccl", ours) == ours


def test_a_library_that_was_not_built_is_reported(built: Path) -> None:
    (built / "libstepscope_cupti.so").unlink()
    with pytest.raises(UsageError, match="was not built"):
        native.variables("cupti", {})


def test_a_misspelt_name_is_reported(built: Path) -> None:
    with pytest.raises(
        UsageError, match="unknown --native 'cuda'; known: cupti, nccl, phases, modules"
    ):
        native.variables("cuda", {})

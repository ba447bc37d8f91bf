"""The command line as a whole: light to start, helpful, versioned."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stepscope
from stepscope import cli
from stepscope.cli import COMMANDS, main
from stepscope.errors import StoreError

HEAVY = ("numpy", "pyarrow", "obstore", "jinja2", "psutil", "torch")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, stepscope.cli as c; c.main(['-h']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & set(HEAVY)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepscope {stepscope.__version__}\n"


def test_without_a_command_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "stepscope diagnose" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c.__name__.rsplit(".", 1)[-1].rstrip("_") for c in COMMANDS])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "status"), [(StoreError("disk full"), 2), (KeyboardInterrupt(), 130)]
)
def test_what_a_command_raises_becomes_a_status(
    raised: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> int:
        raise raised

    monkeypatch.setattr(cli, "_invoke", fail)
    assert main([]) == status

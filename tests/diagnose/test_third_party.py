"""The method of docs/methods/README.md, installed from a package of its own and run by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.writing import write_window
from stepscope.store.location import Location

from .jobs import Fault, a_job

README = Path(__file__).parents[2] / "docs/methods/README.md"
LONGEST_EXAMPLE = 50


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package lies after an installation as users do it."""
    (code,), (project,) = blocks("python"), blocks("toml")
    assert len(code.splitlines()) <= LONGEST_EXAMPLE
    source = tmp_path_factory.mktemp("slow-optimizer")
    (source / "slow_optimizer.py").write_text(code, encoding="utf-8")
    (source / "pyproject.toml").write_text(project, encoding="utf-8")
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--no-build-isolation", "--target", str(target), str(source)],
        check=True, timeout=120,
    )  # fmt: skip
    return target


def stepscope(installed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "stepscope.cli", *args], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False,
    )  # fmt: skip


def test_it_is_listed(installed: Path) -> None:
    shown = stepscope(installed, "methods")
    assert shown.returncode == 0
    assert "slow-optimizer" in shown.stdout.split("Methods of other packages")[1]


def test_it_runs_alone_by_name_and_names_the_rank(installed: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    slow = a_job(faults=[Fault((2,), "optimizer", 0, times=3.0)])
    write_window(slow, Location.parse(str(job)), "host-0")
    shown = stepscope(installed, "diagnose", str(job), "--method", "slow-optimizer")
    assert shown.returncode == 1, shown.stderr
    assert shown.stdout.startswith("slow: rank 2 computes 2.9x slower than its peers in optimizer")
    assert "slow-optimizer: its optimizer takes 2.9" in shown.stdout


def test_a_name_that_nobody_has_is_an_error(installed: Path, tmp_path: Path) -> None:
    shown = stepscope(installed, "diagnose", str(tmp_path), "--method", "slow-optimiser")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "no method is called slow-optimiser; `stepscope methods` lists" in shown.stderr

"""An installation that could not compile its native part, for want of Python's headers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .recordings import write_traces
from .test_job_folder import write_job

_WITHOUT = """
import sys
sys.modules["stepscope._native"] = None  # importing it fails, as if it were not there
from stepscope.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_native(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_traces_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    done = without_native("diagnose", write_traces(tmp_path / "traces", slow_rank=2))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "Python's headers (python3-dev" in done.stderr


def test_job_folders_are_read_all_the_same(tmp_path: Path) -> None:
    write_job(tmp_path / "job", slow_rank=3)
    assert without_native("diagnose", tmp_path / "job").returncode == 1

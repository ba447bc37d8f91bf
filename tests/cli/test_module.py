"""`python -m stepscope` is the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_package_runs_as_a_module_with_the_commands_exit_status(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ran = subprocess.run(
        [sys.executable, "-m", "stepscope", "diagnose", str(missing)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"stepscope: no such folder: {missing};")

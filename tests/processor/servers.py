"""Real VictoriaMetrics and Prometheus servers, as Debian packages them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE_SECONDS = 60.0
"""Nothing is measured by it: what takes longer hangs."""

_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "victoria-metrics": (
        "-httpListenAddr=127.0.0.1:0", "-storageDataPath={folder}", "-retentionPeriod=1y",
        "-search.latencyOffset=0s", "-loggerLevel=ERROR",
    ),
    "prometheus": (
        "--config.file={folder}/prometheus.yml", "--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:0", "--web.enable-remote-write-receiver",
        "--log.level=error",
    ),
}  # fmt: skip
NAMES = tuple(_COMMANDS)


def wait_for(condition: Any, what: str) -> Any:
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < until, f"no {what} after {PATIENCE_SECONDS} s"
        time.sleep(0.05)
    return found


class Server:
    """One server; the system chooses its port."""

    def __init__(self, name: str, folder: Path) -> None:
        (folder / "prometheus.yml").write_text("")
        arguments = [one.format(folder=folder) for one in _COMMANDS[name]]
        self._process = subprocess.Popen([binary(name), *arguments], cwd=folder)
        self.place = f"127.0.0.1:{wait_for(self._port, f'port of {name}')}"
        self.write_url = f"http://{self.place}/api/v1/write"
        wait_for(self._is_ready, name)

    def _port(self) -> int:
        assert self._process.poll() is None, "it did not start"
        sockets = psutil.Process(self._process.pid).net_connections("tcp")
        return next((one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN), 0)

    def _is_ready(self) -> bool:
        try:
            return bool(self.query("vector(1)", time.time()))
        except (OSError, ValueError):
            return False

    def query(self, expression: str, at_s: float) -> list[tuple[dict[str, str], float]]:
        """The series that an expression gives at a moment: labels and value."""
        self._hurry()
        asked = urllib.parse.urlencode({"query": expression, "time": f"{at_s:.3f}", "nocache": 1})
        with urllib.request.urlopen(f"http://{self.place}/api/v1/query?{asked}", timeout=30) as got:
            answer = json.load(got)
        assert answer["status"] == "success", answer
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def wait_for(self, expression: str, at_s: float) -> list[tuple[dict[str, str], float]]:
        """The same as soon as there is some: servers show what is new after a while."""
        found: list[tuple[dict[str, str], float]] = wait_for(
            lambda: self.query(expression, at_s), expression
        )
        return found

    def _hurry(self) -> None:
        """VictoriaMetrics shows new series after up to ten seconds, or when told to."""
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{self.place}/internal/force_flush", timeout=30).close()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def binary(name: str) -> str:
    """Skips the test where it is not installed; in CI it must be, if apt has it there."""
    path = shutil.which(name)
    if path is None:
        excused = "STEPSCOPE_WITHOUT_SERVERS" in os.environ
        assert excused or not os.environ.get("CI"), f"{name} is not installed: see .ci/run"
        pytest.skip(f"{name} is not installed; on Debian: apt-get install {name}")
    return path

"""A launcher tells at once which of its children stops, and loses nothing of how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collect.children import is_launcher
from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, unpack

from .listener import PATIENCE_SECONDS

LAUNCHER = """
import subprocess, sys
from stepscope.collect.children import watch_children

watch_children(sys.argv[1])
stops = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); raise SystemExit(7)"
raise SystemExit(subprocess.Popen([sys.executable, "-c", stops]).wait())
"""


@pytest.fixture
def door(socket_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(socket_path))
        listening.listen()
        listening.settimeout(PATIENCE_SECONDS)
        yield listening


def said(line: socket.socket) -> dict[str, int | None]:
    header, payload = unpack(line.recv(MAX_PACKET_BYTES))
    assert header.kind == PacketKind.CONTROL
    told: dict[str, int | None] = json.loads(bytes(payload))
    return told


def test_a_child_that_stops_is_told_of(
    door: socket.socket, socket_path: Path, tmp_path: Path
) -> None:
    script = tmp_path / "torchrun"
    script.write_text(LAUNCHER)
    with subprocess.Popen([sys.executable, str(script), str(socket_path)]) as launcher:
        line, _ = door.accept()
        line.settimeout(PATIENCE_SECONDS)
        assert said(line) == {"parent": launcher.pid, "stopped": None}
        stopped = said(line)["stopped"]
        assert isinstance(stopped, int)
        line.close()
        os.kill(stopped, signal.SIGCONT)
    assert launcher.returncode == 7


@pytest.mark.parametrize("command", [
    "python /usr/bin/torchrun --nproc-per-node 4 train.py",
    "python -m torch.distributed.run train.py",
    "python -u -m deepspeed.launcher.launch --world_info=x train.py",
    "python /venv/bin/accelerate launch train.py",
])  # fmt: skip
def test_launchers(command: str) -> None:
    assert is_launcher(command.split())


@pytest.mark.parametrize("command", [
    "python train.py torchrun", "python -u train.py", "python", "python -c code torchrun",
    "python -m train torch.distributed.run",
])  # fmt: skip
def test_others(command: str) -> None:
    assert not is_launcher(command.split())

"""Another user's process that listens where a processor would. Only root can start one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")

_IMPOSTOR = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listens", flush=True)
    while True:
        connection, _ = listening.accept()
        print(len(connection.recv(100)), flush=True)
"""


@contextmanager
def impostor(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another user's process that listens where our processor would."""
    path.parent.chmod(0o777)
    listens = [sys.executable, "-c", _IMPOSTOR, str(path)]
    with subprocess.Popen(listens, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        path.parent.chmod(0o700)
        try:
            yield process
        finally:
            process.kill()


def received(process: subprocess.Popen[str]) -> int:
    """How much the impostor has received from its next visitor."""
    assert process.stdout is not None
    return int(process.stdout.readline())

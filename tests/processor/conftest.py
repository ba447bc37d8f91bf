"""A processor in its own folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemons import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One for all stories in which it survives, as it must."""
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        daemon = Daemon(Path(folder) / "p.sock")
        yield daemon
        try:
            assert daemon.is_alive
            assert daemon.terminate() == 0
        finally:
            daemon.kill()


@pytest.fixture
def own_daemon(socket_path: Path) -> Iterator[Daemon]:
    """One that may be killed."""
    daemon = Daemon(socket_path)
    yield daemon
    daemon.kill()

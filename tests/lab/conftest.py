"""Hosts in a box need permission to make namespaces; without it what needs them is skipped."""

from __future__ import annotations

import pytest

from lab import hosts


@pytest.fixture(scope="session")
def permitted() -> None:
    try:
        hosts.check()
    except hosts.NotPermittedError as why:
        pytest.skip(f"hosts cannot be made here: {why}")

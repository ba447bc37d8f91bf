"""What holds for all tests of diagnosis."""

from __future__ import annotations

import pytest

from stepscope.diagnose import search
from stepscope.diagnose.method import Detector


@pytest.fixture(autouse=True)
def errors_are_raised(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Users are spared a method's error, tests are not, except those about that."""

    def raised(searched: object, detector: Detector, error: Exception) -> None:
        raise error

    if request.module.__name__ != "tests.diagnose.test_faults":
        monkeypatch.setattr(search.Search, "_survive", raised)

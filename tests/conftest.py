"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No test judges time. In CI a change is tested by the same examples however often it is tried.
settings.register_profile(
    "stepscope", deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)  # fmt: skip
settings.load_profile("stepscope")

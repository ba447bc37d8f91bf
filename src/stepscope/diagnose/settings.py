"""What a diagnosis looks for."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnose.expected import NOTHING, Expected
from stepscope.window import Window


@dataclass(frozen=True)
class Settings:
    """What to look for."""

    methods: tuple[str, ...] = ()
    """Names of the only detectors to run; empty: all that run by default."""
    explain: tuple[int, ...] | None = None
    """Ranks that the trail must speak of; empty: those nearest to a verdict; None: none."""
    expected: Expected = NOTHING
    """What functions do in the user's healthy jobs."""
    baseline: Window | None = None
    """A healthy job, or steps of this one, which the job is compared with."""


DEFAULT = Settings()

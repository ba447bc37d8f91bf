"""Where jobs and their ranks are, for those who decide what is profiled (`state.windows`)."""

from __future__ import annotations

from pathlib import Path

from stepscope.processor.profiling.profiles import Profiles
from stepscope.processor.sampling.watcher import OutsideWatcher
from stepscope.processor.state.orders import Timing


class JobPlaces:
    """What only a running processor knows of its jobs."""

    def __init__(self, profiles: Profiles, watcher: OutsideWatcher) -> None:
        self._profiles, self._watcher = profiles, watcher

    def timing(self, job: str, world_size: int) -> Timing:
        """How long orders of a job take to reach all of its hosts."""
        return Timing.of(is_local=self._profiles.is_local(job), world_size=world_size)

    def folder(self, job: str) -> Path | None:
        """Where ranks of a job write traces."""
        return self._profiles.folder(job)

    def held_up(self) -> frozenset[int]:
        """Processes that a quota stops for much of the time."""
        return self._watcher.held_up

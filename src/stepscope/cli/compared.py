"""`stepscope diagnose --baseline OTHER[#STEPS]`: the healthy job that a job is compared with."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.window import Window

logger = logging.getLogger(__name__)

_STEPS = re.compile(r"(?P<source>.+)#(?P<first>\d{1,18})-(?P<last>\d{1,18})")


@dataclass(frozen=True)
class Baseline:
    """A source, and some of its steps; None: all of them."""

    source: str
    steps: tuple[int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> Baseline:
        """Reads `JOB` or `JOB#100-200`.

        Raises:
            UsageError: the steps are no range.
        """
        found = _STEPS.fullmatch(text)
        if found is None:
            if "#" in text and not Path(text).exists():
                raise UsageError(
                    f"--baseline {text}: write a folder, or one with a range of steps: JOB#100-200"
                )
            return cls(text)
        first, last = int(found["first"]), int(found["last"])
        if first > last:
            raise UsageError(f"--baseline {text}: the first step comes after the last one")
        return cls(found["source"], (first, last))

    def beside(self, window: Window, source: str) -> tuple[Window, Window]:
        """What is to be diagnosed, and the healthy job or steps.

        Args:
            window: all of `source`.

        Raises:
            UsageError: the two cannot be compared.
            SourceError: the healthy job cannot be read.
        """
        if _is_same(self.source, source):
            return self._parts_of(window)
        healthy = self._read()
        if healthy.job.world_size != window.job.world_size:
            raise UsageError(
                f"--baseline {self.source} has {healthy.job.world_size} ranks and {source} has "
                f"{window.job.world_size}: only jobs of one size can be compared"
            )
        return window, self._checked(healthy)

    def _read(self) -> Window:
        from stepscope.cli.sources import open_window

        healthy, problems = open_window(self.source)
        for problem in problems:
            logger.warning("--baseline: %s", " ".join(problem.split()))
        return healthy if self.steps is None else self._cut(healthy)

    def _parts_of(self, window: Window) -> tuple[Window, Window]:
        """What follows on the healthy steps, or what precedes them if nothing follows."""
        from stepscope.diagnose.views.some_steps import in_steps
        from stepscope.diagnose.views.timeline import timeline

        if self.steps is None:
            raise UsageError(
                f"--baseline is the job itself; name its healthy steps: {self.source}#100-200"
            )
        first, last = self.steps
        steps, healthy = timeline(window).steps, self._checked(self._cut(window))
        if steps[-1] > last:
            return in_steps(window, (last + 1, int(steps[-1]))), healthy
        if steps[0] < first:
            return in_steps(window, (int(steps[0]), first - 1)), healthy
        raise UsageError(f"--baseline {self.source}#{first}-{last} leaves no step to diagnose")

    def _cut(self, window: Window) -> Window:
        from stepscope.diagnose.views.some_steps import in_steps
        from stepscope.diagnose.views.timeline import timeline

        assert self.steps is not None
        recorded = timeline(window).steps
        first, last = self.steps
        if not recorded.size or first > recorded[-1] or last < recorded[0]:
            has = f"steps {recorded[0]} to {recorded[-1]}" if recorded.size else "no steps"
            raise UsageError(f"--baseline {self.source}#{first}-{last}: it has {has}")
        return in_steps(window, self.steps)

    def _checked(self, healthy: Window) -> Window:
        from stepscope.diagnose.views.timeline import timeline

        if not timeline(healthy).steps.size:
            raise SourceError(f"--baseline {self.source} has no steps to compare with")
        return healthy


def _is_same(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return Path(one).resolve() == Path(other).resolve()

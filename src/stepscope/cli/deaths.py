"""Writes down in a job folder that its recorder died: what is missing there is no evidence."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.trace.signals import signal_name

if TYPE_CHECKING:
    from stepscope.processor.records.normalise import Rows

logger = logging.getLogger(__name__)

_RECORDER = -1
"""The rank of a processor in table `exits`."""


@dataclass(frozen=True)
class Death:
    """The end of a processor that nobody asked to end."""

    ts_ns: int
    pid: int | None = None
    """None if another command had started it."""
    returncode: int | None = None

    def __str__(self) -> str:
        from stepscope.report import units

        return f"the processor {self._how} at {units.moment(self.ts_ns)}"

    @property
    def _how(self) -> str:
        if self.returncode is None:
            return "vanished"
        if self.returncode >= 0:
            return f"exited with status {self.returncode}"
        return f"was killed ({signal_name(-self.returncode)})"

    def row(self, host: str) -> Rows:
        code = self.returncode
        killed = code is not None and code < 0
        return {
            "rank": [_RECORDER], "host": [host], "pid": [self.pid], "ts_ns": [self.ts_ns],
            "status": [None if killed else code], "signal": [-code if code and killed else None],
            "announced": [False], "reason": [None], "detail": [None],
        }  # fmt: skip


def note(death: Death, root: str, job: str) -> None:
    """Adds the death to table `exits` of the job; a store that cannot be written is logged."""
    from stepscope.errors import StepscopeError
    from stepscope.store.layout import job_location
    from stepscope.store.location import Location
    from stepscope.store.writer import JobWriter
    from stepscope.trace.host import host_name

    host = host_name()
    try:
        writer = JobWriter(job_location(Location.parse(root), job), f"{host}-run")
    except StepscopeError as error:
        logger.warning("the death of the processor is not recorded: %s", error)
        return
    writer.append("exits", death.row(host))
    status = writer.flush(now=True)
    if status.error is not None:
        logger.warning("the death of the processor is not recorded: %s", status.error)

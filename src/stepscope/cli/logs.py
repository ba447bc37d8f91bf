"""Configures logging for the command line; the library itself only calls `getLogger`."""

from __future__ import annotations

import copy
import logging

from stepscope.report.plain import printable

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def configure(verbosity: int) -> None:
    """Logs to stderr: warnings by default, INFO with `-v`, DEBUG with `-vv`."""
    detailed = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(
        _LowerCaseWarnings(detailed if verbosity else "stepscope: %(levelname)s: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("stepscope").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])


class _LowerCaseWarnings(logging.Formatter):
    """Prints WARNING in lower case."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.WARNING:
            record = copy.copy(record)
            record.levelname = "warning"
        return printable(super().format(record), kept="\n")

"""Logging of the command line: the library only ever calls `getLogger`."""

from __future__ import annotations

import copy
import logging

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def configure(verbosity: int) -> None:
    """Warnings as plain lines on stderr; with `-v` what stepscope does, with `-vv` in detail."""
    detailed = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(_Quiet(detailed if verbosity else "stepscope: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("stepscope").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])


class _Quiet(logging.Formatter):
    """A warning does not shout."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.WARNING:
            record = copy.copy(record)
            record.levelname = "warning"
        return super().format(record)

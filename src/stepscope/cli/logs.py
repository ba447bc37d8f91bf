"""Logging of the command line: the library only ever calls `getLogger`."""

from __future__ import annotations

import logging

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def configure(verbosity: int) -> None:
    """Warnings as plain lines on stderr; with `-v` what stepscope does, with `-vv` in detail."""
    detailed = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    form = detailed if verbosity else "stepscope: %(levelname)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, force=True)
    logging.addLevelName(logging.WARNING, "warning")
    logging.getLogger("stepscope").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])

"""`stepscope.phase("name")`: a phase that the user defines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepscope.collect.guard import guarded

if TYPE_CHECKING:
    from stepscope.collect.phases import Moment
    from stepscope.collect.session import Session


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Names a part of the training loop, which then appears beside forward and backward.

    Works as a context manager and as a decorator, and does nothing if stepscope does not record:

        with stepscope.phase("tokenize"):
            batch = tokenize(lines)
    """
    startup = sys.modules.get("stepscope.collect.startup")
    session: Session | None = startup.session if startup is not None else None
    start = session.now() if session is not None and session.enabled else None
    try:
        yield
    finally:
        if session is not None and start is not None:
            _finish(session, name, start)


@guarded
def _finish(session: Session, name: str, start: Moment) -> None:
    session.phase(name, start, session.now())

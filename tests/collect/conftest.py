"""A listener in a folder of its own, and a session that talks to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepscope.collect import guard, identity, sender, startup
from stepscope.collect.session import Session


@pytest.fixture(autouse=True)
def faults_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal fault fails the test, unless it takes this variable away."""
    monkeypatch.setenv(guard.RAISE_VARIABLE, "1")


@pytest.fixture
def new_session(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Session]]:
    """Sessions that flush and reconnect in no time, and are closed at the end."""
    monkeypatch.setattr(sender, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(sender, "FLUSH_SECONDS", 0.02)
    monkeypatch.setattr(sender, "RECONNECT_SECONDS", 0.02)
    monkeypatch.setenv(identity.OWNER_VARIABLE, str(os.getpid()))
    sessions: list[Session] = []

    def make() -> Session:
        who = identity.Identity("job-1", "/store", "host-0", rank=3, world_size=8, local_rank=1)
        sessions.append(Session(str(socket_path), who))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
        session.disable()


@pytest.fixture
def session(new_session: Callable[[], Session]) -> Session:
    return new_session()


@pytest.fixture
def installed(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The session that `stepscope.phase` finds."""
    monkeypatch.setattr(startup, "session", session)
    return session

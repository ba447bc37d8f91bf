"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    WORKS = "works"
    ABSENT = "absent"
    """Not available on this machine, which is no error."""
    BLOCKED = "blocked"
    """Present or required, but not usable as it is."""


@dataclass(frozen=True)
class Check:
    name: str
    gives: str
    """The data that it provides."""
    state: State
    found: str
    """What was found, or the reason why it is not usable."""
    advice: str | None = None
    """A command or a setting; None if there is nothing to do."""


@dataclass(frozen=True)
class Subject:
    """What a check examines; creates its results."""

    name: str
    gives: str

    def works(self, found: str, advice: str | None = None) -> Check:
        return Check(self.name, self.gives, State.WORKS, found, advice)

    def absent(self, found: str) -> Check:
        return Check(self.name, self.gives, State.ABSENT, found)

    def blocked(self, found: str, advice: str) -> Check:
        return Check(self.name, self.gives, State.BLOCKED, found, advice)

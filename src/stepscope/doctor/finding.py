"""What was found of one thing that can be collected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    WORKS = "works"
    ABSENT = "absent"
    """This machine has none, and nothing is wrong with that."""
    BLOCKED = "blocked"
    """It is there, or has to be, and cannot be used as it is."""


@dataclass(frozen=True)
class Check:
    name: str
    gives: str
    """What is collected by it."""
    state: State
    found: str
    """What was found, or why not."""
    advice: str | None = None
    """What to type or to set; None where there is nothing to do."""


@dataclass(frozen=True)
class Subject:
    """What a check is about; gives its answers."""

    name: str
    gives: str

    def works(self, found: str, advice: str | None = None) -> Check:
        return Check(self.name, self.gives, State.WORKS, found, advice)

    def absent(self, found: str) -> Check:
        return Check(self.name, self.gives, State.ABSENT, found)

    def blocked(self, found: str, advice: str) -> Check:
        return Check(self.name, self.gives, State.BLOCKED, found, advice)

"""The conditions under which a job is diagnosed: as it is, stripped, or as collectors write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.evaluate.collectors import COLLECTORS, TOPOLOGY, collected
from stepscope.evaluate.strip import FIVE_STEPS, STRIPS, Context
from stepscope.window import Window

EVERYTHING = "everything"
"""The name of the condition under which nothing is removed."""
ALL = "all"
BY = "by "
"""Begins the names of sets of collectors, because a set, too, is called `all`."""


@dataclass(frozen=True)
class Condition:
    """Strips that are applied one after the other, or a set of collectors.

    It consists of words, so that it can be sent to other processes.
    """

    name: str = EVERYTHING
    strips: tuple[str, ...] = ()
    collectors: str = ""
    topology: bool = False

    @property
    def help(self) -> str:
        if self.collectors:
            plus = "; the user supplies the switches" if self.topology else ""
            return COLLECTORS[self.collectors].help + plus
        return "; ".join(STRIPS[one].help for one in self.strips) or "nothing is removed"

    @property
    def cuts_steps(self) -> bool:
        """Whether it removes steps, and with them perhaps the fault."""
        whole = bool(self.collectors) and COLLECTORS[self.collectors].whole_steps
        return whole or FIVE_STEPS in self.strips

    def apply(self, window: Window, context: Context) -> Window:
        """The job under this condition."""
        if self.collectors:
            return collected(window, self.collectors, self.topology)
        for one in self.strips:
            window = STRIPS[one].apply(window, context)
        return window


WHOLE = Condition()


def stripped(words: str) -> tuple[Condition, ...]:
    """The strips in `no-kernels,half-ranks+no-stacks`; `all`: each of them by itself.

    Raises:
        UsageError: there is no such strip.
    """
    names = list(STRIPS) if words == ALL else _split(words)
    return tuple(Condition(name, _known(name.split("+"), STRIPS, "strip")) for name in names)


def as_collected(words: str) -> tuple[Condition, ...]:
    """The sets of collectors in `hooks,all+topology`.

    Raises:
        UsageError: there is no such set.
    """
    return tuple(map(_collectors, _split(words)))


def _collectors(name: str) -> Condition:
    base, *added = name.split("+")
    _known([base], COLLECTORS, "set of collectors")
    _known(added, {TOPOLOGY: None}, "addition to collectors")
    return Condition(f"{BY}{name}", (), base, bool(added))


def _split(words: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


def _known(names: Sequence[str], known: Mapping[str, object], what: str) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} {name}; known: {', '.join(known)}")
    return tuple(names)


def listing() -> str:
    """All strips and sets of collectors, one per line."""
    every = [*((one.name, one.help) for one in STRIPS.values()),
             *((one.name, one.help) for one in COLLECTORS.values())]  # fmt: skip
    wide = max(len(name) for name, _ in every)
    lines = [f"  {name.ljust(wide)}  {help}" for name, help in every]
    addition = f"  {f'…+{TOPOLOGY}'.ljust(wide)}  any of these, and the user supplies the switches"
    return "\n".join(["--strip:", *lines[: len(STRIPS)], "", "--collectors:",
                      *lines[len(STRIPS) :], addition]) + "\n"  # fmt: skip

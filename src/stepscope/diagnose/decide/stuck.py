"""Of the findings about a job that is stuck, those that explain the others.

A process that ended explains the hang that it causes, and so does a mismatch: ranks that called
what does not match wait for ever. Such a mismatch is reported with the time that the job has
stood still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stepscope.diagnose.finding import Stuck


class Explained(NamedTuple):
    """What is reported, and what that explains."""

    causes: tuple[Stuck, ...]
    effects: tuple[Stuck, ...]


def without_effects(found: Sequence[Stuck]) -> Explained:
    """The findings without hangs that a mismatch, or a process that ended, explains."""
    ended = any(one.ended for one in found)
    clashes = [one for one in found if one.mismatched and one.method != "desync"]
    hangs = [one for one in found if one.method == "hang"]
    effects = [hang for hang in hangs
               if ended or any(_explains(one, hang) for one in clashes)]  # fmt: skip
    causes = [_with_hang(one, effects) if one in clashes else one
              for one in found if one not in effects]  # fmt: skip
    return Explained(tuple(causes), tuple(effects))


def _explains(clash: Stuck, hang: Stuck) -> bool:
    """Whether a hang is in the group of the mismatch; or in its step, and accuses nobody else."""
    if clash.group == hang.group:
        return True
    in_its_step = hang.steps is not None and hang.steps == clash.steps
    return in_its_step and hang.ranks in ((), clash.ranks)


def _with_hang(clash: Stuck, hangs: Sequence[Stuck]) -> Stuck:
    """A mismatch with what is known of the hang that it causes."""
    hang = next((one for one in hangs if _explains(clash, one)), None)
    if hang is None or clash.time_ns is None or hang.time_ns is None:
        return clash
    still = tuple(one for one in hang.decisions if one.rule == "no-progress")
    waiting = (hang.victims or 0) - len(set(clash.ranks) - set(hang.ranks))
    return replace(clash, unfinished=True, victims=waiting,
                   decisions=(*clash.decisions, *still),
                   time_ns=(clash.time_ns[0], hang.time_ns[1]))  # fmt: skip

"""What threads beside the training thread do in profiled steps: loader workers, and the GIL.

None of it is on the critical path by itself: the training thread waits for it, or not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.views.patterns import GIL, MAIN, Function, Patterns
from stepscope.window import Floats

_WORKER = re.compile(r"loader worker \d+")
IDLE = ("select", "poll", "accept", "_recv", "_wait_for_tstate_lock")
"""Functions in which a worker waits for work."""
BUSY = 0.5
"""Part of their time that workers must spend in a function that holds up the loader. Our choice."""


def busiest_worker(window: Patterns) -> tuple[Function, float] | None:
    """What loader workers do for at least half of their time, and for how much of it."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    shown: dict[tuple[str, str], Function] = {}
    total = 0.0
    for at, one in enumerate(window.functions):
        if _WORKER.fullmatch(one.thread):
            share = float(np.nansum(window.beta[at]))
            key = one.name, one.location.rpartition(":")[0]
            spent[key] += share
            shown.setdefault(key, one)
            total += share
    if not spent:
        return None
    most = max(spent, key=lambda key: spent[key])
    if spent[most] < BUSY * total or shown[most].name.rpartition(".")[2] in IDLE:
        return None
    return shown[most], spent[most] / total


@dataclass(frozen=True)
class Holder:
    """A thread that holds the GIL while the training thread could use it."""

    function: Function
    """In which it holds it longest."""
    held: Floats
    """By rank, the share of the window; NaN where it was not sampled."""


def gil_holder(window: Patterns) -> Holder | None:
    """The thread, other than the training thread and ours, that holds the GIL longest."""
    by_thread: dict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(window.functions):
        if (
            one.thread.startswith(GIL)
            and one.thread != GIL + MAIN
            and "stepscope" not in one.thread
        ):
            by_thread[one.thread].append(at)
    if not by_thread:
        return None
    held = {name: np.nansum(window.beta[rows], axis=0) for name, rows in by_thread.items()}
    thread = max(held, key=lambda name: float(held[name].sum()))
    longest = max(by_thread[thread], key=lambda at: float(np.nansum(window.beta[at])))
    known = np.isfinite(window.own)
    return Holder(window.functions[longest], np.where(known, held[thread], np.nan))


def idle_share(window: Patterns) -> Floats:
    """By rank, for how much of the window its training thread works without using its processor."""
    idle = np.zeros(window.own.size)
    for at, one in enumerate(window.functions):
        if one.trains and not one.waits and one.kind in ("python", "operator"):
            use = np.nan_to_num(
                window.mu[at] if one.resource == "cpu" else np.ones(idle.size), nan=1.0
            )
            idle += np.nan_to_num(window.beta[at]) * (1 - np.clip(use, 0, 1))
    return np.where(np.isfinite(window.own), idle, np.nan)

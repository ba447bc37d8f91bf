"""What threads beside the training thread do in profiled steps: loader workers, and the GIL.

None of it is on the critical path by itself: the training thread waits for it, or not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.patterns import Function, Patterns
from stepscope.diagnose.views.stack_rows import MAIN
from stepscope.trace import GIL
from stepscope.window import Floats, Ints, Mask

_WORKER = re.compile(r"loader worker \d+")
IDLE = ("select", "poll", "accept", "_recv", "_wait_for_tstate_lock")
"""Functions in which a worker waits for work."""
HOLDS = 0.25
"""Share of the time that a thread must hold the GIL to be the reason why another waits for it. Our
choice; helper threads of ordinary jobs hold it for below 0.02 (measured on real data)."""


def busiest_worker(window: Patterns, rows: Ints) -> tuple[Function, float] | None:
    """What loader workers of some ranks do for at least half of their time, and for how much."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    shown: dict[tuple[str, str], Function] = {}
    total = 0.0
    for at, one in enumerate(window.functions):
        if _WORKER.fullmatch(one.thread):
            share = float(np.nansum(window.beta[at, rows]))
            key = one.name, one.location.rpartition(":")[0]
            spent[key] += share
            shown.setdefault(key, one)
            total += share
    if not spent:
        return None
    most = max(spent, key=lambda key: spent[key])
    if spent[most] < HALF * total or shown[most].name.rpartition(".")[2] in IDLE:
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
    idle = np.nansum(window.beta - using_processor(window), axis=0)
    return np.where(np.isfinite(window.own), idle, np.nan)


def own_beta(window: Patterns) -> Floats:
    """`[function, rank]`, shares of the window; where another thread holds the GIL, what the
    training thread spends without its processor is left out: it waits for the GIL then."""
    holder = gil_holder(window)
    if holder is None:
        return window.beta
    held: Mask = np.nan_to_num(holder.held) >= HOLDS
    return np.where(held, using_processor(window), window.beta)


def using_processor(window: Patterns) -> Floats:
    """`[function, rank]`, shares of the window without what the training thread spends in operators
    and Python while its processor does nothing for it."""
    used = window.beta.copy()
    for at, one in enumerate(window.functions):
        works = one.trains and not one.waits and one.kind in ("python", "operator")
        if works and one.resource == "cpu":
            used[at] *= np.clip(np.nan_to_num(window.mu[at], nan=1.0), 0, 1)
    return used

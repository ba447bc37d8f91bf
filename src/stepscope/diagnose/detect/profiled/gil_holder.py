"""A helper thread that computes in Python and so holds the GIL, which the training thread needs.

Fault: a thread that logs, compresses, pins or preprocesses in pure Python. Whenever the training
thread wants the GIL back (after each operator, each wait), it waits for up to 5 ms.
Paper: EROICA (2026), section 4.1, samples all threads; the GIL is ours.
Rule: py-spy says how often each thread held the GIL while steps were profiled. What it costs is at
most what the training thread spends in operators and Python without using its processor, and at
most as long as the other thread held the GIL.
Cost: one pass over the functions. Cannot see: threads that hold the GIL outside of profiled steps,
extensions that never release it (they show as slow functions of their own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account.belief import unusual_bits
from stepscope.diagnose.account.ranges import OWN_CODE
from stepscope.diagnose.detect.profiled.pattern_waste import wasted, windows_now
from stepscope.diagnose.finding import Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.patterns import Patterns
from stepscope.diagnose.views.threads import HOLDS, Holder, gil_holder, idle_share
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import short_frame


class GilHolder:
    """Threads that hold the GIL while the training thread needs it."""

    name = "gil-holder"
    needs = Needs("patterns")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        for window in windows_now(job)[-1:]:
            holder = gil_holder(window)
            if holder is not None:
                yield from _found(job, window, holder)


def _found(job: Observed, window: Patterns, holder: Holder) -> Iterator[Waste]:
    rows = np.flatnonzero(holder.held >= HOLDS)
    if not rows.size:
        return
    loss = stats.median(np.minimum(idle_share(window), holder.held)[rows])
    everyone = rows.size == window.rows.size and rows.size > 1
    ranks = () if everyone else job.line.ranks_of(rows)
    held, frame = stats.median(holder.held[rows]), holder.function.in_users_code
    who = "all ranks" if everyone else name_ranks(ranks)
    says = f"a thread of {who} holds the GIL for {percent(held)} of the time: {short_frame(frame)}"
    thread = holder.function.thread.partition(" ")[2]
    detail = (
        f"thread {thread} holds the GIL for {percent(held)} of the sampled time; the training "
        f"thread is in operators and Python for {percent(loss)} of the steps without a processor"
    )
    found = wasted(
        job, window, "host", loss, unusual_bits(loss, OWN_CODE), says, detail, function=frame,
        values={"held": held}, ranks=ranks, method=GilHolder.name,
    )  # fmt: skip
    yield replace(found, holds_gil=True)

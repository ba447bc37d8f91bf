"""What the workers of a slow loader do: the training thread shows only that it waits for them.

Paper: EROICA (2026), section 4.1, profiles Python in all processes of a worker's rank.
What differs: a finding of data loading whose function belongs to the loader gets the function in
which the loader's workers spend most of their time in profiled steps.
Cost: one pass over the functions of a window.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.finding import Evidence, Finding, Slowdown, Waste
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.frames import is_users
from stepscope.diagnose.views.patterns import Patterns
from stepscope.diagnose.views.threads import busiest_worker
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import short_frame


def with_workers(job: Observed, one: Finding) -> Finding:
    """The finding; one of data loading with what the workers do, if profiled steps show it."""
    if one.cause != "data_loading" or not isinstance(one, (Slowdown, Waste)):
        return one
    windows = [window for window in job.patterns if _is_within(window, one)]
    named = one.function is not None and is_users(one.function)
    if named or not windows:
        return one
    rows = job.line.rows(np.array(one.ranks, np.int64)) if one.ranks else windows[-1].rows
    worker = busiest_worker(windows[-1], rows)
    if worker is None:
        return one
    function, share = worker
    frame = function.in_users_code
    detail = f"the loader's workers spend {percent(share)} of their time in {frame}"
    if isinstance(one, Slowdown):
        shown = Evidence("loader-workers", detail, {"share": share})
        return replace(one, function=frame, supporting=(*one.supporting, shown))
    says = f"{one.says}; the loader's workers are in {short_frame(frame)}"
    return replace(one, function=frame, says=says, detail=f"{one.detail}; {detail}")


def _is_within(window: Patterns, one: Finding) -> bool:
    if window.steps is None or one.steps is None:
        return True
    return one.steps[0] <= window.steps[0] and window.steps[1] <= one.steps[1]

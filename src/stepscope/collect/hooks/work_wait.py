"""`Work.wait`: where a script waits for an operator that it started."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stepscope.collect.guard import report


def watch_wait(waited: Callable[[Any, int, bool], None]) -> None:
    """Calls `waited` after each wait with the work, the start of the wait, and its success."""
    from torch._C._distributed_c10d import Work

    original = Work.wait

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns, finished = time.monotonic_ns(), False
        try:
            result = original(self, *args, **kwargs)
            finished = True
            return result
        finally:
            try:
                waited(self, start_ns, finished)
            except Exception as error:  # noqa: BLE001 - the guest's promise
                report("Work.wait", error)

    wait.__doc__ = original.__doc__
    Work.wait = wait  # type: ignore[method-assign]

"""Where a script waits for operators: `Work.wait`, and DDP's broadcasts of a model's buffers."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from stepscope.collect.guard import guarded, report
from stepscope.collect.session import Session


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


def watch_broadcasts(session: Session) -> None:
    """Counts the time of `_broadcast_coalesced` as blocked: it waits in C++ for each broadcast.

    DDP calls it in forward if the model has buffers (batch normalisation): there all ranks wait for
    the first one.
    """
    import torch.distributed as dist

    original = dist._broadcast_coalesced

    @guarded
    def blocked(start_ns: int) -> None:
        if threading.get_ident() == session.training_thread:
            session.shared.blocked_ns += time.monotonic_ns() - start_ns

    @functools.wraps(original)
    def broadcast(*args: Any, **kwargs: Any) -> Any:
        start_ns = time.monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            blocked(start_ns)

    dist._broadcast_coalesced = broadcast

"""`backward()`: where forward ends and how long backward takes.

`Tensor.backward` and every framework go through `torch.autograd.backward`, looked up on the module
at each call. A backward inside a backward (reentrant checkpointing) is part of the outer one.

forward-compute is the time from the batch in hand (or from the previous backward) to the start of
backward: no module hook is needed, which would cost 2 µs per module and call. It therefore holds
the loss and whatever host code the script runs in between; evaluation, which has no backward, is in
no phase.

Waiting inside backward: DDP's reducer enqueues its buckets from C++ and waits for them at the end
of backward, out of sight. The last bucket is enqueued when the last gradient is ready, so the time
from there to the end of backward is waiting; `collectives` knows when that was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.hooks.collectives import OperatorWatch
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session


def install(session: Session, collectives: OperatorWatch | None) -> BackwardWatch:
    import torch.autograd

    watch = BackwardWatch(session, collectives)
    torch.autograd.backward = watch.around(torch.autograd.backward)
    return watch


class BackwardWatch:
    """Backward passes on the training thread, the outermost of them."""

    def __init__(self, session: Session, collectives: OperatorWatch | None) -> None:
        self._session = session
        self._collectives = collectives
        self._running = False

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, watched."""

        @functools.wraps(call)
        def backward(*args: Any, **kwargs: Any) -> Any:
            start = self.begin()
            try:
                return call(*args, **kwargs)
            finally:
                if start is not None:
                    self.end(start)

        return backward

    def begin(self) -> Moment | None:
        """When it began; None for a backward inside another, or on a thread of its own."""
        session = self._session
        if self._running or threading.get_ident() != session.main_thread or not session.enabled:
            return None
        self._running = session.in_backward = True
        return session.mark()

    @guarded
    def end(self, start: Moment) -> None:
        session = self._session
        self._running = session.in_backward = False
        if self._collectives is not None:
            self._collectives.backward_ended(start[0])
        session.note(session.phases.backward, session.shared.ordinal, start, session.mark())

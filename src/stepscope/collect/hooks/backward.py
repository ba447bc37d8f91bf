"""`backward()`: where forward ends, and how long backward takes.

`Tensor.backward` and every framework go through `torch.autograd.backward`, looked up on the module
at each call. A backward inside a backward (reentrant checkpointing) is part of the outer one.

forward-compute is the time from when the batch is loaded (or from the previous backward) to the
start of backward. It needs no module hook, which would cost 2 µs per module and call. So it also
contains the loss, and all host code that the script runs in between. Evaluation has no backward and
is in no phase.

Waiting inside backward: DDP's reducer enqueues its buckets from C++, and waits for them at the end
of backward, where we cannot hook it. `collectives` finds out how long that took (`reducer`). On a
device the stream waits. There a mark is set when all gradients are computed: in a callback of the
engine that is queued before the reducer's own, which makes the stream wait (`_EngineCallback`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from stepscope.collect.device.marks import Mark, Place
from stepscope.collect.guard import guarded
from stepscope.collect.hooks.collectives import OperatorWatch
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session
from stepscope.trace.names import BACKWARD

Number = Callable[[tuple[Any, ...], dict[str, Any]], int | None]
"""The microbatch of a call, by its arguments; None if they do not tell."""


def install(session: Session, collectives: OperatorWatch | None) -> BackwardWatch:
    import torch.autograd

    watch = BackwardWatch(session, collectives)
    torch.autograd.backward = watch.around(torch.autograd.backward)
    return watch


class BackwardWatch:
    """Times backward passes on the training thread; only the outermost counts."""

    def __init__(self, session: Session, collectives: OperatorWatch | None) -> None:
        self._session = session
        self._collectives = collectives
        self._running = False
        self._others = 0
        self._computed: _EngineCallback | None = None

    def around(
        self, call: Callable[..., Any], number: Number | None = None, name: str = BACKWARD
    ) -> Callable[..., Any]:
        """Wraps the call, a pass of this name of the microbatch that `number` tells."""

        @functools.wraps(call)
        def backward(*args: Any, **kwargs: Any) -> Any:
            start = self.begin()
            if start is not None:
                self._expect_reducer(start, args)
            try:
                return call(*args, **kwargs)
            finally:
                if start is not None:
                    self.end(start, None if number is None else number(args, kwargs), name)

        return backward

    @guarded
    def _expect_reducer(self, start: Moment, args: tuple[Any, ...]) -> None:
        """Prepares a mark, if DDP's reducer has been active and the device times phases."""
        self._computed = None
        if isinstance(start[4], Mark) and self._session.shared.buckets:
            self._computed = _EngineCallback(self._session, start[4].stream)
            self._computed.put_on(args[0] if args else None)

    def begin(self) -> Moment | None:
        """The start; None for a backward inside another, or on another thread."""
        session = self._session
        if self._running or threading.get_ident() != session.training_thread or not session.enabled:
            return None
        self._running = session.in_backward = True
        self._others = session.shared.others
        return session.mark()

    @guarded
    def end(self, start: Moment, microbatch: int | None = None, name: str = BACKWARD) -> None:
        session = self._session
        self._running = session.in_backward = False
        only_buckets = session.shared.others == self._others
        if self._collectives is not None:
            self._collectives.backward_ended(start[0], only_buckets)
        end, computed = session.mark(), self._computed
        waits_from = None if computed is None else computed.take_off()
        waits_from = waits_from if only_buckets else None
        session.note(session.phases.backward, session.shared.ordinal, start, end, waits_from,
                     microbatch, name)  # fmt: skip


class _EngineCallback:
    """Sets a mark when all gradients of a backward are computed, before the stream waits for them.

    Callbacks of autograd's engine run in the order in which they were queued. The caller's streams
    are then current, and wait for all work of backward. Ours is queued by a hook on the root, whose
    gradient is the first one; DDP's reducer queues its own when its last bucket is full.
    """

    def __init__(self, session: Session, stream: Any) -> None:
        self._session = session
        self._stream = stream
        self._handle: Any = None
        self._mark: Place = None

    def put_on(self, roots: Any) -> None:
        import torch

        first = roots[0] if isinstance(roots, tuple | list) and roots else roots
        if isinstance(first, torch.Tensor) and first.requires_grad:
            self._engine = torch.autograd.Variable._execution_engine
            self._handle = first.register_hook(self._at_root)

    def take_off(self) -> Place:
        """The mark; None if there is none."""
        if self._handle is not None:
            self._handle.remove()
        return self._mark

    @guarded
    def _at_root(self, _gradient: Any) -> None:
        self._engine.queue_callback(self._all_computed)

    @guarded
    def _all_computed(self) -> None:
        marks = self._session.marks
        if marks is not None:
            self._mark = marks.set(self._stream)

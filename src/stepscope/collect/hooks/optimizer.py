"""Optimizer steps: the optimizer phase, EROICA's other step event, and the ordinal of the step.

An optimizer that wraps another (Accelerate's, a precision wrapper) triggers the hooks twice; only
the outermost call counts. A step that raised never triggers its second hook, so the stack is
checked to see whether an earlier call is still running.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session


def install(session: Session) -> None:
    from torch.optim.optimizer import (
        Optimizer,
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    # every step runs in a wrapper with this code, which calls the hooks
    step = Optimizer.profile_hook_step(lambda optimizer: None).__code__
    watch = _OptimizerWatch(session, step)
    register_optimizer_step_pre_hook(watch.before)
    register_optimizer_step_post_hook(watch.after)


class _OptimizerWatch:
    def __init__(self, session: Session, step: CodeType) -> None:
        self._session = session
        self._step = step
        self._outermost: tuple[int, Moment] | None = None
        self._last: Callable[[], Any] = lambda: None
        self._last_name = ""

    @guarded
    def before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._session.enabled and (self._outermost is None or not self._is_nested()):
            self._outermost = (id(optimizer), self._session.mark())

    @guarded
    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._outermost is None or self._outermost[0] != id(optimizer):
            return
        session, start, self._outermost = self._session, self._outermost[1], None
        name = self._name_of(optimizer)
        session.note(session.phases.optimizer, session.shared.ordinal, name, start, session.mark())
        session.stepped()

    def _name_of(self, optimizer: Any) -> str:
        """The name; it is made once per optimizer, and mostly it is the same one as last time."""
        if self._last() is not optimizer:
            self._last = weakref.ref(optimizer)
            self._last_name = f"optimizer {type(optimizer).__qualname__}{_shape(optimizer)}"
        return self._last_name

    def _is_nested(self) -> bool:
        """Whether one optimizer is stepping inside another."""
        frame, steps = sys._getframe(1), 0
        while frame is not None:
            steps += frame.f_code is self._step
            frame = frame.f_back  # type: ignore[assignment]
        return steps > 1


def _shape(optimizer: Any) -> str:
    """Parameters per group, which distinguishes two optimizers of the same type."""
    return str([len(group["params"]) for group in optimizer.param_groups][:4])

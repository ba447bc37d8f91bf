"""Times attention, MLP and experts in the forward pass, in one of every `STEPSCOPE_MODULES` steps.

Off unless that is set. After the first optimizer step all existing modules are inspected once
(`recognise`). The relevant ones get a hook before and one after their forward pass when a sampled
step begins, and lose them when it ends: a module with hooks costs 4 µs a call even if the hooks
return at once. Sampled steps are the same on all ranks, because the ranks of a synchronous job
have completed the same number of optimizer steps.

The hooks are stored in the modules, so they must not get in the way. A copy or a pickle of a model
contains a standard library function in their place. torch.compile traces through them. Before a
module is made a CUDA graph, which torch refuses for modules with hooks, ours are removed. Not
timed: parts inside of what torch.compile compiled; the recomputation of checkpointing, which
belongs to backward; modules made after the first step.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.hooks.imports import when_imported
from stepscope.collect.hooks.recognise import parts_of
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session

VARIABLE = "STEPSCOPE_MODULES"
MOST_PARTS = 1024
"""Maximal number of modules with hooks: four times 128 layers of attention and MLP, or 8 layers of
128 experts each. A larger model is not timed by parts: a subset would not be representative."""
GRAPHERS = ("torch.cuda.graphs", "torch.cuda", "transformer_engine.pytorch.graph")
"""The modules that define `make_graphed_callables`."""
Found = list[tuple[Callable[[], Any], str]]
"""A weak reference to each module, and which part it is."""


def install(session: Session) -> None:
    """Times parts in one of every so many steps, if that was requested."""
    every = _every(os.environ.get(VARIABLE, ""))
    if every:
        parts = Parts(session, every)
        session.after_step.append(parts.stepped)
        for name in GRAPHERS:
            when_imported(name, parts.make_way)


def _every(text: str) -> int:
    return int(text) if text.isdecimal() else 0


class Parts:
    """The parts of the models of this process.

    Args:
        every: one of this many steps is timed.
    """

    def __init__(self, session: Session, every: int) -> None:
        import torch

        self._session = session
        self._every = every
        self._module: type = torch.nn.Module
        self._trains_now: Callable[[], bool] = torch.is_grad_enabled
        self.is_tracing: Callable[[], bool] = torch.compiler.is_compiling
        self._handles: list[Any] = []
        self._found: Found | None = None

    @guarded
    def stepped(self) -> None:
        """A step ended: sets the hooks if the next step is to be timed, else removes them."""
        if self._found is None:
            self._found = self._find()
        self._take_off()
        if self._session.shared.ordinal % self._every == 0:
            self._put_on(self._found)

    @guarded
    def leave(self) -> None:
        """Removes all hooks, for good."""
        self._found = []
        self._take_off()

    def make_way(self, module: ModuleType) -> None:
        """Makes `make_graphed_callables` remove our hooks first."""
        original = getattr(module, "make_graphed_callables", None)
        if original is None:
            return

        @functools.wraps(original)
        def make_graphed_callables(*args: Any, **kwargs: Any) -> Any:
            self.leave()
            return original(*args, **kwargs)

        module.make_graphed_callables = make_graphed_callables  # type: ignore[attr-defined]

    def begin(self) -> Moment | None:
        """The start; None if this call is not to be timed."""
        session = self._session
        if session.in_backward or not session.enabled or not self._trains_now():
            return None
        if threading.get_ident() != session.training_thread:
            return None
        return session.mark()

    def end(self, part: str, start: Moment) -> None:
        session = self._session
        end = session.mark(getattr(start[4], "stream", None))
        session.note(session.phases.part, session.shared.ordinal, part, start, end)

    def _find(self) -> Found:
        """The parts of all existing models, by weak reference.

        Checked by type: `isinstance` would run code of proxy objects.
        """
        modules = [one for one in gc.get_objects() if issubclass(type(one), self._module)]
        found: Found = [(weakref.ref(one), part) for one, part in parts_of(modules) if _trains(one)]
        return found if len(found) <= MOST_PARTS else []

    def _put_on(self, found: Found) -> None:
        for find, name in found:
            module, part = find(), _Part(self, name)
            if module is not None:
                self._handles.append(module.register_forward_pre_hook(_Before(part)))
                self._handles.append(module.register_forward_hook(_After(part)))

    def _take_off(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _trains(module: Any) -> bool:
    return module.training and any(one.requires_grad for one in module.parameters())


class _Part:
    """One module, and when its forward pass began."""

    __slots__ = ("name", "parts", "start")

    def __init__(self, parts: Parts, name: str) -> None:
        self.parts = parts
        self.name = name
        self.start: Moment | None = None


class _Hook:
    """A hook; if copied or pickled, it becomes a method that accepts anything and does nothing."""

    def __init__(self, part: _Part) -> None:
        self.part = part
        self.is_tracing = part.parts.is_tracing

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Before(_Hook):
    def __call__(self, _module: Any, _args: Any) -> None:
        if not self.is_tracing():
            self._note()

    @guarded
    def _note(self) -> None:
        self.part.start = self.part.parts.begin()


class _After(_Hook):
    def __call__(self, _module: Any, _args: Any, _output: Any) -> None:
        if not self.is_tracing():
            self._note()

    @guarded
    def _note(self) -> None:
        start, self.part.start = self.part.start, None
        if start is not None:
            self.part.parts.end(self.part.name, start)

"""Hooks the functions in which frameworks with pipelines run the passes of one microbatch.

Most training does not need this. DDP, FSDP, Hugging Face, Lightning and DeepSpeed without a
pipeline use `torch.autograd.backward` and torch's optimizers, which are hooked, and forward is the
time before. A pipeline differs: several forward passes follow one another, with receives between
them, and Megatron's backward calls autograd's engine directly. These frameworks have a function for
a pass, which is wrapped once the framework has been imported. Names are those of the sources:
Megatron-core's `schedules.py` (except its combined 1F1B, which runs two passes in one call),
DeepSpeed's `runtime/pipe/engine.py`, and torch's `distributed/pipelining/stage.py`, which
torchtitan uses.

Torch's functions, and Megatron's forward pass, are told which microbatch they run. Other passes are
counted: DeepSpeed's are in the order of the microbatches, and Megatron's go backward in the order
in which they went forward, whether stages are interleaved or not.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.hooks.backward import BackwardWatch, Number
from stepscope.collect.hooks.imports import when_imported
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session
from stepscope.trace.names import BACKWARD, WEIGHT

Call = Callable[..., Any]


@dataclass(frozen=True)
class Passes:
    """The functions of one module that run a forward or a backward pass of a microbatch."""

    module: str
    owner: str | None
    """The class that has them as methods."""
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    weight: tuple[str, ...] = ()
    """Those that compute only gradients of weights."""
    numbers: tuple[str, ...] = ()
    """Their parameters that hold the microbatch's number."""
    also_in: str | None = None
    """A dictionary of the class that holds the functions as well."""


KNOWN = (
    Passes("megatron.core.pipeline_parallel.schedules", None, ("forward_step",),
           ("backward_step",), numbers=("current_microbatch",)),
    Passes("deepspeed.runtime.pipe.engine", "PipelineEngine", ("_exec_forward_pass",),
           ("_exec_backward_pass",), also_in="_INSTRUCTION_MAP"),
    Passes("torch.distributed.pipelining.stage", "_PipelineStageBase", ("forward_one_chunk",),
           ("backward_one_chunk",), weight=("backward_weight_one_chunk",),
           numbers=("fwd_chunk_id", "bwd_chunk_id")),
)  # fmt: skip


def install(session: Session, backward: BackwardWatch) -> None:
    forward = _ForwardWatch(session)
    for passes in KNOWN:
        when_imported(passes.module, functools.partial(_wrap, passes, forward, backward))


def _wrap(
    passes: Passes, forward: _ForwardWatch, backward: BackwardWatch, module: ModuleType
) -> None:
    owner: Any = module if passes.owner is None else getattr(module, passes.owner, None)
    around = functools.partial(_replace, owner, passes)
    for name in passes.forward:
        around(name, forward.around)
    for name in passes.backward:
        around(name, functools.partial(backward.around, name=BACKWARD))
    for name in passes.weight:
        around(name, functools.partial(backward.around, name=WEIGHT))


def _replace(owner: Any, passes: Passes, name: str, around: Callable[..., Call]) -> None:
    """Wraps the function; does nothing if this version lacks it."""
    original = getattr(owner, name, None)
    if original is None:
        return
    wrapped = around(original, _number(original, passes.numbers))
    setattr(owner, name, wrapped)
    table = getattr(owner, passes.also_in, {}) if passes.also_in else {}
    for key, value in list(table.items()):
        if value is original:
            table[key] = wrapped


def _number(call: Call, names: tuple[str, ...]) -> Number | None:
    """Reads the microbatch from a call's arguments; None if none of its parameters is one."""
    parameters = list(inspect.signature(call).parameters)
    found = [(at, name) for at, name in enumerate(parameters) if name in names]
    if not found:
        return None
    (place, name), *_ = found

    def number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        value = args[place] if place < len(args) else kwargs.get(name)
        return value if isinstance(value, int) and value >= 0 else None

    return number


class _ForwardWatch:
    """Times forward passes on the training thread: only the outermost, and not in evaluation."""

    def __init__(self, session: Session) -> None:
        import torch

        self._session = session
        self._trains: Callable[[], bool] = torch.is_grad_enabled
        self._running = False

    def around(self, call: Call, number: Number | None = None) -> Call:
        @functools.wraps(call)
        def forward(*args: Any, **kwargs: Any) -> Any:
            start = self._begin()
            try:
                return call(*args, **kwargs)
            finally:
                if start is not None:
                    self._end(start, None if number is None else number(args, kwargs))

        return forward

    @guarded
    def _begin(self) -> Moment | None:
        session = self._session
        if self._running or threading.get_ident() != session.training_thread or not session.enabled:
            return None
        if not self._trains():
            return None
        self._running = True
        return session.mark()

    @guarded
    def _end(self, start: Moment, microbatch: int | None) -> None:
        self._running = False
        session, place = self._session, start[4]
        end = session.mark(getattr(place, "stream", None))
        session.note(session.phases.forward, session.shared.ordinal, start, end, microbatch)

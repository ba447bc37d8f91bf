"""`torch.profiler` for windows of synchronized profiling, beside a profiler of the script's own.

The smallest setting that names functions with their file and line: operators, kernels, and Python's
functions on all threads; no shapes, no memory, no flops. Kineto's result is taken as it is: the
lists that torch makes of it in Python, which take longer than the window, are not needed (EROICA,
section 5).

A profiler of the script's own comes first. It is recognised by the calls of
`torch.autograd.profiler` with which each begins and ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.collect import guard
from stepscope.collect.calls import Calls
from stepscope.collect.hooks.profiler import INJECTION_VARIABLE, LIBRARY
from stepscope.collect.session import Session
from stepscope.collect.traces import Trace
from stepscope.collect.windows import Windows

LOG_VARIABLE, SILENT = "KINETO_LOG_LEVEL", "99"
"""Kineto writes two lines for each session to standard error; it reads this when first used."""
TEARDOWN_VARIABLE = "TEARDOWN_CUPTI"
"""`1`: Kineto calls cuptiFinalize at the end, so that CUDA calls cost as little as before (EROICA,
section 5)."""
TEARDOWN_CUDA = (12, 6)
"""With older ones, it crashes programs that use CUDA graphs (torch says so in its profiler.py)."""

HARMLESS = ("nn/modules/", "optim/", "utils/data/", "distributed/")
"""Parts of torch that are plain Python, and call the script without an operator between."""

ENGINE = ("autograd/graph.py", "autograd/__init__.py", "_tensor.py")
"""Where backward passes are run."""


def install(session: Session) -> Windows:
    """Lets the processor open windows in this process."""
    from torch.autograd import profiler

    kineto = Kineto(profiler)
    os.register_at_fork(after_in_child=kineto.leave_child_alone)
    return Windows(session, kineto)


class Kineto:
    """Starts and stops torch's profiler; notices others that use it."""

    def __init__(self, module: Any) -> None:
        """`module` is `torch.autograd.profiler`."""
        self._module = module
        self._device: str | None = None
        self._calls = Calls()
        self._is_running = False
        self._is_ours = False
        self._is_left = False
        """It was abandoned, and runs for as long as the process does."""
        self._others = False
        """The script has prepared or started a profiler, and not stopped it."""
        self._aside: Callable[[], None] = lambda: None
        self._torch = str(Path(module.__file__).parents[1]) + os.sep
        self._harmless = tuple(self._torch + name for name in HARMLESS)
        self._engine = frozenset(self._torch + name for name in ENGINE)
        for name in ("_prepare_profiler", "_enable_profiler"):
            setattr(module, name, self._begins(getattr(module, name)))
        module._disable_profiler = self._ends(module._disable_profiler)

    def why_not(self) -> str | None:
        """Why no window can begin now; None if one can."""
        if self._is_left:
            return "the window before could not be ended, so torch.profiler still runs"
        if self._others:
            return "the script uses a profiler of its own"
        if sys.getprofile() is not None or threading.getprofile() is not None:
            return "the script uses a profiler of Python of its own (cProfile or sys.setprofile)"
        return None

    def may_switch(self) -> bool:
        """Whether this thread is outside of torch's operators and its autograd engine.

        These restore the state of their thread when they end. A profiler that began in one is gone
        then, and one that ended in one is back, though its memory is freed: the process crashes.
        """
        within = (name for name in _files() if name.startswith(self._torch))
        return all(name.startswith(self._harmless) for name in within)

    def is_in_backward(self) -> bool:
        """Whether this thread runs the autograd engine, as where each parameter is updated as soon
        as its gradient is there."""
        return any(name in self._engine for name in _files())

    def count(self) -> None:
        """Counts Python calls, unless the script uses a profiler."""
        if not self._others:
            self._calls.begin()

    def counted(self) -> int | None:
        """Ends counting; None if calls were not counted to the end."""
        return self._calls.end()

    def start(self, aside: Callable[[], None], *, functions: bool = True) -> None:
        """Starts profiling this thread, and Python's functions on all.

        Args:
            aside: called before a profiler of the script begins; it must call `stop`.
            functions: whether Python's functions are recorded.
        """
        import torch

        self._aside = aside
        self._device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None
        profile = self._module.profile(
            use_kineto=True, with_stack=functions, use_device=self._device
        )
        with self._ours(), _silently():
            profile._prepare_trace()
            profile._start_trace()
        self._is_running = True

    def stop(self) -> Trace:
        """Stops; the result holds no Python object of the script."""
        import torch

        self._is_running = False
        if self._device is not None:
            torch.cuda.synchronize()
        torch._C._autograd._add_metadata_json("distributedInfo", json.dumps(_distributed()))
        with self._ours(), _tearing_down(self._device):
            trace: Trace = self._module._disable_profiler()
        after = getattr(self._module, "_run_on_profiler_stop", None)
        if after is not None:
            after()
        return trace

    def abandon(self) -> None:
        """Records no more on this thread. The profiler stays, for events of operators that have not
        ended are in its memory; so the process has no other one from now on."""
        import torch

        self._is_running, self._is_left = False, True
        sys.setprofile(None)
        torch._C._autograd._enable_record_function(False)

    def leave_child_alone(self) -> None:
        """A forked child (a data-loader worker) would record as well, until its memory is full."""
        if self._is_running:
            self.abandon()

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _begins(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def begin(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours:
                self._other_begins()
            return call(*args, **kwargs)

        return begin

    @guard.guarded
    def _other_begins(self) -> None:
        self._calls.end()
        if self._is_running:
            self._aside()
        self._others = True

    def _ends(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def end(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours:
                self._others = False
            return call(*args, **kwargs)

        return end


def _files() -> Iterator[str]:
    """The files of the calling thread's functions, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _distributed() -> dict[str, Any]:
    """What `torch.profiler` writes about the rank, so that readers know it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return {"rank": 0, "world_size": 1}
    return {
        "backend": dist.get_backend(), "rank": dist.get_rank(), "world_size": dist.get_world_size()
    }  # fmt: skip


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Keeps Kineto from writing to standard error, unless the user has chosen what it writes."""
    with _set(LOG_VARIABLE, SILENT):
        yield


@contextlib.contextmanager
def _tearing_down(device: str | None) -> Iterator[None]:
    """Has Kineto release CUPTI, unless our own tracer uses it, or the user decides on that."""
    ours = os.environ.get(INJECTION_VARIABLE, "").rpartition("/")[2] == LIBRARY
    with _set(TEARDOWN_VARIABLE, "1" if device is not None and not ours and _is_new() else None):
        yield


def _is_new() -> bool:
    import torch

    numbers = str(torch.version.cuda or "0.0").split(".")
    return tuple(int(number) for number in numbers[:2]) >= TEARDOWN_CUDA


@contextlib.contextmanager
def _set(variable: str, value: str | None) -> Iterator[None]:
    """Sets a variable of the environment for a moment, if a value is given and it has none."""
    if value is None or variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable, None)

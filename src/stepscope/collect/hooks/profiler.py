"""Leaves CUPTI to torch.profiler while it is at work: CUPTI hands its records to one at a time.

`native/cupti` records kernels where `CUDA_INJECTION64_PATH` names it. Started while it holds CUPTI,
torch.profiler would get no kernels, and afterwards we none: it switches all off. So we step aside
before it prepares, and take over again when it has stopped. Not seen: profiling that is asked for
from outside of Python (dynolog).
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

from stepscope.collect.guard import guarded

INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
LIBRARY = "libstepscope_cupti.so"

Call = Callable[..., Any]


class Tracer(Protocol):
    """What the library exports; both may be called at any time."""

    def stepscope_cupti_pause(self) -> None: ...
    def stepscope_cupti_resume(self) -> None: ...


def install() -> None:
    """Wraps what torch.profiler begins and ends with, if kernels are recorded."""
    path = os.environ.get(INJECTION_VARIABLE, "")
    if path.rpartition("/")[2] == LIBRARY:
        from torch.autograd import profiler

        wrap(profiler, lambda: ctypes.CDLL(path))


def wrap(profiler: Any, load: Callable[[], Tracer]) -> None:
    """Wraps the calls of `torch.autograd.profiler`.

    Args:
        load: gives the library, which CUDA may not have loaded yet.
    """

    @guarded
    def pause() -> None:
        load().stepscope_cupti_pause()

    @guarded
    def resume() -> None:
        load().stepscope_cupti_resume()

    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(profiler, name, _begins(getattr(profiler, name), pause, resume))
    profiler._disable_profiler = _ends(profiler._disable_profiler, resume)


def _begins(call: Call, pause: Call, resume: Call) -> Call:
    @functools.wraps(call)
    def begin(*args: Any, **kwargs: Any) -> Any:
        pause()
        try:
            return call(*args, **kwargs)
        except BaseException:
            resume()
            raise

    return begin


def _ends(call: Call, resume: Call) -> Call:
    @functools.wraps(call)
    def end(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            resume()

    return end

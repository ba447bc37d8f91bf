"""Leaves CUPTI to torch.profiler while it is active: CUPTI serves only one consumer at a time.

`native/cupti` records kernels if `CUDA_INJECTION64_PATH` names it. If torch.profiler started while
we hold CUPTI it would get no kernels, and afterwards we would get none, because it disables all
activities. So we pause before it prepares, and resume when it has stopped. Profiling that is
requested from outside of Python (dynolog) is not detected.
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
    """The functions that the library exports; both may be called at any time."""

    def stepscope_cupti_pause(self) -> None: ...
    def stepscope_cupti_resume(self) -> None: ...


def install() -> None:
    """Wraps the calls with which torch.profiler begins and ends, if kernels are recorded."""
    path = os.environ.get(INJECTION_VARIABLE, "")
    if path.rpartition("/")[2] == LIBRARY:
        from torch.autograd import profiler

        wrap(profiler, lambda: ctypes.CDLL(path))


def wrap(profiler: Any, load: Callable[[], Tracer]) -> None:
    """Wraps the calls of `torch.autograd.profiler`.

    Args:
        load: returns the library, which CUDA may not have loaded yet.
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

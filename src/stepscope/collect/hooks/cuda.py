"""Phases timed by the GPU: torch's events and streams, and captures of CUDA graphs.

Off unless `STEPSCOPE_PHASES` is `device`. Nothing here initialises CUDA: until the script uses it,
phases have host times.

A capture in any thread forbids calls such as `cudaEventQuery` in all threads, so captures through
torch are hooked. A capture without torch (through C++ or CUDA calls of the script) is only noticed
if it captures the current stream of the training thread.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from stepscope.collect.device.gpu import Event
from stepscope.collect.device.marks import Marks
from stepscope.collect.session import Session

VARIABLE = "STEPSCOPE_PHASES"
BY_DEVICE = "device"


class TorchGpu:
    """`torch.cuda`, for NVIDIA's and AMD's GPUs."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._is_tracing: Callable[[], bool] = torch.compiler.is_compiling

    def is_in_use(self) -> bool:
        return bool(self._cuda.is_initialized())

    def is_off_limits(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing()) or self._is_tracing()

    def stream(self) -> Any:
        return self._cuda.current_stream()

    def own_stream(self) -> Any:
        """A stream of torch's pool: those do not wait for the default stream."""
        return self._cuda.Stream()

    def event(self) -> Event:
        event: Event = self._cuda.Event(enable_timing=True)
        return event


def install(session: Session) -> None:
    """Times phases by the device, if that was requested."""
    if os.environ.get(VARIABLE) != BY_DEVICE:
        return
    import torch

    watch_captures(torch.cuda.CUDAGraph, session.time_by_device(TorchGpu(torch)))


def watch_captures(graph: Any, marks: Marks) -> None:
    """Hooks the two methods of `torch.cuda.CUDAGraph` that all of torch's captures go through."""
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        marks.capture_begins()
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            marks.capture_ended()
            raise

    @functools.wraps(end)
    def capture_end(self: Any) -> Any:
        try:
            return end(self)
        finally:
            marks.capture_ended()

    graph.capture_begin, graph.capture_end = capture_begin, capture_end

"""Counters that all training threads share, in memory that C++ can access, too."""

from __future__ import annotations

import ctypes


class Shared(ctypes.Structure):
    """Laid out like `Shared` in native/operators.cpp, which is used if the library is loaded."""

    _fields_ = [
        ("ordinal", ctypes.c_int64),
        ("blocked_ns", ctypes.c_int64),
        ("last_bucket_ns", ctypes.c_int64),
        ("computed_ns", ctypes.c_int64),
        ("reduced_ns", ctypes.c_int64),
        ("enabled", ctypes.c_int64),
        ("training_thread", ctypes.c_int64),
        ("dropped", ctypes.c_int64),
        ("faults", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("buckets", ctypes.c_int64),
        ("reduced", ctypes.c_int64),
    ]

    ordinal: int
    """Optimizer steps that this process has finished."""
    blocked_ns: int
    """Total host time that the training thread has spent in waits for communication."""
    last_bucket_ns: int
    """When DDP's reducer last passed a bucket to the backend; 0 after it was waited for."""
    computed_ns: int
    """When the backward that called it had computed all gradients; older if that did not happen."""
    reduced_ns: int
    """When a bucket was reduced last."""
    enabled: int
    """Whether the library records."""
    training_thread: int
    """The thread that steps the optimizer; until one does, the main thread."""
    dropped: int
    """Events for which the library had no room."""
    faults: int
    """Exceptions the library swallowed."""
    calls: int
    """Approximate number of communication operators called; it grows with each call."""
    buckets: int
    """How many of them DDP's reducer called."""
    reduced: int
    """How many of those buckets are known to have ended."""

    @property
    def others(self) -> int:
        """Operators called by anybody but DDP's reducer."""
        return self.calls - self.buckets

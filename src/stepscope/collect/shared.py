"""What the training threads count for everybody, in memory that C++ can read, too."""

from __future__ import annotations

import ctypes


class Shared(ctypes.Structure):
    """Laid out as `Shared` in native/operators.cpp, which has one of its own where it is loaded."""

    _fields_ = [
        ("ordinal", ctypes.c_int64),
        ("blocked_ns", ctypes.c_int64),
        ("last_bucket_ns", ctypes.c_int64),
        ("enabled", ctypes.c_int64),
        ("main_thread", ctypes.c_int64),
        ("dropped", ctypes.c_int64),
        ("faults", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("buckets", ctypes.c_int64),
    ]

    ordinal: int
    """Optimizer steps that this process has finished."""
    blocked_ns: int
    """Host time of the main thread inside waits for communication, ever growing."""
    last_bucket_ns: int
    """When DDP's reducer last handed a bucket to the backend; 0 once it was waited for."""
    enabled: int
    """Whether the library records."""
    main_thread: int
    dropped: int
    """Events the library had no room for."""
    faults: int
    """Exceptions the library swallowed."""
    calls: int
    """Communication operators called so far: grows if one was called, and need not be exact."""
    buckets: int
    """Those of them that DDP's reducer called."""

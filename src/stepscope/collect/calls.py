"""Counts the calls of Python functions for a moment, before a window of profiling.

torch's tracer keeps about 16 bytes for each call, and when it stops, on the training thread, it
takes 2.2 µs and 1.1 KB for each. So it must be known beforehand how many there will be. What counts
is a function in C (`native/calls`) that Python calls as it calls a profiler: 58 ns for each
call of a function in Python, 35 ns for one in C (Python 3.11, measured). From Python 3.12 on it
counts on all threads, before that on the thread that asks.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).parents[1] / "lib" / "libstepscope_calls.so"


class Calls:
    """Counts once at a time, where no other profiler of Python is in use."""

    def __init__(self, library: Path = LIBRARY) -> None:
        self._library = _loaded(library)
        self._counting, self._thread = False, 0
        api = ctypes.PyDLL(None)  # and not `ctypes.pythonapi`, whose functions others share
        self._remove = ctypes.cast(api.PyEval_SetProfile, ctypes.c_void_p)
        self._set: Any = getattr(api, "PyEval_SetProfileAllThreads", api.PyEval_SetProfile)
        self._set.argtypes, self._set.restype = [ctypes.c_void_p, ctypes.c_void_p], None
        if self._library is not None:
            os.register_at_fork(after_in_child=self._in_child)

    def begin(self) -> None:
        """Counts from now on, if that is possible."""
        if self._library is None or self._counting:
            return
        if sys.getprofile() is not None or threading.getprofile() is not None:
            return
        self._library.stepscope_calls_begin(self._remove)
        self._counting, self._thread = True, threading.get_ident()
        # `None` as its object: `sys.getprofile()` stays what it is for the script
        self._set(ctypes.cast(self._library.stepscope_calls_profile, ctypes.c_void_p), id(None))

    def end(self) -> int | None:
        """Stops; returns the number of calls, or None if they were not counted to the end.

        On another thread than began, it only ends counting: each thread that counts stops with its
        next call. A profiler that the script has started meanwhile stays.
        """
        if self._library is None or not self._counting:
            return None
        self._counting = False
        calls = int(self._library.stepscope_calls_end())
        if self._thread != threading.get_ident():
            return None
        if sys.getprofile() is not None:  # the script's own replaced ours here; others remove it
            return None
        self._set(None, None)
        return calls

    def _in_child(self) -> None:
        self.end()


def _loaded(path: Path) -> ctypes.CDLL | None:
    """The library as Python may call it, with the GIL; None where it was not built."""
    try:
        library = ctypes.PyDLL(str(path))
    except OSError:
        return None
    library.stepscope_calls_begin.argtypes = [ctypes.c_void_p]
    library.stepscope_calls_begin.restype = None
    library.stepscope_calls_end.restype = ctypes.c_uint64
    return library

"""How a process that plays and diagnoses job after job keeps its memory.

glibc gives freed blocks of 32 MB and more back to the kernel, and the next one of that size is
faulted in page by page: a third of the time that diagnosing 4,096 ranks took (26.8 s of work and
18.4 s in the kernel; 24.9 s and 3.4 s where freed memory is kept). After each job it is given back,
so that a small job after a large one does not hold what that one needed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Of glibc's malloc.h."""
USUAL = {M_MMAP_MAX: 65536, M_TRIM_THRESHOLD: 128 * 1024, M_TOP_PAD: 128 * 1024}
"""As glibc begins."""
KEEPING = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 1024 * 1024}
"""All blocks lie on the heap, which never shrinks, and grows by what is touched no sooner."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """What is freed meanwhile is used again, and given back at the end. Where there is no glibc
    nothing changes."""
    libc = _glibc()
    if libc is None:
        yield
        return
    try:
        _set(libc, KEEPING)
        yield
    finally:
        _set(libc, USUAL)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _set(libc: ctypes.CDLL, values: dict[int, int]) -> None:
    for name, value in values.items():
        libc.mallopt(name, value)

"""Memory that is freed is used again, and not handed back to the system and asked for anew.

glibc and Arrow hand back each large block when it is freed. The next column is then of fresh pages,
which the system clears first: diagnosing ten thousand ranks spent a third of its time on that, and
4,096 ranks 26.8 s of work and 18.4 s in the kernel (24.9 s and 3.4 s where freed memory is kept).
Other C libraries are left alone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Parameters of glibc's `mallopt`, by `malloc.h`."""
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}
"""All blocks lie on the heap, which never shrinks."""
_GROWING = {_TOP_PAD: 64 * 1024 * 1024}
"""And grows by so much at once."""
_USUAL = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 1024, _TOP_PAD: 128 * 1024}
"""As glibc begins."""


def keep_freed_memory() -> None:
    """For a process that looks at one job and ends; to be called before numpy is imported."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # what the system does to find huge pages costs more than they save: 7 % of ten thousand ranks
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    libc = _glibc()
    if libc is not None:
        _set(libc, _KEEPING)


@contextmanager
def cycles_kept() -> Iterator[None]:
    """Leaves objects that only hold one another where they are, for as long as one look takes:
    to look for them takes 5 % of diagnosing ten thousand ranks, and frees 0.5 % of its memory."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """For a process that plays and diagnoses job after job: given back after each, so that a small
    job after a large one does not hold what that one needed."""
    libc = _glibc()
    if libc is None:
        yield
        return
    try:
        _set(libc, {**_KEEPING, **_GROWING})
        yield
    finally:
        _set(libc, _USUAL)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _set(libc: ctypes.CDLL, values: Mapping[int, int]) -> None:
    for name, value in values.items():
        libc.mallopt(name, value)

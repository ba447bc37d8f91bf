"""Makes the allocator keep freed memory, or return it, as a process needs.

By default glibc and Arrow return each large block when it is freed. The next column then gets fresh
pages, which the kernel clears first: diagnosing ten thousand ranks spent a third of its time on
that, and 4,096 ranks took 26.8 s of user and 18.4 s of system time (24.9 s and 3.4 s when freed
memory is kept). A process that runs for months wants the opposite: glibc raises the size from
which blocks are returned with every large block that is freed, and what then lies on the heaps of
its threads stays there in pieces. Other C libraries are left unchanged.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
"""Parameters of glibc's `mallopt`, from `malloc.h`."""
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _ARENA_MAX: 1}
"""All blocks are on the heap, which never shrinks."""
_GROWING = {_TOP_PAD: 64 * 1024 * 1024}
"""And which grows in steps of this size."""
_RETURNING = {_MMAP_THRESHOLD: 128 * 1024, _TRIM_THRESHOLD: 128 * 1024, _ARENA_MAX: 2}
"""Large blocks are returned when they are freed, always, and threads share two heaps."""
_USUAL = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 1024, _TOP_PAD: 128 * 1024}
"""The defaults of glibc."""


def keep_freed_memory() -> None:
    """Keeps freed memory for good, for a process that reads one job and exits. Call it before
    numpy is imported."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # finding huge pages costs more than they save: 7 % of the time for ten thousand ranks
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    libc = _glibc()
    if libc is not None:
        _set(libc, _KEEPING)


def return_freed_memory() -> None:
    """Returns large blocks as soon as they are freed, for a process that runs for long. Call it
    before pyarrow is imported."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    _return_large_blocks()


def return_freed_memory_here() -> None:
    """The same for a process that starts others, which must not inherit a setting of ours.

    Between its looks at two hours of 16 ranks the live diagnosis held 114 to 128 MB, growing, and
    82 to 91 MB so (measured).
    """
    from pyarrow import set_memory_pool, system_memory_pool

    set_memory_pool(system_memory_pool())
    _return_large_blocks()


def release_freed_memory() -> None:
    """Returns what is free now, once: for a process that works hard once in a while, and waits."""
    from pyarrow import default_memory_pool

    default_memory_pool().release_unused()
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@contextmanager
def cycles_kept() -> Iterator[None]:
    """Disables garbage collection of reference cycles: it takes 5 % of the time of diagnosing ten
    thousand ranks, and frees 0.5 % of the memory. What there is afterwards is not looked through
    any more, either: writing the result and the exit would each do it, for 1 % of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keeps freed memory during one job, for a process that simulates and diagnoses many. It is
    returned after each, so that a small job after a large one does not hold the memory of that."""
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


def _return_large_blocks() -> None:
    libc = _glibc()
    if libc is not None:
        _set(libc, _RETURNING)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _set(libc: ctypes.CDLL, values: Mapping[int, int]) -> None:
    for name, value in values.items():
        libc.mallopt(name, value)

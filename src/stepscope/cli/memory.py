"""Memory that is freed is used again, and not handed back to the system and asked for anew.

glibc and Arrow hand back each large block when it is freed. The next column is then of fresh pages,
which the system clears first: diagnosing ten thousand ranks spent a third of its time on that.
"""

from __future__ import annotations

import ctypes
import os

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1
"""Parameters of glibc's `mallopt`, by `malloc.h`."""


def keep_freed_memory() -> None:
    """For a process that looks at one job and ends; call it before numpy and pyarrow are imported.

    Other C libraries have no `mallopt`, and nothing changes there.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # what the system does to find huge pages costs more than they save: 7 % of ten thousand ranks
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)

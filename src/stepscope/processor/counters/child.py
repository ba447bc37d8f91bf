"""`python -m stepscope.processor.counters.child LIBRARY FOLDERS GPU INTERVAL_NS WINDOW_NS`: the
process in which CUPTI samples one GPU.

Frames go to standard output; anything that CUDA prints is redirected to standard error. The process
exits when the window ends, when standard input closes or when the reader of its output is gone, so
it never outlives its processor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the processor ends us
    library, folders, gpu, interval_ns, window_ns = arguments
    out = os.dup(1)
    os.dup2(2, 1)
    sample = ctypes.CDLL(library).stepscope_pm_sample
    longs = (ctypes.c_longlong(int(interval_ns)), ctypes.c_longlong(int(window_ns)))
    return int(sample(folders.encode(), int(gpu), *longs, out, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sleeping until a command ends or something can be read."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator


def wait_for(
    process: subprocess.Popen[bytes], descriptors: Iterable[int | None], seconds: float
) -> set[int]:
    """Those of the descriptors that can be read, as soon as there is one, a process ends, or a time
    is over; asleep all the while, as `Popen.wait` is not."""
    waiting = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            waiting.register(descriptor, select.POLLIN)
    with _end_of(process) as ended:
        if ended is not None:
            waiting.register(ended, select.POLLIN)
        return {descriptor for descriptor, _ in waiting.poll(1e3 * seconds)}


@contextlib.contextmanager
def _end_of(process: subprocess.Popen[bytes]) -> Iterator[int | None]:
    """A descriptor that can be read once a process has ended; None where it was waited for already,
    or the kernel is older than 5.3: then a wait takes its whole time."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)

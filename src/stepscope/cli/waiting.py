"""Sleeps until a process exits or a descriptor becomes readable."""

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
    """Returns the readable descriptors as soon as there is one, the process exits, or time is up.

    It sleeps in poll(2), whereas `Popen.wait` with a timeout polls repeatedly.
    """
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
    """A descriptor that becomes readable when the process exits.

    None if the process was already reaped, or on kernels before 5.3: a wait then takes its full
    time.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)

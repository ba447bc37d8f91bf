"""Which file it is: names and descriptors may lead to another one than before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def identity(file: Path | int) -> tuple[int, int] | None:
    """Device and inode of what is at a path, or open as a descriptor; None: nothing is.

    Links are not followed.
    """
    try:
        found = os.fstat(file) if isinstance(file, int) else file.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

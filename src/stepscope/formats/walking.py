"""Finds the files of a folder that can be read at all.

A user may name a folder that holds no recordings, even `/proc`: pipes and most files there keep a
reader waiting for ever, and there is no end to them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from stepscope.errors import SourceError

MOST_FILES = 1 << 18
"""As many as there are ranks in a job, and twice the largest published one."""
DEEPEST = 16


def files_below(folder: Path) -> Iterator[Path]:
    """The regular files below a folder, sorted by name, without hidden ones.

    Links to folders are not followed, as they may be cyclic.

    Raises:
        SourceError: there are more files than any recording has.
    """
    seen, top = 0, len(folder.parts)
    for root, folders, names in os.walk(folder):
        deep = len(Path(root).parts) - top >= DEEPEST
        folders[:] = [] if deep else sorted(one for one in folders if not one.startswith("."))
        seen += len(names) + len(folders)
        if seen > MOST_FILES:
            raise SourceError(f"{folder} has more than {MOST_FILES} files; name the folder with "
                              "the traces or dumps")  # fmt: skip
        for name in sorted(names):
            # os.path, unlike Path, answers False where access is denied
            if not name.startswith(".") and os.path.isfile(os.path.join(root, name)):  # noqa: PTH113, PTH118
                yield Path(root, name)


def has_contents(path: Path) -> bool:
    """Whether it is a regular file of known size. Files that a kernel makes up while they are read
    have none, and may keep a reader waiting for ever."""
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0

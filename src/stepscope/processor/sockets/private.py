"""The folder of the socket, its lock and its log, to which no other user has access.

In `/tmp` another user may create our folder before we do, with symbolic links as our files: we
would then write wherever they point, with our rights.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stepscope.errors import UsageError


def make_private(socket: Path) -> None:
    """Creates the folder of a socket, or checks that only this user has access to it.

    Raises:
        UsageError: somebody else has, or it cannot be created.
    """
    folder = socket.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UsageError(f"cannot listen on {socket}: {error.strerror}; try --socket") from error
    trouble = _trouble(folder, found)
    if trouble is not None:
        raise UsageError(f"cannot listen on {socket}: {trouble}, or choose another --socket")


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file in such a folder, created if necessary; never follows a link.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _trouble(folder: Path, found: os.stat_result) -> str | None:
    """What is wrong and what to do; None if the folder is ours alone."""
    if stat.S_ISLNK(found.st_mode):
        return f"{folder} is a symbolic link; name the folder itself"
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to user {found.st_uid}; remove it"
    if stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        return f"other users have access to {folder} (mode {mode:o}); chmod 700 {folder}"
    return None

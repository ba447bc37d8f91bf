"""The folder of the socket, its lock and its log, to which no other user has access.

In `/tmp` another user may create our folder before we do, with symbolic links as our files: we
would then write wherever they point, with our rights.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from stepscope.errors import UsageError


class Trouble(NamedTuple):
    """What is wrong with a folder, and what to do about it."""

    found: str
    advice: str


def make_private(socket: Path) -> None:
    """Creates the folder of a socket, or checks that only this user has access to it.

    Raises:
        UsageError: somebody else has, or it cannot be created.
    """
    folder = socket.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trouble = trouble_of(folder)
    except OSError as error:
        raise UsageError(f"cannot listen on {socket}: {error.strerror}; try --socket") from error
    if trouble is not None:
        message = f"{trouble.found}; {trouble.advice}, or choose another --socket"
        raise UsageError(f"cannot listen on {socket}: {message}")


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file in such a folder, created if necessary; never follows a link.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def trouble_of(folder: Path) -> Trouble | None:
    """Why an existing folder is not private; None if it is ours alone.

    Raises:
        OSError: it does not exist, or cannot be examined.
    """
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return Trouble(f"{folder} is a symbolic link", "name the folder itself")
    if not stat.S_ISDIR(found.st_mode):
        return Trouble(f"{folder} is no folder", "remove it")
    if found.st_uid != os.geteuid():
        return Trouble(f"{folder} belongs to user {found.st_uid}", "remove it")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return Trouble(
            f"other users have access to {folder} (mode {mode:o})", f"chmod 700 {folder}"
        )
    return None

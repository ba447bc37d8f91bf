"""All exceptions that stepscope raises on purpose.

StepscopeError
├── SourceError        the source of a command cannot be read (exit status 2)
│   └── FormatError    a file was read, but its contents are invalid
├── StoreError         the store cannot be written: disk full, bucket unreachable
├── WireError          a packet on the socket is invalid
├── MissingNativeError the request needs our C++ code, which was not compiled
└── UsageError         the request is invalid (exit status 2)

A message says what was attempted, on what, what was found, and what to do next. Any other exception
is an internal error of stepscope (exit status 3).
"""

from __future__ import annotations

NO_NATIVE = (
    "stepscope was installed without its native part; install a C++ compiler and Python's headers "
    "(python3-dev, python3-devel), then reinstall stepscope"
)


class StepscopeError(Exception):
    """Base class of all exceptions that stepscope raises on purpose."""


class SourceError(StepscopeError):
    """A job folder, file or URL that cannot be read."""


class FormatError(SourceError):
    """A file that was read, but whose contents are invalid."""


class StoreError(StepscopeError):
    """A store that cannot be written."""


class WireError(StepscopeError):
    """An invalid packet on the socket."""


class MissingNativeError(StepscopeError):
    """A C++ part of stepscope that was not compiled in this installation."""


class UsageError(StepscopeError):
    """An invalid request; the message names a valid one."""

"""Everything stepscope raises on purpose.

StepscopeError
├── SourceError        what a command was asked to read cannot be read (exit status 2)
│   └── FormatError    it was read, and its contents are not what they should be
├── StoreError         the store cannot be written: disk full, bucket unreachable
├── WireError          a packet from a producer is not one of ours
├── MissingNativeError what was asked for needs our C++, which was not compiled
└── UsageError         a command was asked for something that makes no sense (exit status 2)

A message says what was attempted, on what, what was found, and what to do next. Everything else
that escapes is a fault of stepscope itself (exit status 3).
"""

from __future__ import annotations

NO_NATIVE = (
    "stepscope was installed without its native part; install a C++ compiler and Python's headers "
    "(python3-dev, python3-devel), then stepscope again"
)


class StepscopeError(Exception):
    """Root of the tree: catch this to catch all of ours and nothing else."""


class SourceError(StepscopeError):
    """A job folder, file or URL that cannot be read."""


class FormatError(SourceError):
    """A file that was read but does not hold what its name promises."""


class StoreError(StepscopeError):
    """A store that cannot be written."""


class WireError(StepscopeError):
    """Bytes on the socket that are no packet of ours."""


class MissingNativeError(StepscopeError):
    """A part of stepscope in C++ that this installation went without."""


class UsageError(StepscopeError):
    """A request that makes no sense, with the sensible one named."""

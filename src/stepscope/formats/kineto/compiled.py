"""The scanner in C++ (native/), missing in an installation without Python's headers."""

from stepscope.errors import NO_NATIVE, FormatError

try:
    from stepscope._native import Scanner, members
except ImportError as error:
    raise FormatError(f"traces cannot be read: {NO_NATIVE}") from error

__all__ = ["Scanner", "members"]

"""The scanner in C++ (native/), which an installation without Python's headers went without."""

from stepscope.errors import FormatError

try:
    from stepscope._native import Scanner, members
except ImportError as error:
    raise FormatError(
        "traces cannot be read: stepscope was installed without its native part; install a C++ "
        "compiler and Python's headers (python3-dev, python3-devel), then stepscope again"
    ) from error

__all__ = ["Scanner", "members"]

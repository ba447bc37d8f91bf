"""The hot loops in C++ (native/), missing in an installation without Python's headers."""

from stepscope.errors import NO_NATIVE, MissingNativeError

try:
    from stepscope._native import busiest, critical_ns, innermost
except ImportError as error:
    raise MissingNativeError(f"patterns cannot be computed: {NO_NATIVE}") from error

__all__ = ["busiest", "critical_ns", "innermost"]

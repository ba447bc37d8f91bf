"""The hot loops in C++ (native/), missing in an installation without Python's headers."""

from stepscope.errors import NO_NATIVE, MissingNativeError

try:
    from stepscope._native import Histograms, Keys, published
except ImportError as error:
    raise MissingNativeError(f"kernels cannot be summarised: {NO_NATIVE}") from error

__all__ = ["Histograms", "Keys", "published"]
